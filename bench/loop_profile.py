"""What bounds the loop: a table of times, instructions and misses a reference.

    python bench/loop_profile.py          the table of docs/performance.md, to the terminal

Times are medians of replays that take turns, in one process. Instructions, misses and mispredicted
branches are cachegrind's, where valgrind is installed: what a process that replays a case five
times more has more than one that replays every case once, over five times the references. Its
machine has the caches of `CACHES`; code is generated for a plain x86-64, which valgrind knows.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import inputs
from kernel import CAPACITY, _bare
from kvsched.replay.run import replay
from kvsched.trace.model import Trace
from measure import alternate, table, timed

CASES = {
    "lru, in runs": ("lru", True),
    "lru, hook by hook": ("lru", False),
    "fifo": ("fifo", False),
    "lfu": ("lfu", False),
    "opt-fit": ("opt-fit", False),
    "opt": ("opt", False),
    "s3fifo": ("s3fifo", False),
    "sieve": ("sieve", False),
}
CACHES = ("--I1=32768,8,64", "--D1=32768,8,64", "--LL=2097152,16,64")
"""A core's own: 32 KiB of level 1, 2 MiB of level 2."""
PLAIN = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "PYTHONHASHSEED": "0"}
MORE = 5
EVENTS = ("Ir", "D1mr", "D1mw", "DLmr", "DLmw", "Bcm", "Bim")


def shuffled(trace: Trace) -> Trace:
    """The same trace with its nodes numbered at random: neighbours in a chain are no neighbours."""
    number = np.random.default_rng(0).permutation(trace.nodes).astype(np.int32)
    back = np.argsort(number)
    parent = np.where(trace.parent < 0, -1, number[trace.parent])
    return dataclasses.replace(
        trace,
        chains=number[trace.chains],
        parent=parent[back].astype(np.int32),
        depth=trace.depth[back],
        tokens=trace.tokens[back],
        key=trace.key[back],
    )


def _child(more: str) -> None:
    trace = inputs.conversation()
    for case, (policy, fast) in CASES.items():
        for _ in range(1 + MORE * (case == more)):
            replay(trace, policy, CAPACITY, fast=fast)


def _counted(more: str) -> dict[str, int]:
    """Cachegrind's events of a whole process; ``more`` is a case, or anything else for none."""
    command = [sys.executable, str(Path(__file__)), more]
    env = {**os.environ, **PLAIN}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "events")
        valgrind = [
            "valgrind", "--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes", *CACHES,
            f"--cachegrind-out-file={out}",
        ]  # fmt: skip
        subprocess.run(command, env=env, check=True)  # compiles, where it must
        subprocess.run([*valgrind, *command], env=env, check=True, capture_output=True)
        text = out.read_text(encoding="utf-8", errors="replace")
    names = re.search(r"^events: (.*)$", text, re.MULTILINE)
    sums = re.search(r"^summary: (.*)$", text, re.MULTILINE)
    assert names is not None  # noqa: S101  # cachegrind's format
    assert sums is not None  # noqa: S101
    return dict(zip(names[1].split(), map(int, sums[1].split()), strict=True))


def _events(references: int) -> dict[str, tuple[str, ...]]:
    """Instructions, misses of levels 1 and 2, mispredictions, a reference, by case."""
    if shutil.which("valgrind") is None:
        return {}
    once = _counted("none")
    found = {}
    for case in CASES:
        more = _counted(case)
        each = {name: (more[name] - once[name]) / (MORE * references) for name in EVENTS}
        found[case] = (
            f"{each['Ir']:.0f}",
            f"{each['D1mr'] + each['D1mw']:.2f}",
            f"{each['DLmr'] + each['DLmw']:.2f}",
            f"{each['Bcm'] + each['Bim']:.2f}",
        )
    return found


def main() -> int:
    """Measure, and print the table."""
    if len(sys.argv) > 1:
        _child(sys.argv[1])
        return 0
    trace = inputs.conversation()
    mixed = shuffled(trace)
    resident = np.zeros(trace.nodes, np.uint8)
    runs = [
        timed(functools.partial(replay, which, policy, CAPACITY, fast=fast))
        for policy, fast in CASES.values()
        for which in (trace, mixed)
    ]
    bare, *sides = alternate(
        timed(lambda: _bare(trace.starts, trace.chains, resident)), *runs, rounds=31
    )
    events = _events(trace.references)
    rows = [("loop that reads one byte of a node", "1", "", "", "", "", "", "")]
    for at, (case, (policy, _)) in enumerate(CASES.items()):
        near, far = (side.median for side in sides[2 * at : 2 * at + 2])
        evictions = replay(trace, policy, CAPACITY).evictions / trace.references
        rows.append(
            (
                case,
                f"{near / bare.median:.1f}",
                f"{far / near:.2f}",
                f"{evictions:.2f}",
                *events.get(case, ("", "", "", "")),
            )
        )
    head = ("", "time", "shuffled", "evictions", "instructions", "L1", "L2", "mispredicted")
    print(f"bare loop: {bare.median / trace.references * 1e9:.2f} ns a reference")
    print(table(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
