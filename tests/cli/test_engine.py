"""--engine, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROW = '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": {}}}\n'


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsched", *arguments],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Two blocks of 512 twice, one that goes on, what no pool of 6 holds, a partial tail."""
    path = tmp_path / "t.jsonl"
    rows = [
        (1024, 600, [1, 2]),
        (1024, 1, [1, 2]),
        (1536, 1, [1, 2, 3]),
        (9000, 9, list(range(18))),
        (600, 1, [50, 51]),
    ]
    path.write_text("".join(ROW.format(at, *row) for at, row in enumerate(rows)))
    return str(path)


def test_replay(trace: str, tmp_path: Path) -> None:
    rows, decisions = tmp_path / "rows.jsonl", tmp_path / "decisions.jsonl"
    files = ("--per-request", str(rows), "--dump-decisions", str(decisions))
    ended = run("replay", trace, "--engine", "vllm", "--capacity-blocks", "3", *files)
    assert ended.returncode == 0, ended.stderr
    for said in (
        "policy      free-list",
        "refused     2 requests can never fit and did not run: number 1, 4 in time order",
        "engine: vllm: full blocks only are stored and hit",
        "generated tokens cached: yes: 0 blocks named by a later request",
    ):
        assert said in ended.stdout
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["refused"] for row in found] == [True, False, False, True, False]
    assert [row["hit_blocks"] for row in found] == [0, 0, 2, 0, 0]


def test_the_generic_rules_say_nothing_of_engines(trace: str) -> None:
    ended = run("replay", trace, "--capacity-blocks", "3")
    assert "engine" not in ended.stdout
    assert "refused" not in ended.stdout
    found = json.loads(run("replay", trace, "--capacity-blocks", "3", "--format", "json").stdout)
    assert "refused_requests" not in found
    assert found["definitions"]["engine"] == "generic: every node can be stored and hit"


def test_generated_blocks_have_no_key(trace: str, tmp_path: Path) -> None:
    decisions = tmp_path / "decisions.jsonl"
    asked = ("--engine", "vllm", "--policy", "fifo", "--capacity-blocks", "4")
    ended = run("replay", trace, *asked, "--dump-decisions", str(decisions), "--format", "json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["engine"] == "vllm"
    assert found["policy"] == "fifo"
    assert found["refused_requests"] == 1
    # 1024 + 600 tokens: block 3 is what the third prompt names, then a partial one.
    assert found["definitions"]["generated_tokens_cached"].startswith(
        "yes: 0 blocks named by a later request of the same session, 1 by another"
    )
    # The last request's partial block takes room from block 3, and is no node of the trace.
    (row,) = map(json.loads, decisions.read_text().splitlines())
    assert (row["request"], row["victim_key"], row["incoming_key"]) == (4, 3, None)
    off = run("replay", trace, *asked, "--no-cache-generated", "--format", "json")
    assert json.loads(off.stdout)["hit_blocks"] == found["hit_blocks"] == 1 + 2


def test_an_unknown_engine_is_one_line(trace: str, tmp_path: Path) -> None:
    for command in (("replay", "--capacity-blocks", "3"), ("study", "-o", str(tmp_path / "s"))):
        ended = run(command[0], trace, "--engine", "vlm", *command[1:])
        assert ended.returncode == 2
        assert ended.stderr.count("\n") == 1
        assert "unknown engine vlm (known: generic, vllm" in ended.stderr
    assert not (tmp_path / "s").exists()


def test_study(trace: str, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    asked = ("--capacity-blocks", "4", "--policies", "fifo", "--points", "2", "-o", str(folder))
    ended = run("study", trace, "--engine", "vllm", *asked)
    assert ended.returncode == 0, ended.stderr
    assert "engine vllm: full blocks only" in " ".join(ended.stdout.split())
    assert "Warning: 1 request can never fit" in ended.stdout
    found = json.loads((folder / "result.json").read_text())
    assert found["policy"] == "free-list"
    assert found["definitions"]["engine"].startswith("vllm: ")
    assert "unlimited cache with the same rules" in found["definitions"]["ceiling"]
    assert "can never fit" in (folder / "report.html").read_text()
