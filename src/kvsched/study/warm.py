"""Compiling ahead: every kernel that a study, a replay or a reader uses, in processes.

Numba's compiler holds the GIL, so threads gain nothing. A job is a name; a child does it by running
what it names on a tiny trace, and so compiles, or loads from the cache, just what a user's run
would. ``python -m kvsched.study.warm`` is such a child.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvsched.foundation.children import answer_jobs, can_start, in_children
from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.jit import cache_folder, compilation_enabled
from kvsched.policy.base import Policy
from kvsched.policy.registry import built_in, find
from kvsched.replay.engine import find_engine
from kvsched.replay.run import is_compiled, replay
from kvsched.replay.sweep import cores
from kvsched.trace.model import Labels, Origin, Trace

MOST_CHILDREN = 8
"""A child that compiles takes about 0.2 GB of memory."""

Report = Callable[[str, int, int], None]
"""Told (what, done, all)."""

_READING = """\
{"timestamp": 0, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 1100, "output_length": 9, "hash_ids": [1, 3, 4]}
"""
_TABLE = """\
TIMESTAMP,ContextTokens,GeneratedTokens,User
2024-05-01 10:00:00.5,700,9,a
2024-05-01 10:00:01.5,800,9,b
"""
_NUMBERED = """\
when,prompt,answer,ids,session
0.5,700,9,"[1, 2]",a
1.5,1100,9,"[1, 3, 4]",b
"""


@dataclass(frozen=True)
class Warmed:
    """What compiling ahead did."""

    jobs: int
    compiled: int
    """Kernels that had to be compiled: 0 where the cache had all."""


def tiny_trace(weighted: bool = False) -> Trace:
    """Return a trace of five requests that has every column; with blocks of their own sizes."""
    chains = [(0, 1), (0, 2, 3), (4,), (0, 1), (5, 6)]
    lengths = [len(chain) for chain in chains]
    requests = len(chains)
    labels = Labels(np.array([0, 0, 1, 0, 1], np.int32), ("a", "b"))
    return Trace(
        time_s=np.arange(float(requests)),
        input_tokens=np.array(lengths, np.int64) * 16,
        output_tokens=np.full(requests, 2, np.int64),
        starts=np.cumsum([0, *lengths]).astype(np.int64),
        chains=np.concatenate([np.array(chain, np.int32) for chain in chains]),
        parent=np.array([-1, 0, 0, 2, -1, -1, 5], np.int32),
        depth=np.array([0, 1, 1, 2, 0, 0, 1], np.int32),
        tokens=np.full(7, 16, np.int32),
        key=np.arange(7, dtype=np.int64),
        block_size=0 if weighted else 16,
        origin=Origin("tiny", "made", "s"),
        tenant=labels,
        session=labels,
        type=labels,
        model=labels,
        turn=np.array([1, 2, 1, 3, 2], np.int32),
        priority=np.zeros(requests, np.int32),
        deadline_s=np.full(requests, 100.0),
        delay_s=np.ones(requests),
    )


def _read() -> None:
    from kvsched.trace.build import _fill_table
    from kvsched.trace.load import load_trace

    # Only a long trace outgrows its first table.
    _fill_table(np.full(16, -1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64), 1)
    with tempfile.TemporaryDirectory() as folder:
        for name, text, options in (
            ("rows.jsonl", _READING, {}),
            ("azure.csv", _TABLE, {}),
            (
                "table.csv",
                _NUMBERED,
                {"columns": "time=when,input=prompt,output=answer,blocks=ids"},
            ),
        ):
            path = Path(folder, name)
            path.write_text(text, encoding="utf-8")
            load_trace(path, **options)  # type: ignore[arg-type]


def _generate() -> None:
    from kvsched.trace.generate import generate, generate_sampled, preset

    workload = preset("chat", requests=40)
    generate(workload, 0)
    generate_sampled(workload, 0, lambda _references: 2)


def _analyse() -> None:
    """A curve, and the parts of a study that are no replay."""
    from kvsched.replay.curve import lru_curve
    from kvsched.study.reuse import hottest, path_tokens, returned, reuse_gaps, time_to_reuse

    trace = tiny_trace()
    time_to_reuse(trace, reuse_gaps(trace))
    result = replay(trace, "lru", 2)
    hottest(result)
    returned(result)
    path_tokens(tiny_trace(weighted=True))
    lru_curve(trace)


def _sample() -> None:
    from kvsched.replay.curve import lru_curve
    from kvsched.trace.load import load_trace
    from kvsched.trace.reading import Sampling
    from kvsched.trace.sample import sample

    lru_curve(sample(tiny_trace(), 2))
    sample(tiny_trace(weighted=True), 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_text(_READING, encoding="utf-8")
        load_trace(path, sampling=Sampling(lambda _references: 2))


def _engines() -> None:
    """What the engines' rules share, and their own orders."""
    trace = tiny_trace()
    for engine in ("vllm", "sglang"):
        rules = find_engine(engine)(trace)
        rules.replay(None, 8)
        rules.ceiling()


def _edit() -> None:
    from kvsched.trace.merge import merge_traces
    from kvsched.trace.slice import slice_trace
    from kvsched.trace.stats import trace_stats

    trace = tiny_trace()
    trace_stats(trace)
    slice_trace(trace, first=3)
    merge_traces([trace, trace], share_blocks=True)


def _restore() -> None:
    """What restoring a saved cache needs beside its policy's kernel."""
    from kvsched.cache.restored import _reindex
    from kvsched.cache.state import new_names

    _reindex(new_names(2, 1), np.zeros(2, np.uint8))


def _live(policy: str) -> None:
    from kvsched.cache import KVCacheScheduler, Request

    made = KVCacheScheduler(4, 16, policy=policy)
    for first in range(3):
        with made.acquire(Request(hashes=[first, 9])):
            pass


def _simulate() -> None:
    from kvsched.serve.served import simulate

    simulate(tiny_trace(), model="llama-3.1-8b", gpu="h100", band=False)


_SHARED: dict[str, Callable[[], None]] = {
    "reading": _read,
    "generating": _generate,
    "analysing": _analyse,
    "sampling": _sample,
    "engines": _engines,
    "editing": _edit,
    "restoring": _restore,
}
"""What is compiled beside the policies."""


def do_job(job: str) -> dict[str, Any]:
    """Run what ``job`` names on a tiny trace; say how many kernels were compiled, and kept."""
    from kvsched.foundation.jit_cache import TALLY

    compiled, kept = TALLY.compiled, TALLY.kept
    kind, _, name = job.partition(" ")
    if kind in _SHARED:
        _SHARED[kind]()
    elif kind == SIMULATING:
        _simulate()
    elif kind == LIVE:
        _live(name)
    elif kind == TOKENS:
        replay(tiny_trace(weighted=True), name, 32)
    else:
        replay(tiny_trace(), name, 8, fast=False, engine="vllm" if kind == LIMITS else "generic")
    return {"compiled": TALLY.compiled - compiled, "kept": TALLY.kept - kept}


BLOCKS, TOKENS, LIMITS = KINDS = ("blocks", "tokens", "limits")
"""Forms of the loop: nodes count 1, or as they are large, or an engine limits what is hit."""
LIVE = "live"
"""The live cache's kernel."""
SIMULATING = "simulating"
"""The timed simulation's loop, as `kvsched simulate` runs it without other options."""


def check_cache() -> Path:
    """Return the folder of compiled code. Raises UsageError where nothing can be kept in it."""
    folder = cache_folder()
    if not compilation_enabled():
        raise UsageError("KVSCHED_COMPILED=0: nothing is compiled")
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"{folder}: compiled code cannot be kept there ({error.strerror}): "
            "KVSCHED_CACHE_DIR names another folder"
        ) from error
    return folder


def warm(
    policies: Sequence[str] | None = None,
    children: int = 0,
    report: Report | None = None,
    live: bool = False,
    simulating: bool = False,
) -> Warmed:
    """Compile ``policies``, all built-in ones if None, and what readers and studies share.

    With ``live`` the kernels of `kvsched.KVCacheScheduler` too, for policies that can run live;
    with ``simulating`` the loop of `kvsched simulate`.
    In ``children`` processes (0: one a core, at most `MOST_CHILDREN`). What the cache has is only
    loaded. Cost: 1 to 4 s of a core a policy, with ``live`` 10 to 20 s. Raises UsageError for a
    policy that is not built in or a cache that cannot be written, and KvschedError where something
    does not compile.
    """
    names = built_in() if policies is None else list(policies)
    for name in names:
        if name not in built_in():
            raise UsageError(
                f"policy {name} is not built in (known: {', '.join(built_in())}): "
                "others are compiled when they first run"
            )
    folder = check_cache()
    # The longest first: what is left for the end is short.
    jobs = [f"{kind} {name}" for kind in KINDS for name in reversed(names)]
    if live:
        jobs += [f"{LIVE} {name}" for name in names if not find(name).looks_ahead]
    jobs = [*_SHARED, *([SIMULATING] if simulating else []), *jobs]
    compiled = 0
    answers = in_children(__name__, jobs, children or min(cores(), MOST_CHILDREN))
    for done, (job, answer) in enumerate(answers, 1):
        if "error" in answer:
            raise KvschedError(f"{job}: it could not be compiled ({answer['error']})")
        if answer["kept"] < answer["compiled"]:
            raise KvschedError(f"{folder}: compiled code could not be written")
        compiled += answer["compiled"]
        if report is not None:
            report("compiling", done, len(jobs))
    return Warmed(len(jobs), compiled)


def compile_ahead(
    policies: Iterable[Policy],
    weighted: bool,
    children: int = 0,
    report: Report | None = None,
    limited: bool = False,
) -> None:
    """Compile in processes what a study of ``policies`` needs and the cache lacks.

    Does nothing on one core, or where it gains nothing; a user's own policies, and what fails, are
    compiled when they run.
    """
    from kvsched.study import reuse

    workers = children or min(cores(), MOST_CHILDREN)
    if workers < 2 or not compilation_enabled() or not can_start():
        return
    classes: list[type[Policy]] = list(dict.fromkeys(type(policy) for policy in policies))
    wanted = [
        policy.name
        for policy in classes
        if policy.name in built_in() and find(policy.name) is policy
        if (policy.name != "lru" or weighted or limited)
        and not is_compiled(policy, weighted, limited)
    ]
    kind = LIMITS if limited else TOKENS if weighted else BLOCKS
    jobs = [f"{kind} {name}" for name in wanted]
    if limited and jobs:
        jobs.insert(0, "engines")
    if not reuse.is_compiled():
        jobs.append("analysing")
    folder = cache_folder()
    if len(jobs) < 2 or (folder.exists() and not os.access(folder, os.W_OK)):
        return
    for done, _ in enumerate(in_children(__name__, jobs, workers), 1):
        if report is not None:
            report("compiling", done, len(jobs))


if __name__ == "__main__":
    answer_jobs(do_job)
