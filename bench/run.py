"""Measure kvsched against its peers and write the table.

    python bench/run.py               everything, to bench/RESULTS.md
    python bench/run.py --only NAME   one benchmark, to the terminal only: a table that mixes runs
                                      would compare one moment of a machine with another

Every figure is a ratio of medians of runs that take turns, in one go on one machine.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from inputs import InputMissingError
from measure import Section, render
from peers import HERE, PeerMissingError, pins

BENCHMARKS = {
    "libcachesim": "against_libcachesim",
    "kvcache-simulator": "against_kvcache_simulator",
    "flat-parity": "flat_parity",
    "kernel": "kernel",
    "curve": "curve",
    "reading": "reading",
    "startup": "startup",
    "study": "study",
    "memory": "memory",
    "sampling": "sampling",
    "live": "live",
    "live-latency": "live_latency",
    "live-lock": "live_lock",
    "serve": "serve",
    "serve-aisimulate": "serve_aisimulate",
    "serve-day": "serve_day",
    "sampling-memory": "sampling_memory",
    "live-soak": "live_soak",
    "live-memory": "live_memory",
}
"""In the order of the table; each is a module here with a `run`."""

ALONE = frozenset({"sampling-memory", "live-soak", "live-memory"})
"""Too long for the table: run with --only."""

IDLE = 0.5
"""A load average up to this much counts as a machine with nothing else to do."""


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _head(load: float) -> str:
    packages = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "numba", "typer")
    )
    against = ", ".join(f"{name} {version}" for name, version in pins().items())
    busy = (
        "" if load <= IDLE else " **The machine was not idle: measure again before relying on it.**"
    )
    return f"""\
# Measured

Written by `make bench`, whole, from one run on one machine. Times are the median of several runs
(the fastest in brackets); both sides take turns after a run that is not counted; a ratio is of the
medians. A bar that is not met says so.

- Machine: {_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB; load average when
  starting {load:.2f}.{busy}
- Versions: Python {platform.python_version()}, {packages}. Peers, each in an environment of its
  own: {against}.
"""


def measured(name: str) -> Section:
    """Run one benchmark; a missing trace or peer becomes its only line.

    Anything else that fails ends the run, and nothing is written.
    """
    print(f"measuring {name}", file=sys.stderr, flush=True)
    try:
        section: Section = importlib.import_module(BENCHMARKS[name]).run()
    except (InputMissingError, PeerMissingError) as error:
        return Section(name, f"**Not measured**: {error}.")
    return section


def main() -> int:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(description="Measure kvsched against its peers.")
    parser.add_argument("--only", choices=BENCHMARKS, help="one benchmark, to the terminal")
    only = parser.parse_args().only
    load = os.getloadavg()[0]
    if only:
        print(render(measured(only)))
        return 0
    from kvsched.foundation.files import write_whole

    sections = [measured(name) for name in BENCHMARKS if name not in ALONE]
    verdicts = [row.met for section in sections for row in section.rows if row.met is not None]
    summary = f"{sum(verdicts)} of {len(verdicts)} bars are met.\n"
    text = "\n".join([_head(load), summary, *(render(section) for section in sections)])
    write_whole(HERE / "RESULTS.md", text.rstrip("\n").encode() + b"\n")
    print(summary.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
