"""Which column of a table means what: named by the user, or told by its name."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence

from kvsched.foundation.errors import InputError, UsageError

REQUIRED = ("time", "input", "output")
LABELS = ("session", "tenant", "type", "model")
INTEGERS = ("turn", "priority", "scope")
ROLES = (*REQUIRED, "blocks", "sizes", *LABELS, *INTEGERS, "deadline", "delay")
UNIT_ENDINGS = {"_s": "s", "_ms": "ms", "_us": "us", "_ns": "ns"}

# Compared in lower case, with one underscore for blanks, dashes and points.
_USUAL: dict[str, tuple[str, ...]] = {
    "time": (
        "timestamp", "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns",
        "time", "time_s", "time_ms", "time_us", "time_ns",
        "arrival_time", "arrival_s", "arrived_at",
    ),
    "input": (
        "input_length", "input_tokens", "prompt_tokens", "context_tokens", "contexttokens",
        "request_tokens", "num_prefill_tokens",
    ),
    "output": (
        "output_length", "output_tokens", "completion_tokens", "generated_tokens",
        "generatedtokens", "response_tokens", "num_decode_tokens",
    ),
    "blocks": ("hash_ids", "block_hashes", "block_ids", "chunk_hashes"),
    "sizes": ("block_tokens",),
    "session": ("session_id", "session", "conversation_id", "conv_id"),
    "tenant": ("tenant", "tenant_id", "user_id"),
    "type": ("type", "request_type", "log_type"),
    "model": ("model", "model_name"),
    "turn": ("turn",),
    "priority": ("priority",),
    "scope": ("scope",),
    "deadline": ("deadline", "deadline_s", "deadline_ms"),
    "delay": ("delay", "delay_s", "delay_ms"),
}  # fmt: skip
_MOONCAKE = ("timestamp", "input_length", "output_length")
_MEANT = {name: role for role, names in _USUAL.items() for name in names}


def parse_columns(given: str | Mapping[str, str] | None) -> dict[str, str] | None:
    """Columns by role from ``time=TIMESTAMP,input=prompt_tokens``; a mapping is checked alone.

    ``session=`` says that no column is the session. A name with a comma stands in quotes:
    ``time=t,"input=Request, tokens"``. Raises UsageError for a role that does not exist, twice
    the same, or no ``=``.
    """
    if given is None:
        return None
    pairs: Iterable[tuple[str, str]]
    if isinstance(given, str):
        try:
            pieces = next(csv.reader([given], skipinitialspace=True, strict=True), [])
        except csv.Error as error:
            raise UsageError(f"--columns {given}: a quote is not closed") from error
        if any("=" not in piece for piece in pieces) or not pieces:
            raise UsageError(
                f"--columns {given}: write ROLE=COLUMN,ROLE=COLUMN with {', '.join(ROLES)}"
            )
        pairs = [(p.partition("=")[0].strip(), p.partition("=")[2].strip()) for p in pieces]
    else:
        pairs = list(given.items())
    found: dict[str, str] = {}
    for role, column in pairs:
        if role not in ROLES:
            raise UsageError(f"--columns {role}=: a column can be {', '.join(ROLES)}")
        if role in found:
            raise UsageError(f"--columns: {role} is given twice")
        found[role] = column
    return found


def usual_role(column: str) -> str | None:
    """The role that a column's name tells, or None. Case, blanks and dashes do not matter."""
    name = column.strip().lower()
    for mark in " -.":
        name = name.replace(mark, "_")
    return _MEANT.get(name)


MOST_LISTED = 40
"""Columns that a message names at most."""


def listed(header: Sequence[str]) -> str:
    """Name the columns of a header in one line, for a message."""
    shown = [
        "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
        for name in header[:MOST_LISTED]
    ]
    shown = [name if len(name) <= MOST_LISTED else f"{name[:MOST_LISTED]}…" for name in shown]
    more = f" and {len(header) - MOST_LISTED} more" if len(header) > MOST_LISTED else ""
    return ", ".join(shown) + more


def find_columns(
    file: str, header: Sequence[str], given: Mapping[str, str] | None
) -> dict[str, int]:
    """The place in ``header`` of every role that has a column.

    Columns that ``given`` names come first, others are told by their names. Raises UsageError,
    naming the columns that exist, where a column that is given is not there or stands twice, and
    InputError where two look like one role, or where time, input or output has none.
    """
    exist = f"the columns are {listed(header)}"
    found: dict[str, int] = {}
    for role, column in (given or {}).items():
        if not column:
            continue
        if header.count(column) != 1:
            many = "stands twice" if column in header else "is not there"
            raise UsageError(f"--columns {role}={column}: that column {many}; {exist}")
        found[role] = header.index(column)
    taken = set(found.values())
    for place, column in enumerate(header):
        usual = usual_role(column)
        if usual is None or place in taken or usual in (given or {}):
            continue
        if usual in found:
            both = f"{listed([header[found[usual]]])} and {listed([column])}"
            fault = f"{both} may both be the {usual}: choose with --columns {usual}=COLUMN"
            raise InputError(file, fault)
        found[usual] = place
    for role in (*REQUIRED, *(("blocks",) if "sizes" in found else ())):
        if role not in found:
            fault = f"no column is known as the {role}: say --columns {role}=COLUMN; {exist}"
            raise InputError(file, fault)
    return found


def fixed_columns(
    file: str, header: Sequence[str], columns: Mapping[str, str], optional: Mapping[str, str]
) -> dict[str, int]:
    """The places of a format's own columns by role. Raises InputError where one is missing."""
    found = {}
    for role, column in {**columns, **optional}.items():
        if header.count(column) == 1:
            found[role] = header.index(column)
        elif column in header:
            raise InputError(file, f'"{column}" stands twice in the header')
        elif role in columns:
            exist = f"the columns are {listed(header)}"
            raise InputError(file, f'"{column}" is not in the header; {exist}')
    return found


def usual_unit(names: Mapping[str, str]) -> str | None:
    """Milliseconds where the required columns (by role) have Mooncake's names, else None."""
    return "ms" if tuple(names[role] for role in REQUIRED) == _MOONCAKE else None


def unit_of_name(column: str) -> str | None:
    """The unit that a column's name ends in (``time_s``, ``delay_ms``), or None."""
    lowered = column.strip().lower()
    return next((u for ending, u in UNIT_ENDINGS.items() if lowered.endswith(ending)), None)
