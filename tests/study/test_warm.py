"""Compiling ahead: what was warmed is loaded, and nothing is broken by an interruption."""

from __future__ import annotations

import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import kvsched
from kvsched.foundation import jit
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.policy.registry import built_in, make
from kvsched.study import warm as module
from kvsched.study.run import Options, study
from kvsched.study.warm import KINDS, LIVE, compile_ahead, do_job, tiny_trace, warm
from kvsched.trace.generate import generate, preset

pytestmark = pytest.mark.skipif(
    not jit.compilation_enabled(), reason="nothing is compiled where compilation is off"
)

POLICIES = ["lru", "lfu", "opt-fit"]
COMPILED = """
from kvsched.foundation.jit_cache import TALLY
print("compiled", TALLY.compiled)
"""
STUDY = """
from kvsched.trace.generate import generate, preset
from kvsched.study.run import Options, study
from kvsched.trace.stats import trace_stats
trace = generate(preset("chat", requests=200), 1)
trace_stats(trace)
"""


def files(cache: Path) -> dict[str, bytes]:
    kept = (path for path in cache.rglob("*") if path.is_file())
    return {str(path.relative_to(cache)): path.read_bytes() for path in kept}


def in_a_new_process(cache: Path, program: str, **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "KVSCHED_CACHE_DIR": str(cache), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("warm") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSCHED_CACHE_DIR", str(cache))
        told: list[tuple[str, int, int]] = []
        found = warm(POLICIES, 2, lambda *step: told.append(step))
    assert found.compiled > 2 * len(POLICIES)
    assert [done for _, done, _ in told] == list(range(1, found.jobs + 1))
    return cache


def test_a_second_time_nothing_is_done(warmed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(warmed))
    before = files(warmed)
    assert warm(POLICIES, 2).compiled == 0
    assert files(warmed) == before


def test_what_was_warmed_is_loaded(warmed: Path, tmp_path: Path) -> None:
    before = files(warmed)
    run = "from kvsched.replay.run import replay\n" + STUDY
    for policy in POLICIES:
        run += f"replay(trace, '{policy}', 300, fast=False)\n"
    run += "from kvsched.replay.curve import lru_curve\nlru_curve(trace)\n"
    run += "from kvsched.study.reuse import *\ntime_to_reuse(trace, reuse_gaps(trace))\n"
    run += "hottest(replay(trace, 'lru', 300))\nreturned(replay(trace, 'lru', 300))\n"
    assert in_a_new_process(warmed, run + COMPILED) == "compiled 0"
    assert files(warmed) == before
    # The count is no constant: what was not warmed is compiled.
    shutil.copytree(warmed, tmp_path / "copy")
    other = STUDY + "from kvsched.replay.run import replay\nreplay(trace, 'fifo', 300)\n"
    assert in_a_new_process(tmp_path / "copy", other + COMPILED) == "compiled 1"


def test_every_loop_of_the_package_is_warmed(warmed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(warmed))
    loops: dict[str, Any] = {}
    for found in pkgutil.walk_packages(kvsched.__path__, "kvsched."):
        if found.name.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(found.name)).values():
            if isinstance(value, jit._Lazy):
                loops[f"{value.function.__module__}.{value.function.__name__}"] = value
    assert len(loops) > 20
    assert [name for name, loop in loops.items() if not jit.is_kept(loop)] == []


def test_a_live_cache_starts_with_compiled_code(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = "from kvsched.cache import KVCacheScheduler, Request\n"
    run += "made = KVCacheScheduler(8, 16, policy='fifo')\n"
    run += "made.release(made.acquire(Request(hashes=[1, 2])).lease)\n"
    answer = f"from kvsched.study.warm import do_job\nprint(do_job('{LIVE} fifo')['kept'] > 0)\n"
    assert in_a_new_process(cache, answer) == "True"
    assert in_a_new_process(cache, run + COMPILED) == "compiled 0"


@pytest.mark.parametrize("name", built_in())
def test_every_policy_runs_on_the_tiny_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, so that it is quick: the trace has every column that a policy may need."""
    monkeypatch.setattr(module, "replay", lambda *a, **k: kvsched.replay(*a, **k, compiled=False))
    for kind in KINDS:
        assert set(do_job(f"{kind} {name}")) == {"compiled", "kept"}


def start_warming(cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "kvsched", "warm", "--policies", "lfu,fifo", "--jobs", "2"],
        env={**os.environ, "KVSCHED_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_warming_leaves_nothing_broken(tmp_path: Path, how: signal.Signals) -> None:
    cache = tmp_path / "cache"
    warming = start_warming(cache)
    while not list(cache.rglob("*.nbc")):
        assert warming.poll() is None
        time.sleep(0.02)
    # As a terminal does, to the whole group; nobody can catch the last, not even the children.
    os.killpg(warming.pid, how)
    _, said = warming.communicate()
    assert warming.returncode != 0
    assert "Traceback" not in said
    assert said.count("\n") <= 1
    run = "from kvsched.replay.run import replay\n" + STUDY
    run += "print(replay(trace, 'lfu', 300).hit_blocks)\n"
    assert in_a_new_process(cache, run) == in_a_new_process(tmp_path / "other", run)


def kvsched_warm(cache: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvsched", "warm", *arguments],
        env={**os.environ, "KVSCHED_CACHE_DIR": str(cache), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_says_what_it_did(warmed: Path) -> None:
    ended = kvsched_warm(warmed, "--policies", "lru, lfu,opt-fit")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "Nothing to do: everything is compiled.\n"


def test_what_cannot_be_warmed_is_said_in_one_line(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    for arguments, env, fault in (
        ((), {}, f"{blocked}/below: compiled code cannot be kept there"),
        (("--policies", "lfu,lrv"), {}, "policy lrv is not built in"),
        (("--policies", "own.py:Own"), {}, "policy own.py:Own is not built in"),
        ((), {"KVSCHED_COMPILED": "0"}, "nothing is compiled"),
    ):
        ended = kvsched_warm(blocked / "below", *arguments, **env)
        assert ended.returncode == 2
        assert fault in ended.stderr
        assert ended.stderr.count("\n") == 1
        assert ended.stdout == ""


def test_what_does_not_compile_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path))
    for answer, fault in (
        ({"error": "TypingError: no"}, "TypingError: no"),
        ({"compiled": 1, "kept": 0}, "could not be written"),
    ):
        monkeypatch.setattr(
            module, "in_children", lambda *_, answer=answer: iter([("reading", answer)])
        )
        with pytest.raises(KvschedError, match=fault):
            warm(["lfu"])


def test_a_study_compiles_ahead_what_is_missing(warmed: Path, tmp_path: Path) -> None:
    """Everything but its own policy, which no child knows; nothing where all is there."""
    (tmp_path / "own.py").write_text(
        "from kvsched.policy.lfu import LFU\nclass Own(LFU):\n    name = 'own'\n"
    )
    run = STUDY + (
        "told = []\n"
        f"options = Options(policies=('lfu', r'{tmp_path}/own.py:Own'), points=2, threads=2)\n"
        "study(trace, 300, options=options, report=lambda *step: told.append(step))\n"
        "print([step for step in told if step[0] == 'compiling'][-1:])\n"
    )
    cold = in_a_new_process(tmp_path / "cold", run)
    assert cold == "[('compiling', 4, 4)]"  # lfu, opt-fit, opt, and what analyses
    assert in_a_new_process(tmp_path / "cold", run + COMPILED) == "[]\ncompiled 0"
    # With opt alone missing there is nothing to share out.
    assert in_a_new_process(warmed, run) == "[]"


def test_children_that_fail_cost_a_study_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path))
    trace = generate(preset("chat", requests=100), 1)
    asked = []

    def broken(_module: str, jobs: list[str], _children: int) -> Any:
        asked.extend(jobs)
        return iter([(job, {"error": "its process ended"}) for job in jobs])

    monkeypatch.setattr(module, "in_children", broken)
    monkeypatch.setattr(sys.modules["kvsched.replay.run"], "_loops", {})
    options = Options(policies=("lfu",), points=2, threads=2)
    result = study(trace, 100, options=options)
    assert asked == ["blocks lfu", "blocks opt-fit", "blocks opt", "analysing"]
    asked.clear()
    again = study(trace, 100, options=Options(policies=("lfu",), points=2, threads=1))
    assert asked == []
    assert again.policies == result.policies


def test_one_core_compiles_nothing_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(module, "cores", lambda: 1)
    compile_ahead([make("lfu"), make("fifo")], weighted=False)
    assert not list(tmp_path.iterdir())


def test_the_cache_is_checked_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(module, "in_children", lambda *_: pytest.fail("started"))
    with pytest.raises(UsageError, match="cannot be kept there"):
        warm()


def test_the_tiny_trace_is_one() -> None:
    assert not tiny_trace().weighted
    assert tiny_trace(weighted=True).weighted
