"""Reading a trace against parsing its lines, and opening a converted one."""

from __future__ import annotations

import json

import inputs
from kvsched.trace.columns import write_columns
from kvsched.trace.load import load_trace
from measure import Row, Section, alternate, at_least, at_most, timed

SIDES = """\
`load_trace` turns the conversation trace (JSON lines, {size:.1f} MB) into a `Trace`: parsed,
checked, its forest of nodes built. Against it `json.loads` over the same file's lines, and nothing
else. Then the same trace converted to raw columns and opened, memory-mapped and checked. The file
is in the page cache."""

MOST_S = 0.1


def run() -> Section:
    """Measure."""
    path = inputs.conversation_path()
    converted = inputs.made("conversation.kvtrace")
    write_columns(load_trace(path), converted)

    def parse() -> None:
        with path.open("rb") as lines:
            for line in lines:
                json.loads(line)

    read, parsed, opened = alternate(
        timed(lambda: load_trace(path)), timed(parse), timed(lambda: load_trace(converted))
    )
    section = Section("Reading", SIDES.format(size=path.stat().st_size / 1e6))
    section.rows = [
        at_most("JSON lines to a trace / json.loads", read, parsed, 0.8),
        at_least("converted, opened / JSON lines to a trace", opened, read, None),
        Row("converted, opened", str(opened), bar="< 0.1 s", met=opened.median < MOST_S),
    ]
    return section
