"""`kvsched trace`: cutting, merging, anonymizing, statistics, export, run as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KVSCHED = [sys.executable, "-m", "kvsched", "trace"]
ROW = {"input_length": 600, "output_length": 5, "hash_ids": [987654321, 123456789]}


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVSCHED, *map(str, arguments)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )


def good(*arguments: str | Path) -> str:
    ended = run(*arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def info(path: Path, *more: str) -> dict[str, object]:
    return json.loads(good("info", path, "--format", "json", *more))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "acme.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": 1000 * at,
                    **ROW,
                    "hash_ids": [987654321, 123456789 + at % 3],
                    "session_id": f"alice-{at % 2}",
                    "tenant": "acme",
                }
            )
            + "\n"
            for at in range(10)
        )
    )
    return path


def test_help_names_the_commands() -> None:
    shown = good("--help")
    for command in ("info", "convert", "anonymize", "slice", "merge", "stats", "generate"):
        assert command in shown


def test_slice(rows: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.kvtrace"
    ended = run("slice", rows, "-o", part, "--from", "2", "--to", "8", "--session", "alice-1")
    assert ended.returncode == 0
    assert "note: cut to 3 of 10 requests: from 2 s, before 8 s, session alice-1" in ended.stderr
    assert (found := info(part))["requests"] == 3
    assert found["duration_s"] == 4
    good("slice", rows, "-o", tmp_path / "b.jsonl.gz", "--requests", "2:5", "--first", "2")
    assert info(tmp_path / "b.jsonl.gz")["requests"] == 2


def test_anonymize(rows: Path, tmp_path: Path) -> None:
    salt = tmp_path / "salt"
    salt.write_text("sixteen bytes or more\n")
    a, b, c = (tmp_path / f"{name}.kvtrace" for name in "abc")
    assert run("anonymize", rows, "-o", a, "--salt-file", salt).stderr.startswith("note: block ids")
    ended = run("anonymize", rows, "-o", b, "--salt", "sixteen bytes or more")
    assert a.read_bytes() == b.read_bytes()
    for secret in (b"acme", b"alice", (987654321).to_bytes(8, "little")):
        assert secret not in a.read_bytes()
    ended = run("anonymize", rows, "-o", c)
    assert ended.returncode == 0
    assert "a random salt is drawn and not stored" in ended.stderr
    first = c.read_bytes()
    good("anonymize", rows, "-o", c)
    assert c.read_bytes() != first
    assert info(c)["distinct_blocks"] == info(rows)["distinct_blocks"] == 4
    assert "can be guessed" in run("anonymize", rows, "-o", c, "--salt", "x").stderr


def test_merge(rows: Path, tmp_path: Path) -> None:
    part, whole = tmp_path / "part.kvtrace", tmp_path / "whole.kvtrace"
    good("slice", rows, "-o", part, "--first", "4")
    shared = ("--share-blocks", "--label-tenant", "--offset", "0", "--offset", "100")
    good("merge", rows, part, "-o", whole, *shared)
    found = info(whole)
    assert (found["requests"], found["distinct_blocks"], found["duration_s"]) == (14, 4, 103)
    assert (found["tenants"], found["sessions"]) == (2, 2)
    assert found["source"] == "acme.jsonl + part.kvtrace"
    ended = run("merge", rows, part, "-o", whole, "--align", "absolute")
    assert "note: blocks of different traces are not shared" in ended.stderr
    assert ended.stderr.count("note: cut to 4 of 10") == 1
    found = info(whole)
    assert (found["requests"], found["distinct_blocks"], found["sessions"]) == (14, 8, 4)


def test_stats(rows: Path) -> None:
    shown = good("stats", rows)
    assert "10 requests in 9 s" in shown
    found = json.loads(good("stats", rows, "--format", "json"))
    assert found["reuse"]["blocks"] == 16
    assert found["sessions"]["sessions"] == 2
    assert "burstiness" in found["definitions"]
    both = json.loads(good("stats", rows, "--compare", "preset:chat", "--format", "json"))
    assert both["a"] == found | {"arrivals": both["a"]["arrivals"]}
    assert both["distributions"]["input_tokens"]["beyond_chance"]
    text = good("stats", rows, "--compare", rows)
    assert "input tokens: no difference beyond chance" in text


def test_convert_by_suffix(rows: Path, tmp_path: Path) -> None:
    columns, lines, again = (tmp_path / name for name in ("c.kvtrace", "l.jsonl.zst", "c2.kvtrace"))
    good("convert", rows, "-o", columns)
    good("convert", columns, "-o", lines)
    good("convert", lines, "-o", again)
    first, second = info(columns), info(again)
    for name in ("requests", "blocks", "distinct_blocks", "chain_tokens", "sessions", "duration_s"):
        assert first[name] == second[name]


def test_uncovered_tokens(tmp_path: Path) -> None:
    session = tmp_path / "s.json"
    request = {"t": 0, "type": "n", "model": "m", "in": 150, "out": 3, "hash_ids": [1, 2]}
    session.write_text(
        json.dumps(
            {"id": "x", "block_size": 64, "hash_id_scope": "local", "requests": [request] * 2}
        )
    )
    out = tmp_path / "s.jsonl"
    ended = run("convert", session, "-o", out)
    assert "44 prompt tokens of 2 requests lie in no block and are cut off" in ended.stderr
    assert "read it with --block-size 64" in ended.stderr
    cut = info(out, "--block-size", "64")
    assert (cut["prompt_tokens"], cut["distinct_blocks"]) == (256, 2)
    good("convert", session, "-o", out, "--uncovered", "fresh")
    fresh = info(out, "--block-size", "64")
    assert (fresh["prompt_tokens"], fresh["distinct_blocks"]) == (300, 4)


BAD = [
    (("slice", "ROWS", "-o", "OUT"), "say which part"),
    (("slice", "ROWS", "-o", "OUT", "--session", "eve"), "no session is called 'eve'"),
    (("slice", "ROWS", "-o", "OUT", "--model", "m"), "no request has a model"),
    (("slice", "ROWS", "-o", "OUT", "--from", "99"), "no request of acme.jsonl is left"),
    (("slice", "ROWS", "-o", "OUT", "--requests", "2-5"), "write A:B, as in 0:1000"),
    (("slice", "ROWS", "-o", "OUT", "--requests", "5:2"), "0 <= A < B"),
    (("slice", "none.jsonl", "-o", "OUT", "--first", "1"), "no such file"),
    (("anonymize", "ROWS", "-o", "OUT", "--salt", ""), "the salt is empty"),
    (("anonymize", "ROWS", "-o", "OUT", "--salt", "a", "--salt-file", "b"), "not both"),
    (("anonymize", "ROWS", "-o", "OUT", "--salt-file", "none"), "none: no such file"),
    (("anonymize", "ROWS", "-o", "OUT", "--keep", "tenant"), "'tenant' cannot be kept"),
    (("merge", "ROWS", "preset:rag", "-o", "OUT"), "blocks have 512 tokens in acme.jsonl"),
    (("merge", "ROWS", "ROWS", "-o", "OUT", "--offset", "3"), "1 offset for 2 traces"),
    (("merge", "ROWS", "ROWS", "-o", "OUT", "--align", "end"), "use start or absolute"),
    (("stats", "ROWS", "--window", "0"), "a window of 0 s"),
    (("stats", "ROWS", "--compare", "none.jsonl"), "none.jsonl: no such file"),
    (("convert", "ROWS", "-o", "OUT", "--uncovered", "cut"), "it is for .jsonl"),
    (("convert", "ROWS", "-o", "OUT.jsonl", "--uncovered", "x"), "use cut or fresh"),
    (("convert", "ROWS", "-o", "OUT.txt"), "name it .kvtrace, "),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_wrong_use(arguments: tuple[str, ...], words: str, rows: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.kvtrace")
    given = [part.replace("ROWS", str(rows)).replace("OUT", out) for part in arguments]
    ended = run(*given)
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = [line for line in ended.stderr.splitlines() if not line.startswith("note: ")]
    assert line.startswith("kvsched: ")
    assert words in line
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays_when_it_goes_wrong(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.kvtrace"
    out.write_bytes(b"what was there")
    assert run("slice", rows, "-o", out, "--from", "99").returncode == 2
    assert out.read_bytes() == b"what was there"
