"""The step-through in a terminal, run as a user runs it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvsched.lesson.play_policies import record
from kvsched.lesson.play_requests import DEFAULT_CAPACITY, DEFAULT_REQUESTS, read_requests
from kvsched.lesson.play_terminal import Walk
from kvsched.lesson.play_words import tell
from kvsched.lesson.recording import Recording

PLAY = [sys.executable, "-m", "kvsched", "lesson", "play"]
WIDE = {**os.environ, "COLUMNS": "220", "TERM": "xterm", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PLAY, *arguments],
        cwd=cwd,
        env=WIDE,
        input="",
        capture_output=True,
        text=True,
        check=False,
    )


def in_terminal(keys: str, *arguments: str) -> str:
    """Type ``keys`` in a terminal, and return what it showed, without its codes."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            shown.extend(part)

    started = subprocess.Popen(
        [*PLAY, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=WIDE
    )
    reader = threading.Thread(target=read)
    reader.start()
    os.write(ours, keys.encode())
    try:
        assert started.wait(timeout=60) == 0
    finally:
        started.kill()
        started.wait()
        os.close(theirs)
        reader.join(timeout=10)
        os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "")


def default(policy: str = "chapter", capacity: int = DEFAULT_CAPACITY) -> Recording:
    return record(DEFAULT_REQUESTS, capacity, policy)


def check_in_order(text: str, sentences: list[str]) -> None:
    at = 0
    for sentence in sentences:
        at = text.find(sentence, at)
        assert at >= 0, f"not shown, or out of order: {sentence}"
        at += len(sentence)


def test_without_a_terminal_every_step_is_printed() -> None:
    ended = run("37", "--terminal")
    assert ended.returncode == 0, ended.stderr
    check_in_order(ended.stdout, [tell(step.said, "en") for step in default().steps])
    assert "\x1b" not in ended.stdout
    for step in default().steps:
        if step.kind == "stale":
            assert step.popped is not None
            record = default().records[step.popped]
            assert f"✗ ({record.score:.4f}, {record.last_used}, {record.prefix}) stale" in (
                ended.stdout
            )
    assert "3 + 0.5000 − 0.1500 = 3.3500" in ended.stdout


def test_the_check_of_order_can_fail() -> None:
    said = [tell(step.said, "en") for step in default().steps]
    with pytest.raises(AssertionError):
        check_in_order("\n".join(said), [*said[:5], said[2]])


def test_policies_capacity_requests_and_language() -> None:
    ended = run(
        *("37", "--terminal", "--requests", "a:5,b:6,a:5,c:7,b:6", "--capacity-bytes", "12"),
        *("--policy", "lru", "--policy", "opt", "--language", "zh"),
    )
    assert ended.returncode == 0, ended.stderr
    requests = read_requests("a:5,b:6,a:5,c:7,b:6")
    said = [
        tell(step.said, "zh")
        for policy in ("lru", "opt")
        for step in record(requests, 12, policy).steps
    ]
    check_in_order(ended.stdout, said)


def test_keys_in_a_terminal() -> None:
    shown = in_terminal("n\n21\np\n\nc 60\no lru\n999\nc 10\no no\nq\n", "37", "--terminal")
    steps, small, lru = default().steps, default(capacity=60).steps, default("lru", 60).steps
    expected = [steps[0], steps[1], steps[20], steps[19], steps[20], small[0], lru[0]]
    check_in_order(shown, [tell(step.said, "en") for step in expected])
    assert shown.count("Step ") == 10
    check_in_order(shown, ["'999' is none of these", "more than the capacity of 10", "policy no"])


def test_the_end_of_the_input_ends_it() -> None:
    assert "Step 1 of" in in_terminal("\x04", "37", "--terminal", "--language", "en")


def test_what_keys_do() -> None:
    walk = Walk(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter", "en")
    last = len(walk.run.steps) - 1
    for given, step in (("p", 0), ("n", 1), ("", 2), ("10", 9), ("p", 8), (str(last + 1), last)):
        assert walk.act(given) is None
        assert walk.step == step
    assert walk.act("n") is None
    assert walk.step == last
    for wrong in ("0", str(last + 2), "x", "c", "c x", "o", "c 59", "o none", "9" * 5000, "²"):
        assert walk.act(wrong), wrong
        assert (walk.step, walk.run.capacity, walk.run.policy) == (last, 100, "chapter")


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    ended = run("37", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    page = tmp_path / "play-37.html"
    assert ended.stdout == "play-37.html: open it in a browser\n"
    first = page.read_bytes()
    assert run("37", "--output", "again.html", cwd=tmp_path).returncode == 0
    assert (tmp_path / "again.html").read_bytes() == first, "the same bytes"
    requests = tmp_path / "requests.txt"
    requests.write_text("a 5\nb 6\n", encoding="utf-8")
    assert run("37", "--requests", "requests.txt", "-o", "own.html", cwd=tmp_path).returncode == 0
    for wrong in (
        ("36",),
        ("37", "--language", "fr"),
        ("37", "--policy", "none"),
        ("37", "--policy", "priority"),
        ("37", "--capacity-bytes", "59"),
        ("37", "--terminal", "--output", "new.html"),
        ("37", "--requests", "requests.txt", "--output", "requests.txt"),
        ("37", "--requests", "none.txt"),
        ("37", "--output", "none/new.html"),
    ):
        ended = run(*(wrong if "--output" in wrong else (*wrong, "-o", "new.html")), cwd=tmp_path)
        assert ended.returncode == 2, wrong
        assert len(ended.stderr.splitlines()) == 1
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "new.html").exists()
    assert requests.read_text(encoding="utf-8") == "a 5\nb 6\n"
