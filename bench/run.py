"""Measure kvsched against its peers and write the table.

    python bench/run.py                every table: RESULTS.md, RESULTS-live.md, RESULTS-serve.md,
                                       RESULTS-load.md
    python bench/run.py --table NAME   one of them: replay, live, serve or load
    python bench/run.py --only NAME    one benchmark, to the terminal only: a table that mixes runs
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

TABLES = {
    "replay": {
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
    },
    "live": {
        "live": "live",
        "live-latency": "live_latency",
        "live-lock": "live_lock",
    },
    "serve": {
        "serve": "serve",
        "serve-aisimulate": "serve_aisimulate",
        "serve-day": "serve_day",
    },
    "load": {
        "load": "load",
    },
}
"""Benchmarks by table, in its order; each is a module here with a `run`."""

BENCHMARKS = {name: module for table in TABLES.values() for name, module in table.items()} | {
    "sampling-memory": "sampling_memory",
    "live-memory": "live_memory",
    "live-soak": "live_soak",
    "serve-agreement": "serve_agreement",
}
"""With those that are too long for a table: run them with --only."""

FILES = {"replay": "RESULTS.md"} | {
    table: f"RESULTS-{table}.md" for table in ("live", "serve", "load")
}

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


def _head(table: str, load: float) -> str:
    packages = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "numba", "typer")
    )
    against = ", ".join(f"{name} {version}" for name, version in pins().items())
    busy = (
        "" if load <= IDLE else " **The machine was not idle: measure again before relying on it.**"
    )
    return f"""\
# Measured: {table}

Written by `bench/run.py --table {table}`, whole, from one run on one machine. Times are the median
of several runs (the fastest in brackets); both sides take turns after a run that is not counted; a
ratio is of the medians. A bar that is not met says so.

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


def write_table(table: str) -> None:
    """Measure all of a table and write its file, whole or not at all."""
    from kvsched.foundation.files import write_whole

    load = os.getloadavg()[0]
    sections = [measured(name) for name in TABLES[table]]
    verdicts = [row.met for section in sections for row in section.rows if row.met is not None]
    summary = f"{sum(verdicts)} of {len(verdicts)} bars are met.\n"
    text = "\n".join([_head(table, load), summary, *(render(section) for section in sections)])
    write_whole(HERE / FILES[table], text.rstrip("\n").encode() + b"\n")
    print(f"{table}: {summary.strip()}")


def main() -> int:
    """Parse the command line, measure, write."""
    parser = argparse.ArgumentParser(description="Measure kvsched against its peers.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--only", choices=BENCHMARKS, help="one benchmark, to the terminal")
    what.add_argument("--table", choices=TABLES, help="one table, to its file")
    asked = parser.parse_args()
    if asked.only:
        print(render(measured(asked.only)))
        return 0
    for table in [asked.table] if asked.table else TABLES:
        write_table(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
