"""Ten million operations on ten thousand prefixes leave the process as large as it was."""

from __future__ import annotations

from live_soak import child, flat
from measure import Row, Section, span

OPERATIONS = 10_000_000

SIDES = """\
One thread acquires and releases {operations:,} times in all, on 10,000 prefixes of 2 to 47 blocks
drawn evenly, in a cache that holds under half of their blocks."""


def run() -> Section:
    """Measure."""
    found = child("memory", OPERATIONS)
    section = Section("Memory of the live scheduler", SIDES.format(operations=OPERATIONS))
    rate = found["seconds"] / found["operations"]
    section.rows += [
        Row(
            "operations", f"{found['operations']:,} in {span(found['seconds'])}, {span(rate)} each"
        ),
        flat(found),
    ]
    return section


if __name__ == "__main__":
    from measure import render

    print(render(run()))
