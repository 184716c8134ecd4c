"""The files of a run, written all or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.foundation.files import whole_file
from kvsched.serve.aiperf import aiperf_export
from kvsched.serve.chrome_trace import chrome_trace
from kvsched.serve.rows import Table, request_table, step_table
from kvsched.serve.served import Served
from kvsched.serve.summary import Objective
from kvsched.trace.parquet import load_polars

EXPORTS = ("jsonl", "parquet")
"""Forms of the tables."""
_TEXTS = ("status", "reason", "session", "tenant", "fault")
NAMES = ("result.json", "summary.json", "trace.json", "report.html")


def file_names(exports: Sequence[str], step_log: bool) -> list[str]:
    """Return the names of all files that a run writes.

    Raises UsageError for an unknown export, and where a library that it needs is missing.
    """
    unknown = [name for name in exports if name not in EXPORTS]
    if unknown:
        raise UsageError(f"unknown export {unknown[0]} (known: {', '.join(EXPORTS)})")
    if "parquet" in exports:
        load_polars()
    tables = ("requests", "steps") if step_log else ("requests",)
    return [*NAMES, *(f"{table}.{form}" for table in tables for form in exports)]


def prepare_folder(folder: Path, names: Iterable[str]) -> None:
    """Make ``folder``, and see that files of these names can be written. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror})") from error
    for name in names:
        if (folder / name).is_dir():
            raise UsageError(f"{folder / name}: cannot be written (it is a folder)")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder}: cannot be written (permission denied)")


def write_served(
    served: Served,
    folder: Path,
    html: str,
    *,
    objective: Objective | None = None,
    exports: Sequence[str] = ("jsonl",),
    step_log: bool = False,
) -> None:
    """Write a run into ``folder``: all files or, but for a crash, none.

    `result.json` has everything, `summary.json` the totals in aiperf's shape, `trace.json` what
    ran when, ``html`` becomes `report.html`; the tables come in each form of ``exports``. Raises
    UsageError and KvschedError as `whole_file`, and UsageError where a library is missing.
    """
    names = file_names(exports, step_log)
    tables = {"requests": request_table(served.simulation, objective)}
    found = served.simulation
    if step_log and found.step_log is not None:
        tables["steps"] = step_table(found.step_log, found.step_replica)
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(whole_file(folder / name)) for name in names}
        streams["result.json"].write(_json(served.result))
        streams["summary.json"].write(_json(aiperf_export(served)))
        streams["report.html"].write(html.encode("utf-8", "replace"))
        streams["trace.json"].writelines(chrome_trace(served.simulation))
        for table, columns in tables.items():
            for form in exports:
                _write_table(streams[f"{table}.{form}"], form, columns, folder / table)
        # A full disk is found before the first file takes its name.
        for stream in streams.values():
            stream.flush()
            os.fsync(stream.fileno())


def write_points(
    result: Any, table: Table, folder: Path, kind: str, html: str, exports: Sequence[str]
) -> None:
    """Write what many runs came to: ``kind``.json, .html, and the table in each form; all or none.

    Raises UsageError and KvschedError as `whole_file`.
    """
    names = [f"{kind}.json", f"{kind}.html", *(f"{kind}.{form}" for form in exports)]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(whole_file(folder / name)) for name in names]
        streams[0].write(_json(result))
        streams[1].write(html.encode("utf-8", "replace"))
        for stream, form in zip(streams[2:], exports, strict=True):
            _write_table(stream, form, table, folder / kind)
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _lines(table: Table) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for row in zip(*table.values(), strict=True):
        yield encoder.encode(dict(zip(table, row, strict=True))) + b"\n"


def _write_table(stream: IO[bytes], form: str, table: Table, path: Path) -> None:
    if form == "jsonl":
        stream.writelines(_lines(table))
        return
    pl = load_polars()
    try:
        # A column of no value at all has its type too.
        kinds = {name: pl.String for name in _TEXTS if name in table}
        kinds |= {name: pl.Int64 for name in table if name == "replica"}
        kinds |= {name: pl.Float64 for name in table if name.endswith("_s")}
        pl.DataFrame(table, schema_overrides=kinds).write_parquet(stream)
    except (pl.exceptions.PolarsError, OSError) as error:
        fault = " ".join(str(error).split())
        raise KvschedError(f"{path}.parquet: cannot be written ({fault})") from error
