"""A launched engine is healthy or an error, and is gone afterwards whatever happens."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsched.engine import launch, supervisor
from kvsched.engine.kinds.base import EngineKind
from kvsched.engine.kinds.registry import KINDS, find_kind, kind_of_metrics
from kvsched.engine.launch import LaunchSettings, last_words, launched
from kvsched.engine.plain_http import ask
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError, UsageError

HERE = Path(__file__).parent
STUB = dataclasses.replace(KINDS["vllm"], name="stub", module="stub_server", environment={})


def settings(tmp_path: Path, *arguments: str, **more: object) -> LaunchSettings:
    return dataclasses.replace(
        LaunchSettings(
            kind=STUB,
            model="none",
            arguments=(*arguments, "--pids", str(tmp_path / "pids")),
            environment={"PYTHONPATH": str(HERE)},
            ready_timeout_s=30.0,
            grace_s=0.4,
        ),
        **more,
    )


def pids(tmp_path: Path) -> list[int]:
    told = tmp_path / "pids"
    return [int(line) for line in told.read_text().split()] if told.exists() else []


def alive(tmp_path: Path) -> list[int]:
    found = []
    for pid in pids(tmp_path):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        # Who has ended and was not waited for yet runs no more.
        if state != "Z":
            found.append(pid)
    return found


def soon(done: Callable[[], object]) -> bool:
    until = time.monotonic() + 20
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(done())


def test_it_runs_inside_the_block_and_not_after(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with launched(settings(tmp_path), log) as running:
        assert ask(Target(running.url, ""), "/health") == b""
        assert alive(tmp_path) == [running.pid]
        assert running.ended() is None
    assert alive(tmp_path) == []
    assert log.read_text() == "ready\n"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@pytest.mark.parametrize("arguments", [("--ignore",), ("--fork", "2"), ("--ignore", "--fork", "2")])
def test_children_and_deaf_engines_are_ended_too(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with launched(settings(tmp_path, *arguments), tmp_path / "log"):
        assert len(alive(tmp_path)) == 1 + 2 * ("--fork" in arguments)
    assert alive(tmp_path) == []


def test_without_the_sweep_orphans_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The supervisor is a process of its own: a copy of its start without the last step.
    broken = launch._FIND.replace(
        "sys.exit(main())",
        "import kvsched.engine.supervisor as it\nit._sweep = lambda group: None\nsys.exit(main())",
    )
    monkeypatch.setattr(launch, "_FIND", broken)
    with launched(settings(tmp_path, "--fork", "1"), tmp_path / "log"):
        pass
    left = alive(tmp_path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert len(left) == 1


def test_an_error_in_the_block_ends_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), launched(settings(tmp_path), tmp_path / "log"):
        raise ZeroDivisionError
    assert pids(tmp_path)
    assert alive(tmp_path) == []


def test_an_early_death_is_told_with_the_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(KvschedError, match=r"ended with status 1; its last words: .*no such model"),
        launched(settings(tmp_path, "--die-at-start", "--fork", "1"), tmp_path / "log"),
    ):
        pass
    assert alive(tmp_path) == []


def test_the_cause_of_a_death_is_told_not_what_came_of_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    lines = ["starting", "ValueError: too little memory (20 of 24 GiB)", "Traceback", "^^^^"]
    log.write_text("\n".join([*lines, "RuntimeError: see the root cause above", "bye"]))
    said = last_words(log)
    assert said == (
        f"; its first error: ValueError: too little memory (20 of 24 GiB) (the rest is in {log})"
    )
    log.write_text("one\ntwo\n")
    assert last_words(log) == "; its last words: one | two"
    assert last_words(tmp_path / "none") == ""


def test_a_death_in_the_block_can_be_asked_for(tmp_path: Path) -> None:
    with launched(settings(tmp_path, "--die-after", "0.1"), tmp_path / "log") as running:
        assert soon(running.ended)
        assert str(running.ended()).startswith("the engine ended with status 3; its last words:")


def test_never_healthy(tmp_path: Path) -> None:
    told: list[float] = []
    with (
        pytest.raises(KvschedError, match=r"not healthy after .* \(GET "),
        launched(
            settings(tmp_path, "--never-healthy", ready_timeout_s=0.3),
            tmp_path / "log",
            told.append,
        ),
    ):
        pass
    assert alive(tmp_path) == []
    assert told == sorted(told)
    assert told


def test_an_engine_that_runs_already_is_not_taken_for_ours(tmp_path: Path) -> None:
    with socket.create_server((launch.HOST, 0)) as other:
        port = other.getsockname()[1]
        asked = settings(tmp_path, port=port)
        with (
            pytest.raises(UsageError, match=f"--port {port}: Address already in use"),
            launched(asked, tmp_path / "log"),
        ):
            pass
    assert pids(tmp_path) == []
    # Nothing else was wrong.
    with launched(asked, tmp_path / "log") as running:
        assert running.url.endswith(str(port))


def test_a_loud_engine_is_kept_whole(tmp_path: Path) -> None:
    with launched(settings(tmp_path, "--loud"), tmp_path / "log"):
        pass
    lines = (tmp_path / "log").read_text().splitlines()
    assert len([line for line in lines if line.startswith("a line")]) == 20_000


def test_no_such_python(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="No such file"),
        launched(settings(tmp_path, python="/no/such/python"), tmp_path / "log"),
    ):
        pass


SCRIPT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sys.path[:0] = {paths!r}
import test_launch as here
from pathlib import Path
folder = Path({folder!r})
with here.launched(here.settings(folder, "--ignore", "--fork", "1"), folder / "log"):
    print("up", flush=True)
    import time
    time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_with_who_started_it(tmp_path: Path, how: signal.Signals) -> None:
    source = Path(launch.__file__).parents[2]
    script = SCRIPT.format(paths=[str(HERE), str(source)], folder=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"up\n"
        assert len(alive(tmp_path)) == 2
        starter.send_signal(how)
        starter.wait()
    assert soon(lambda: not alive(tmp_path))


def test_the_supervisor_killed_takes_the_engine_with_it(tmp_path: Path) -> None:
    with launched(settings(tmp_path), tmp_path / "log") as running:
        running.supervisor.kill()
        running.supervisor.wait()
    assert soon(lambda: not alive(tmp_path))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_both_sides_say_whether_they_cache(kind: EngineKind) -> None:
    off = kind.caching(["--seed", "1", *kind.caching_on], on=False)
    assert off == ["--seed", "1", *kind.caching_off]
    on = kind.caching(["--seed", "1", *kind.caching_off], on=True)
    assert on == ["--seed", "1", *kind.caching_on]
    command = kind.command("python", "m", "127.0.0.1", 81, kind.reporting(on))
    assert command[:3] == ["python", "-m", kind.module]
    assert set(kind.reports_cached) <= set(command)
    assert kind.reporting(kind.reporting(on)) == kind.reporting(on)


def test_vllm_turns_caching_off_by_a_flag() -> None:
    arguments = KINDS["vllm"].caching(["--enable_prefix_caching"], on=False)
    assert arguments == ["--no-enable-prefix-caching"]


def test_what_is_not_the_users_to_name() -> None:
    with pytest.raises(UsageError, match=r"after -- stand the engine's own options"):
        KINDS["vllm"].command("python", "m", "127.0.0.1", 81, ["--port=9"])
    with pytest.raises(UsageError, match="use vllm, sglang"):
        find_kind("none")


def test_metrics_tell_the_kind() -> None:
    assert kind_of_metrics("vllm:prompt_tokens 1\n") is KINDS["vllm"]
    assert kind_of_metrics("sglang:page_size 1\n") is KINDS["sglang"]
    assert kind_of_metrics("other 1\n") is None
    assert supervisor.main is not None
