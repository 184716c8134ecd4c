"""The command line, run as a user runs it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KVSCHED = [sys.executable, "-m", "kvsched"]


def run(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVSCHED, *arguments],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def good(*arguments: str, cwd: Path | None = None) -> str:
    ended = run(*arguments, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "chat.kvtrace"
    good(
        "trace", "generate", "chat", "--output", str(path), "--set", "requests=1500", "--seed", "3"
    )
    return path


def test_help_names_every_command() -> None:
    shown = good("--help")
    for command in (
        "trace",
        "replay",
        "curve",
        "study",
        "run",
        "policies",
        "warm",
        "models",
        "gpus",
    ):
        assert command in shown


def test_version() -> None:
    assert good("--version").startswith("kvsched ")


def test_generate_is_the_same_for_the_same_seed(chat: Path, tmp_path: Path) -> None:
    again, other = tmp_path / "again.kvtrace", tmp_path / "other.kvtrace"
    for path, seed in ((again, "3"), (other, "4")):
        good("trace", "generate", "chat", "-o", str(path), "--set", "requests=1500", "--seed", seed)
    assert again.read_bytes() == chat.read_bytes()
    assert other.read_bytes() != chat.read_bytes()


def test_replay_json_is_one_object_with_the_promised_names(chat: Path) -> None:
    text = good("replay", str(chat), "--capacity-blocks", "500", "--format", "json")
    found = json.loads(text)
    promised = {
        "policy",
        "capacity_blocks",
        "hit_blocks",
        "total_blocks",
        "hit_tokens",
        "total_tokens",
        "evictions",
        "definitions",
        "digest",
        "version",
    }
    assert promised <= set(found)
    assert found["policy"] == "lru"
    assert 0 < found["hit_blocks"] < found["total_blocks"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_rows_add_up_to_the_sums(chat: Path, tmp_path: Path, suffix: str) -> None:
    requests, decisions = tmp_path / f"r.{suffix}", tmp_path / f"d.{suffix}"
    found = json.loads(
        good(
            *("replay", str(chat), "--policy", "lfu", "--capacity-blocks", "700"),
            *("--per-request", str(requests), "--dump-decisions", str(decisions)),
            *("--format", "json"),
        )
    )

    def rows(path: Path) -> list[dict[str, str]]:
        if suffix == "csv":
            with path.open(newline="") as stream:
                return list(csv.DictReader(stream))
        return [json.loads(line) for line in path.read_text().splitlines()]

    per_request = rows(requests)
    assert len(per_request) == 1500
    assert sum(int(row["hit_blocks"]) for row in per_request) == found["hit_blocks"]
    assert sum(int(row["hit_tokens"]) for row in per_request) == found["hit_tokens"]
    assert sum(int(row["evictions"]) for row in per_request) == found["evictions"]
    left = rows(decisions)
    assert len(left) == found["evictions"]
    assert {"request", "time_s", "victim_key", "incoming_key"} <= set(left[0])


def test_formats_of_a_capacity_agree(chat: Path) -> None:
    def blocks(*options: str) -> int:
        text = good("replay", str(chat), *options, "--format", "json")
        return int(json.loads(text)["capacity_blocks"])

    # Llama-3.1-8B: 131,072 bytes a token, so 16 tokens take 2 MiB and a GiB holds 512 blocks.
    assert blocks("--capacity-gib", "1", "--model", "llama-3.1-8b") == 512
    assert blocks("--capacity-tokens", "16015") == 1000
    whole = blocks("--gpu", "h100", "--model", "llama-3.1-8b")
    less = blocks("--gpu", "h100", "--model", "llama-3.1-8b", "--reserve-running", "64x2048")
    assert whole - less == 64 * 2048 // 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replay", "CHAT"], "name a capacity"),
        (["replay", "CHAT", "--capacity-blocks", "0"], "1"),
        (["replay", "CHAT", "--capacity-blocks", "-5"], "blocks"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--capacity-tokens", "9"], "give one of"),
        (["replay", "CHAT", "--capacity-gib", "4"], "needs --model"),
        (["replay", "CHAT", "--gpu", "h100"], "--gpu needs --model"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--policy", "lruu"], "unknown policy lruu"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--policy", "decay:half=1"], "no parameter"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--policy", "no.py:P"], "there is no file"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--per-request", "x.txt"], ".jsonl or .csv"),
        (["replay", "CHAT", "--capacity-blocks", "9", "--policy", "priority"], "needs `priority`"),
        (["study", "CHAT", "--policies", "lru,priority"], "needs `priority`"),
        (["study", "CHAT", "--policy", "priority", "-o", "x"], "a Mooncake row gives it as"),
        (["replay", "nowhere.jsonl", "--capacity-blocks", "9"], "nowhere.jsonl"),
        (["replay", "preset:chatt", "--capacity-blocks", "9"], "chatt"),
        (["replay", "CHAT", "--capacity-gib", "1", "--model", "llama-9"], "llama-9"),
        (["study", "CHAT", "--policy", "opt"], "needs the future"),
        (["study", "CHAT", "--policies", "lru,what"], "unknown policy what"),
        (["study", "CHAT", "--capacity-blocks", "9", "-o", "CHAT/sub"], "cannot be made"),
        (["trace", "generate", "chat"], "--output"),
        (["trace", "generate", "chat", "-o", "x.json"], ".kvtrace"),
        (["trace", "generate", "chat", "-o", "x.kvtrace", "--set", "requests=-4"], "requests"),
        (["trace", "info", "CHAT", "--format", "weka"], "not valid UTF-8"),
        (["trace", "info", "CHAT", "--format", "nothing"], "nothing"),
    ],
)
def test_wrong_use_says_what_to_do(arguments: list[str], said: str, chat: Path) -> None:
    ended = run(*(word.replace("CHAT", str(chat)) for word in arguments))
    assert ended.returncode == 2, (ended.returncode, ended.stdout, ended.stderr)
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    assert len(ended.stderr.strip().splitlines()) <= 4


def test_an_output_that_cannot_be_written_is_said_before_nothing_is_lost(chat: Path) -> None:
    ended = run("replay", str(chat), "--capacity-blocks", "9", "--per-request", "/no/such/r.csv")
    assert ended.returncode == 2
    assert "cannot be written" in ended.stderr


def test_a_second_output_that_cannot_be_written_leaves_nothing(chat: Path, tmp_path: Path) -> None:
    first = tmp_path / "r.csv"
    files = ("--per-request", str(first), "--dump-decisions", str(tmp_path / "no" / "d.csv"))
    ended = run("replay", str(chat), "--capacity-blocks", "9", *files)
    assert ended.returncode == 2
    assert "there is no folder" in ended.stderr
    assert not first.exists()
    ended = run("replay", str(chat), "--capacity-blocks", "9", *files[:3], str(first))
    assert ended.returncode == 2
    assert "a file each" in ended.stderr


def test_a_study_that_cannot_be_written_leaves_nothing(chat: Path, tmp_path: Path) -> None:
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    ended = study(chat, tmp_path / "out")
    assert ended.returncode == 2
    assert "it is a folder" in ended.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_names_that_are_no_utf8_and_terminals_that_know_only_ascii(
    chat: Path, tmp_path: Path
) -> None:
    odd = os.fsencode(tmp_path) + b"/caf\xe9.kvtrace"
    Path(os.fsdecode(odd)).write_bytes(chat.read_bytes())
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX", "COLUMNS": "20"}
    ended = subprocess.run(
        [*KVSCHED, "study", odd, "--points", "2", "--policies", "lru", "-o", "out"],
        cwd=tmp_path,
        env={**os.environ, **plain, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))


def test_a_huge_capacity_and_a_name_of_two_lines_are_one_line(chat: Path) -> None:
    huge = ("--model", "llama-3.1-8b", "--capacity-gib", "1e308")
    for options in (huge, ("--capacity-blocks", "9", "--policy", "a\nb")):
        ended = run("replay", str(chat), *options)
        assert ended.returncode == 2
        assert len(ended.stderr.strip().splitlines()) <= 2, ended.stderr


def study(chat: Path, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    options = ("--capacity-blocks", "800", "--points", "5", "--output-dir", str(folder))
    return run("study", str(chat), *options, *more, cwd=folder.parent)


def test_a_study_writes_the_same_bytes_again(chat: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        ended = study(chat, tmp_path / name)
        assert ended.returncode == 0, ended.stderr
        assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["report.html", "result.json"]
    for file in ("report.html", "result.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_study_as_json_prints_the_file(chat: Path, tmp_path: Path) -> None:
    ended = study(chat, tmp_path / "out", "--format", "json")
    assert ended.returncode == 0, ended.stderr
    shown = json.loads(ended.stdout)
    assert shown["capacity"]["blocks"] == 800
    assert shown == json.loads((tmp_path / "out" / "result.json").read_text())


def test_an_interrupted_study_goes_on_and_ends_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = [
        "study",
        "preset:mooncake-conversation",
        "--points",
        "40",
        "--capacity-blocks",
        "6000",
    ]
    ended = run(*options, "-o", str(whole))
    assert ended.returncode == 0, ended.stderr
    started = subprocess.Popen(
        [*KVSCHED, *options, "-o", str(cut)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    partial = cut / ".partial.jsonl"
    until = time.monotonic() + 120
    while not (partial.exists() and partial.stat().st_size > 2000):
        assert time.monotonic() < until, "no point was kept"
        assert started.poll() is None, "the study ended before it could be interrupted"
        time.sleep(0.002)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 1
    assert b"goes on from here" in said
    assert b"Traceback" not in said
    assert not (cut / "result.json").exists()
    kept = len(partial.read_bytes().splitlines())
    assert kept > 2
    again = run(*options, "-o", str(cut))
    assert again.returncode == 0, again.stderr
    assert (cut / "result.json").read_bytes() == (whole / "result.json").read_bytes()
    assert not partial.exists()


def test_a_closed_pipe_is_no_traceback(chat: Path) -> None:
    command = f"{' '.join(KVSCHED)} curve {chat} --points 100000 | head -1"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=os.environ
    )
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr


def test_a_full_disk_names_the_file_and_leaves_nothing(chat: Path, tmp_path: Path) -> None:
    # A limit on the size of files ends a write half-way, as a full disk does.
    target = tmp_path / "x.kvtrace"
    command = f"ulimit -f 4; exec {' '.join(KVSCHED)} trace convert {chat} -o {target}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"{target}: cannot be written" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_ended_from_outside_a_run_leaves_no_temporary_file(chat: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.kvtrace.gz"
    held = (
        "import sys, time; from kvsched.trace import columns; from kvsched.cli.main import main; "
        "columns._write = lambda trace, write: (write(b'part'), print('in it', flush=True), "
        "time.sleep(600)); "
        f"sys.argv = ['kvsched', 'trace', 'convert', {str(chat)!r}, '-o', {str(target)!r}]; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", held], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"in it\n"
        assert len(list(tmp_path.glob(".x.kvtrace.gz.*"))) == 1, "a part of the file is there"
        started.terminate()
        assert started.wait(60) != 0
    assert list(tmp_path.iterdir()) == []


def test_two_files_of_rows_are_written_both_or_not_at_all(chat: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "r.jsonl", tmp_path / "d.jsonl"
    run("replay", str(chat), "--policy", "lru", "--capacity-blocks", "9")  # compiled now
    command = (
        f"ulimit -f 400; exec {' '.join(KVSCHED)} replay {chat} --capacity-blocks 9 "
        f"--per-request {first} --dump-decisions {second}"
    )
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert f"{second}: cannot be written" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_study_that_cannot_be_made_leaves_no_folder(chat: Path, tmp_path: Path) -> None:
    policy = tmp_path / "odd.py"
    policy.write_text(
        "from kvsched import RankedPolicy\n\n\nclass Odd(RankedPolicy):\n    name = 'odd'\n\n"
        "    def prepare(self, setup):\n        raise RuntimeError('no')\n"
    )
    ended = study(chat, tmp_path / "out", "--policies", f"{policy}:Odd")
    assert ended.returncode == 2
    assert "its prepare fails (RuntimeError: no)" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_an_experiment_is_the_command_line_in_a_file(chat: Path, tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(
        f"trace: {os.path.relpath(chat, tmp_path)}\npolicies: [fifo]\npoints: 3\n"
        "capacity_blocks: 900\nagainst: preset:rag\noutput_dir: out\n"
    )
    good("run", str(file), cwd=tmp_path.parent)
    options = ("--policies", "fifo", "--points", "3", "--capacity-blocks", "900")
    good("study", str(chat), *options, "--against", "preset:rag", "-o", str(tmp_path / "typed"))
    for name in ("result.json", "against/result.json"):
        ran = json.loads((tmp_path / "out" / name).read_text())
        typed = json.loads((tmp_path / "typed" / name).read_text())
        assert ran.pop("command").startswith("kvsched run")
        assert typed.pop("command").startswith("kvsched study")
        assert ran == typed
    assert ran["experiment"]["points"] == 3
    first, second = (tmp_path / each / "comparison.json" for each in ("out", "typed"))
    assert first.read_bytes() == second.read_bytes()
    # Results alone give the same comparison.
    typed_folder = tmp_path / "typed"
    good(
        "study",
        str(typed_folder),
        "--against",
        str(typed_folder / "against"),
        "-o",
        str(tmp_path / "3"),
    )
    assert (tmp_path / "3" / "comparison.json").read_bytes() == first.read_bytes()


def test_a_result_alone_is_nothing_to_study(chat: Path, tmp_path: Path) -> None:
    study(chat, tmp_path / "out", "--policies", "fifo")
    ended = run("study", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert "--against says with what to compare it" in ended.stderr


def test_a_pipe_is_read_from_its_beginning(chat: Path, tmp_path: Path) -> None:
    rows = tmp_path / "chat.jsonl"
    good("trace", "convert", str(chat), "-o", str(rows))
    options = "--block-size 16 --policies fifo --points 2 --capacity-blocks 900"
    command = f"cat {rows} | {' '.join(KVSCHED)} study /dev/stdin {options} -o {tmp_path / 'p'}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    good("study", str(rows), *options.split(), "-o", str(tmp_path / "f"))
    piped, plain = (
        json.loads((tmp_path / each / "result.json").read_text())["trace"]["digest"]
        for each in ("p", "f")
    )
    assert piped == plain


@pytest.mark.parametrize(
    "command",
    [
        ("replay", "--capacity-blocks", "9", "--per-request"),
        ("replay", "--capacity-blocks", "9", "--dump-decisions"),
        ("trace", "convert", "-o"),
        ("trace", "slice", "--first", "3", "-o"),
        ("trace", "anonymize", "-o"),
    ],
    ids=" ".join,
)
def test_the_trace_itself_is_never_written(
    chat: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    rows = tmp_path / "chat.jsonl"
    good("trace", "convert", str(chat), "-o", str(rows))
    before = rows.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(rows)
    words = 2 if command[0] == "trace" else 1
    for output in (rows, tmp_path / "link.jsonl"):
        ended = run(*command[:words], str(rows), *command[words:], str(output))
        assert ended.returncode == 2, ended.stdout
        assert "is read here" in ended.stderr
    assert rows.read_bytes() == before


def test_the_command_in_a_result_names_no_folder(chat: Path, tmp_path: Path) -> None:
    folder = tmp_path / "secret"
    folder.mkdir()
    inner = folder / "t.kvtrace"
    inner.write_bytes(chat.read_bytes())
    options = ("--policies", "fifo", "--points", "2", "--capacity-blocks", "900")
    good("study", str(inner), *options, f"-o{tmp_path / 'a'}", f"--against={inner}")
    good(
        "study",
        "secret/t.kvtrace",
        *options,
        "-o",
        "b",
        "--against",
        "secret/t.kvtrace",
        cwd=tmp_path,
    )
    first = (tmp_path / "a" / "result.json").read_text()
    assert "secret" not in first
    assert "secret" not in (tmp_path / "a" / "report.html").read_text()
    second = json.loads((tmp_path / "b" / "result.json").read_text())
    assert json.loads(first)["command"].startswith("kvsched study t.kvtrace --policies fifo")
    assert second["command"].startswith("kvsched study t.kvtrace --policies fifo")


def test_what_cannot_work_is_refused_before_any_work(chat: Path, tmp_path: Path) -> None:
    for options, fault in (
        (("--against", "nothing.jsonl"), "nothing.jsonl: no such file"),
        (("--efficiency", "nan"), "efficiency must be above 0"),
        (("--engine", "vllm", "--sample", "1/2"), "a sample has holes"),
    ):
        ended = study(chat, tmp_path / "out", *options)
        assert ended.returncode == 2, ended.stdout
        assert fault in ended.stderr
        assert not (tmp_path / "out").exists()
    one = tmp_path / "one.jsonl"
    one.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}\n'
    )
    ended = run("study", str(one), "--sample", "1/2", "--points", "2", "-o", str(tmp_path / "one"))
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "one" / "result.json").read_text())["ceiling"]["hit_blocks"] == 0


def test_a_conversion_can_be_told_as_json(chat: Path, tmp_path: Path) -> None:
    said = json.loads(
        good("trace", "convert", str(chat), "-o", str(tmp_path / "x.kvtrace"), "--format", "json")
    )
    assert said["requests"] == 1500
    assert said["output"] == "x.kvtrace"


def test_a_study_writes_over_nothing_that_it_reads(chat: Path, tmp_path: Path) -> None:
    rows = tmp_path / "result.json"
    good("trace", "convert", str(chat), "-o", str(tmp_path / "c.jsonl"))
    (tmp_path / "c.jsonl").rename(rows)
    before = rows.read_bytes()
    asked = ("--block-size", "16", "--policies", "fifo", "--points", "2", "-o", str(tmp_path))
    (tmp_path / "against").mkdir()
    other = tmp_path / "against" / "result.json"
    other.write_bytes(before)
    for command in (
        ("study", str(rows), *asked),
        ("study", str(chat), *asked[2:], "--against", str(other)),
    ):
        ended = run(*command)
        assert ended.returncode == 2, ended.stdout
        assert "is read here" in ended.stderr
    experiment = tmp_path / "out" / "result.json"
    experiment.parent.mkdir()
    experiment.write_text('{"trace": "preset:chat", "points": 2, "output_dir": "."}')
    ended = run("run", str(experiment))
    assert ended.returncode == 2, ended.stdout
    assert rows.read_bytes() == other.read_bytes() == before
    assert "preset:chat" in experiment.read_text()
