"""`--sample` as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

CAPACITY = ("--capacity-blocks", "3000")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvsched", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def told(*arguments: str) -> dict[str, object]:
    ended = run(*arguments, "--format", "json")
    assert ended.returncode == 0, ended.stderr
    found: dict[str, object] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("traces") / "chat.kvtrace"
    made = run("trace", "generate", "chat", "-o", str(path), "--set", "requests=1500")
    assert made.returncode == 0, made.stderr
    return str(path)


def test_replay_says_rate_nodes_and_expected_error(chat: str) -> None:
    ended = run("replay", chat, *CAPACITY, "--policy", "lfu", "--sample", "1/10")
    assert ended.returncode == 0, ended.stderr
    line = next(each for each in ended.stdout.splitlines() if each.startswith("sample"))
    assert "1/10, seed 0" in line
    assert "points" in line
    found = told("replay", chat, *CAPACITY, "--policy", "lfu", "--sample", "0.1")
    whole = told("replay", chat, *CAPACITY, "--policy", "lfu")
    assert "sample" not in whole
    assert found["sample"]["one_in"] == 10  # type: ignore[index]
    assert found["total_blocks"] == whole["total_blocks"]
    assert found["hit_blocks"] != whole["hit_blocks"]
    assert found["block_hit_ratio"] == pytest.approx(whole["block_hit_ratio"], abs=0.05)
    assert "sample" in found["definitions"]  # type: ignore[operator]


def test_rate_one_gives_the_whole_integers(chat: str) -> None:
    found = told("replay", chat, *CAPACITY, "--policy", "opt", "--sample", "1")
    whole = told("replay", chat, *CAPACITY, "--policy", "opt")
    for name in ("hit_blocks", "hit_tokens", "evictions", "total_tokens"):
        assert found[name] == whole[name]


def test_a_tuned_policy_says_what_was_chosen(chat: str) -> None:
    command = ("replay", chat, *CAPACITY, "--policy", "marconi:alpha=auto")
    found = told(*command)
    assert found["policy"] == "marconi:alpha=auto"
    tuned = found["tuned"]
    ended = run(*command)
    assert isinstance(tuned, dict)
    line = f"tuned       alpha {tuned['alpha']:g}, since request {tuned['since_request']}"
    assert line in ended.stdout.splitlines()


def test_a_curve_of_a_sample(chat: str) -> None:
    found = told("curve", chat, "--sample", "1/5", "--points", "4")
    assert found["sample"]["one_in"] == 5  # type: ignore[index]
    assert "sample:" in run("curve", chat, "--sample", "1/5").stdout


def test_auto_says_what_it_took_and_gives_the_same_again(chat: str) -> None:
    asked = ("replay", chat, *CAPACITY, "--sample", "auto", "--sample-budget", "0.001")
    first, second = run(*asked), run(*asked)
    assert first.returncode == 0, first.stderr
    assert "--sample auto took 1/" in first.stderr
    assert "took 1/1\n" not in first.stderr
    assert first.stdout == second.stdout
    assert "took 1/1\n" in run("replay", chat, *CAPACITY, "--sample", "auto").stderr


def test_a_generated_workload_is_sampled_as_it_is_made() -> None:
    found = told("replay", "preset:chat", *CAPACITY, "--sample", "1/10", "--seed", "2")
    assert found["sample"]["seed"] == 2  # type: ignore[index]


def test_a_study_of_a_sample(chat: str, tmp_path: Path) -> None:
    where = str(tmp_path / "out")
    ended = run(
        "study", chat, "--sample", "1/10", "--policies", "lfu", "--points", "3", "-o", where
    )
    assert ended.returncode == 0, ended.stderr
    assert "from a sample: one node in 10" in ended.stdout
    result = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert result["sample"]["one_in"] == 10
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "estimates from a sample" in page


@pytest.mark.parametrize(
    "wrong",
    [
        ("--sample", "0.3"),
        ("--sample", "2"),
        ("--sample", "auto", "--sample-budget", "0"),
        ("--sample", "1/10", "--per-request", "r.csv"),
    ],
)
def test_wrong_use_is_one_line(chat: str, wrong: tuple[str, ...]) -> None:
    ended = run("replay", chat, *CAPACITY, *wrong)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "--sample" in ended.stderr


@pytest.fixture(scope="module")
def rows(chat: str) -> str:
    """The same requests as JSON lines, which are sampled as they are read."""
    path = chat.replace(".kvtrace", ".jsonl.zst")
    made = run("trace", "convert", chat, "-o", path)
    assert made.returncode == 0, made.stderr
    return path


def test_a_file_of_rows_gives_what_the_whole_trace_gives(chat: str, rows: str) -> None:
    asked = (*CAPACITY, "--policy", "lfu", "--sample", "1/10")
    laid, sampled = told("replay", rows, *asked, "--block-size", "16"), told("replay", chat, *asked)
    for name in ("sample", "hit_blocks", "hit_tokens", "total_blocks", "evictions"):
        assert laid[name] == sampled[name]
    other = told("replay", rows, *asked, "--block-size", "16", "--seed", "1")
    assert other["hit_blocks"] != sampled["hit_blocks"]


def test_auto_of_a_file_of_rows(chat: str, rows: str) -> None:
    asked = (*CAPACITY, "--sample", "auto", "--sample-budget", "0.001")
    laid, sampled = run("replay", rows, *asked, "--block-size", "16"), run("replay", chat, *asked)

    def note(text: str) -> list[str]:
        return [line for line in text.splitlines() if "auto took" in line]

    assert len(note(laid.stderr)) == 1
    assert note(laid.stderr) == note(sampled.stderr)


def test_a_terminal_shows_reading_and_sampling(rows: str) -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "kvsched", "replay", rows, *CAPACITY, "--block-size", "16"]
    subprocess.run(
        [*command, "--sample", "1/10"], stdout=subprocess.DEVNULL, stderr=side, check=True
    )
    os.close(side)
    shown = os.read(main, 1 << 16).decode()
    os.close(main)
    assert "reading" in shown
    assert "sampling" in shown
