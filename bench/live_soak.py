"""Five million mixed operations from eight threads on one cache; a few minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from measure import Row, Section, span, table
from peers import HERE

OPERATIONS, THREADS = 5_000_000, 8
FLAT = 1.02
"""Resident memory at the end over that at a fifth of the work."""

SIDES = """\
{threads} threads do {operations:,} operations on one `KVCacheScheduler` with tenants of every
kind: acquire, extend, fork, release (one in twenty after a failure), pin, unpin, and now and then
another policy. Then everybody lets go, and `check()` verifies every invariant."""


def child(*arguments: object) -> dict[str, Any]:
    """What `live_child.py` printed."""
    command = [sys.executable, str(HERE / "live_child.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        raise RuntimeError(f"live_child.py {arguments[0]} ended with code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def flat(found: dict[str, Any]) -> Row:
    """Resident memory at a fifth of the work and at its end."""
    resident = found["resident_bytes"]
    early, late = resident[1], resident[-1]
    return Row(
        "resident memory, at the end and after a fifth",
        f"{late / 2**20:.1f} MiB",
        f"{early / 2**20:.1f} MiB",
        f"{late / early:.3f}×",
        f"≤ {FLAT:g}×",
        late <= FLAT * early,
    )


def run() -> Section:
    """Measure."""
    found = child("soak", OPERATIONS, THREADS)
    section = Section("Soak", SIDES.format(threads=THREADS, operations=OPERATIONS))
    rate = found["seconds"] / found["operations"]
    left = sum(found[each] for each in ("leases", "held_blocks", "pinned_blocks", "waiting"))
    section.rows += [
        Row(
            "operations", f"{found['operations']:,} in {span(found['seconds'])}, {span(rate)} each"
        ),
        Row(
            "left when all let go: leases, held or pinned blocks, waiting",
            f"{left:g}",
            bar="0",
            met=left == 0,
        ),
        flat(found),
    ]
    section.tables.append(table(("operation", "times"), sorted(found["done"].items())))
    return section


if __name__ == "__main__":
    from measure import render

    print(render(run()))
