"""Records of evidence to look at: tables for a terminal, and one self-contained HTML file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsched.evidence.record import Record
from kvsched.evidence.record_compare import MetricChange, RecordComparison, SettingChange
from kvsched.evidence.record_words import brief_config, flat, key_metrics, number, setting
from kvsched.foundation.version import VERSION
from kvsched.report.console import print_lines
from kvsched.report.format import DASH, MINUS, name, visible
from kvsched.report.html import page

SHORT_ID = 8
"""Digits of an id in a table."""

Corrections = Mapping[str, tuple[str, ...]]
"""Ids of the records that correct one, by its id."""


def short_id(record_id: str) -> str:
    """Return the first digits of an id."""
    return record_id[:SHORT_ID]


def ids_to_tell_apart(records: Sequence[Record]) -> int:
    """Return how many digits tell the ids of these records apart, 8 or more."""
    names = sorted(record.record_id for record in records)
    most = SHORT_ID
    for one, other in itertools.pairwise(names):
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), 31)
        most = max(most, same + 1)
    return most


def decided(record: Record) -> str:
    """Return the decision; with the status where that is not ok."""
    return record.decision if record.status == "ok" else f"{record.decision}, {record.status}"


def standing(record: Record, corrections: Corrections) -> str:
    """Say what stands in for this record, and what it stands in for; empty for neither."""
    newer = corrections.get(record.record_id, ())
    said = [f"superseded by {', '.join(map(short_id, newer))}"] if newer else []
    said += [f"corrects {short_id(record.corrects)}"] if record.corrects else []
    return "; ".join(said)


def metrics_line(record: Record) -> str:
    """Return the metrics that matter most, on one line."""
    return ", ".join(f"{key} {number(value)}" for key, value in key_metrics(record)) or DASH


def signed(value: float | int | None) -> str:
    """Return a difference with its sign."""
    if value is None:
        return DASH
    return f"{MINUS if value < 0 else '+'}{number(abs(value))}"


def ratio(value: float | None) -> str:
    """Return a ratio; one that rounds to nothing keeps its digits."""
    return DASH if value is None else f"{value:.4g}×".replace("-", MINUS)


def side(change: SettingChange, of_a: bool) -> str:
    """Return one side of a setting that differs."""
    there, value = (change.in_a, change.a) if of_a else (change.in_b, change.b)
    return visible(setting(value)) if there else "not set"


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(
            heading,
            justify="right" if heading in right else "left",
            no_wrap=heading in right or heading in ("id", "date"),
            overflow="fold",
        )
    return table


def print_records(records: Sequence[Record], corrections: Corrections, console: Console) -> None:
    """Print two or three lines a record, oldest first; what is superseded is dim, and says by what.

    The first lines are a table in 80 columns; metrics and what a record stands in for follow it.
    """
    digits = ids_to_tell_apart(records)
    tasks = [record.task + (f": {record.name}" if record.name else "") for record in records]
    tasks = [name(task) for task in tasks]
    taken = digits + max(len("decision"), *(len(decided(record)) for record in records))
    widest = max(len("task"), *(cell_len(task) for task in tasks))
    room = min(widest, max(len("task"), 80 - taken - 43))
    heading = f"{'id':{digits}}  {'date':10}  {'task':{room}}  {'evidence level':25}  decision"
    lines: list[RenderableType] = [Text(heading, style="bold")]
    for record, task in zip(records, tasks, strict=True):
        shown = task if cell_len(task) <= room else set_cell_size(task, room - 1) + "…"
        shown = set_cell_size(shown, room)
        style = "dim" if record.record_id in corrections else ""
        text = (
            f"{record.record_id[:digits]}  {record.created_at[:10]}  {shown}  "
            f"{record.evidence_level:25}  {decided(record)}"
        )
        lines.append(Text(text, style=style))
        more = [metrics_line(record)] if key_metrics(record) else []
        for said in (*more, standing(record, corrections)):
            if said:
                lines.append(Padding(Text(visible(said), style="dim"), (0, 0, 0, digits + 2)))
    print_lines(lines, console)


def _facts(record: Record, corrections: Corrections) -> list[tuple[str, str]]:
    facts = [
        ("record", record.record_id),
        ("made", record.created_at),
        ("evidence level", record.evidence_level),
        ("status", record.status),
        ("decision", record.decision),
        ("reason", record.reason or DASH),
        ("corrects", record.corrects or DASH),
        ("superseded by", ", ".join(corrections.get(record.record_id, ())) or DASH),
        ("workload digest", record.workload_digest or DASH),
        ("checksum", record.checksum),
    ]
    return [(term, visible(value)) for term, value in facts]


def metric_rows(record: Record) -> list[tuple[str, str, str]]:
    """Return each metric, its value, and why it has none."""
    return [
        (
            visible(key),
            number(value).replace("-", MINUS),
            visible(record.missing.get(key, "no reason given")) if value is None else "",
        )
        for key, value in record.metrics.items()
    ]


def _other_gaps(record: Record) -> list[tuple[str, str]]:
    """Return what was not measured and is no metric of the record, with the reason."""
    gaps = record.missing.items()
    return [(visible(key), visible(why)) for key, why in gaps if key not in record.metrics]


def _leaves(values: dict[str, Any]) -> list[tuple[str, str]]:
    return [(visible(key), visible(_value(value))) for key, value in flat(values)]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:299] + "…"


def print_record(record: Record, corrections: Corrections, console: Console) -> None:
    """Print a record to read; its detail is named, not shown."""
    lines: list[RenderableType] = []
    title = f"{record.task}: {record.name}" if record.name else record.task
    lines.append(Text(visible(title), style="bold"))
    lines.append(_pairs(_facts(record, corrections)))
    table = _table("metric", "value", "why not", right=("value",))
    for row in metric_rows(record):
        table.add_row(*map(Text, row))
    if record.metrics:
        lines += ["", table]
    for heading, rows in (
        ("not measured", _other_gaps(record)),
        ("configuration", _leaves(record.config)),
        ("environment", _leaves(record.environment)),
    ):
        if rows:
            lines += ["", Text(heading, style="bold"), _pairs(rows)]
    if record.detail:
        parts = visible(", ".join(record.detail))
        lines += ["", Text(f"detail (--format json shows it): {parts}", style="dim")]
    print_lines(lines, console)


def _pairs(rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold", style="dim")
    table.add_column(overflow="fold")
    for term, meaning in rows:
        table.add_row(Text(term), Text(meaning))
    return table


def print_record_comparison(result: RecordComparison, console: Console) -> None:
    """Print both records' metrics side by side, and what differs in how they were measured."""
    lines: list[RenderableType] = []
    for letter, record in (("A", result.a), ("B", result.b)):
        what = f"{record.task}: {record.name}" if record.name else record.task
        said = f"{letter}  {short_id(record.record_id)}  {record.created_at[:10]}  {name(what)}"
        lines.append(Text(f"{said}, {decided(record)}", style="bold"))
    table = _table("metric", "A", "B", "B − A", "B / A", right=("A", "B", "B − A", "B / A"))
    for row in result.metrics:
        table.add_row(Text(name(row.name)), *_cells(row))
    lines += ["", table]
    lacking = [row for row in result.metrics if row.missing]
    lines += [Text(visible(f"{row.name}: {row.missing}"), style="dim") for row in lacking]
    for title, changes in (
        ("Configuration", result.config),
        ("Environment", result.environment),
    ):
        if not changes:
            lines += ["", Text(f"{title}: the same", style="dim")]
            continue
        settings = _table(f"{title} that differs", "A", "B")
        for change in changes:
            settings.add_row(
                Text(visible(change.name)), Text(side(change, True)), Text(side(change, False))
            )
        lines += ["", settings]
    lines += [Text(f"Warning: {visible(said)}", style="yellow") for said in result.warnings]
    print_lines(lines, console)


def _cells(row: MetricChange) -> tuple[str, str, str, str]:
    sides = (number(value).replace("-", MINUS) for value in (row.a, row.b))
    return (*sides, signed(row.difference), ratio(row.ratio))  # type: ignore[return-value]


def render_records(records: Sequence[Record], corrections: Corrections) -> str:
    """Return the page: the table of records, then each one. The same records, the same bytes."""
    return page(
        "records.html",
        {"setting": setting},
        r={"kvsched": VERSION},
        records=[
            {
                "record": record,
                "decided": decided(record),
                "standing": standing(record, corrections),
                "superseded": record.record_id in corrections,
                "config": brief_config(record) or DASH,
                "lines": [f"{key} {number(value)}" for key, value in key_metrics(record)] or [DASH],
                "facts": _facts(record, corrections),
                "metrics": metric_rows(record),
                "configuration": _leaves(record.config),
                "environment": _leaves(record.environment),
                "missing": _other_gaps(record),
            }
            for record in records
        ],
        counts=_counts(records, corrections),
    )


def _counts(records: Sequence[Record], corrections: Corrections) -> list[tuple[str, int, str]]:
    """Return what the page's head counts: a name, a number, and a few words."""
    standing_ones = [record for record in records if record.record_id not in corrections]
    accepted = sum(record.decision == "accept" for record in standing_ones)
    real = sum(
        record.evidence_level in ("real_benchmark", "profiler_trace") for record in standing_ones
    )
    return [
        ("records", len(records), "in the order in which they were added"),
        ("superseded", len(records) - len(standing_ones), "by a record that corrects them"),
        ("accepted", accepted, "of those that stand"),
        ("on a real engine", real, "of those that stand: benchmark or profiler"),
    ]
