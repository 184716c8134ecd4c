"""`kvsched records`: what was measured, kept and never changed."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from kvsched.cli.groups import spread
from kvsched.cli.options import print_json
from kvsched.foundation.errors import InputError, KvschedError, UsageError

if TYPE_CHECKING:
    from kvsched.evidence.record import Record
    from kvsched.evidence.registry import Registry

app = typer.Typer(
    help="Keep records of evidence: add, look at, compare, export, import, verify.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
HOW_TO_ADD = (
    "`kvsched records add FILE` adds a record, a probe report or a benchmark's folder; "
    "`kvsched records import FILE.jsonl` what another registry exported"
)
RegistryPath = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="PATH",
        envvar="KVSCHED_REGISTRY",
        help="The registry's file; by default records.sqlite in the user's data folder.",
        show_default=False,
    ),
]
TextOrJson = Annotated[
    str, typer.Option("--format", metavar="text|json", help="json prints only JSON on stdout.")
]
RecordId = Annotated[
    str, typer.Argument(metavar="ID", help="A record's id, or how no other begins.")
]


@dataclass(frozen=True)
class Filters:
    """Which records."""

    task: Annotated[str | None, typer.Option("--task", help="Of this task.")] = None
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision", metavar="accept|tune|reject|pending|measure", help="Decided so."
        ),
    ] = None
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="ok|failed|blocked|skipped", help="That ended so."),
    ] = None
    evidence_level: Annotated[
        str | None, typer.Option("--evidence-level", help="As strong as this, exactly.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="WHEN", help="Made since: 2026-01-31, a moment (UTC), or 7d ago."
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="The last N of them.")
    ] = None

    def chosen(self) -> dict[str, Any]:
        """Return them as `Registry.records` takes them."""
        from kvsched.evidence.record_words import since_moment

        return {
            "task": self.task,
            "decision": self.decision,
            "status": self.status,
            "evidence_level": self.evidence_level,
            "since": None if self.since is None else since_moment(self.since),
            "limit": self.limit,
        }


def _open(path: str | None) -> Registry:
    from kvsched.evidence.registry import Registry

    if path == "":
        raise UsageError("--registry: is empty")
    return Registry(path)


def _must_exist(registry: Registry) -> None:
    if not registry.known():
        raise UsageError(f"{registry.path}: there is no registry; {HOW_TO_ADD}")


def _as_json(format: str) -> bool:
    if format not in ("text", "json"):
        raise UsageError(f"--format {format}: must be text or json")
    return format == "json"


@app.command("add")
def add(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="A record, a probe report, a bench result or its folder; - stdin.",
        ),
    ],
    registry: RegistryPath = None,
    name: Annotated[str | None, typer.Option("--name", help="What to call it.")] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision", metavar="accept|tune|reject|pending|measure", help="What follows."
        ),
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why, in a sentence.")] = None,
    corrects: Annotated[
        str | None,
        typer.Option("--corrects", metavar="ID", help="The record that this one stands in for."),
    ] = None,
    format: TextOrJson = "text",
) -> None:
    """Add a record; id, moment and checksum are filled in where it has none."""
    from kvsched.evidence.record_check import MOST_BYTES
    from kvsched.evidence.record_sources import read_source, record_from

    as_json = _as_json(format)
    if file == "-":
        data, named = sys.stdin.buffer.read(MOST_BYTES + 1), "stdin"
    else:
        data, named = read_source(file)
    with _open(registry) as opened:
        old = None if corrects is None else opened.get(corrects).record_id
        record = record_from(data, named, name=name, decision=decision, reason=reason, corrects=old)
        kept = opened.add(record)
        if as_json:
            print_json({"record_id": kept.record_id, "checksum": kept.checksum})
            return
        typer.echo(kept.record_id)
        typer.echo(f"added to {opened.path}", err=True)


@app.command("list")
@spread
def list_(filters: Filters, registry: RegistryPath = None, format: TextOrJson = "text") -> None:
    """List records, the oldest first, with what supersedes them."""
    as_json = _as_json(format)
    with _open(registry) as opened:
        with opened.snapshot():
            found = _without_detail(opened.records(**filters.chosen()))
            corrections = opened.corrections()
        if as_json:
            print_json([_brief(record, corrections) for record in found])
        elif not opened.known():
            typer.echo(f"There is no registry at {opened.path} yet: {HOW_TO_ADD}.")
        elif not opened.head()[0]:
            typer.echo(f"The registry at {opened.path} is empty: {HOW_TO_ADD}.")
        elif not found:
            typer.echo("No record is like that.")
        else:
            from rich.console import Console

            from kvsched.report.records import print_records

            print_records(found, corrections, Console(highlight=False))


def _without_detail(records: Iterable[Record]) -> list[Record]:
    """Take the details off as they are read: a list of records shows none of them."""
    import msgspec

    return [msgspec.structs.replace(record, detail={}) for record in records]


def _brief(record: Record, corrections: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return a record without its detail, with what supersedes it."""
    import msgspec

    fields = msgspec.structs.asdict(record)
    del fields["detail"]
    return {**fields, "superseded_by": list(corrections.get(record.record_id, ()))}


@app.command("show")
def show(record_id: RecordId, registry: RegistryPath = None, format: TextOrJson = "text") -> None:
    """Show one record; --format json gives it exactly."""
    as_json = _as_json(format)
    with _open(registry) as opened:
        record = opened.get(record_id)
        if as_json:
            from kvsched.evidence.record_check import canonical

            sys.stdout.write(canonical(record).decode() + "\n")
            return
        from rich.console import Console

        from kvsched.report.records import print_record

        print_record(record, opened.corrections(), Console(highlight=False))


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The id of the record before.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The id of the record after.")],
    any_workload: Annotated[
        bool,
        typer.Option("--any-workload", help="Also where they measured different workloads."),
    ] = False,
    registry: RegistryPath = None,
    format: TextOrJson = "text",
) -> None:
    """Set two records side by side: differences, ratios, and what differs in their settings."""
    from kvsched.evidence.record_compare import compare_records

    as_json = _as_json(format)
    with _open(registry) as opened:
        result = compare_records(opened.get(a), opened.get(b), any_workload=any_workload)
    if as_json:
        print_json(result)
        return
    from rich.console import Console

    from kvsched.report.records import print_record_comparison

    print_record_comparison(result, Console(highlight=False))


@app.command("export")
@spread
def export(
    filters: Filters,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="By default stdout."),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="jsonl|csv|parquet|markdown|html",
            help="By default what the file's suffix says (.md is Markdown).",
        ),
    ] = None,
    registry: RegistryPath = None,
) -> None:
    """Write records to a file, whole or not at all, the oldest first."""
    from kvsched.evidence.record_export import find_format

    kind = find_format(output, format)
    chosen = filters.chosen()
    with _open(registry) as opened:
        _must_exist(opened)
        with opened.snapshot():
            count = sum(1 for _ in opened.records(**chosen))
            if count == 0 and any(value is not None for value in chosen.values()):
                raise UsageError("no record is as the options say: nothing is written")
            _export(opened, chosen, kind, output)
    if output is not None:
        typer.echo(f"{count:,} {'record' if count == 1 else 'records'} in {output}", err=True)


def _export(opened: Registry, chosen: dict[str, Any], kind: str, output: str | None) -> None:
    from kvsched.evidence.record_export import WRITERS
    from kvsched.foundation.files import whole_file

    corrections = opened.corrections()

    def again() -> Iterator[Record]:
        return opened.records(**chosen)

    def write(stream: IO[bytes]) -> None:
        if kind == "html":
            from kvsched.report.records import render_records

            stream.write(render_records(_without_detail(again()), corrections).encode())
        else:
            WRITERS[kind](again, corrections, stream)

    if output is not None:
        keep_apart(opened.path, output)
        with whole_file(output) as file:
            write(file)
        return
    if kind == "parquet":
        raise UsageError("--format parquet: needs --output FILE")
    whole = io.BytesIO()
    write(whole)
    sys.stdout.buffer.write(whole.getvalue())
    sys.stdout.buffer.flush()


def keep_apart(registry: Path, output: str) -> None:
    """Raise UsageError where the output is the registry, or one of SQLite's files beside it."""
    target = Path(output)
    if "\0" in output:
        return
    for suffix in ("", "-wal", "-shm", "-journal"):
        held = registry.resolve()
        held = held.with_name(held.name + suffix)
        if target.resolve() == held or (
            target.exists() and held.exists() and target.samefile(held)
        ):
            raise UsageError(f"{output}: holds the records, and is never written over")


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE.jsonl|-", help="Records, one a line.")],
    registry: RegistryPath = None,
    format: TextOrJson = "text",
) -> None:
    """Add records that were exported, all or none; each is checked, and its checksum too."""
    from kvsched.evidence.record_export import read_jsonl

    as_json = _as_json(format)
    with _open(registry) as opened:
        if file == "-":
            result = opened.import_records(read_jsonl(sys.stdin.buffer, "stdin"), "stdin")
        else:
            try:
                with Path(file).open("rb") as stream:
                    result = opened.import_records(read_jsonl(stream, file), file)
            except OSError as error:
                raise InputError(file, (error.strerror or "cannot be read").lower()) from error
            except ValueError as error:
                raise InputError(repr(file), "no file can have that name") from error
        if as_json:
            print_json({"added": result.added, "present": result.present})
            return
        typer.echo(f"{len(result.added):,} added to {opened.path}")
        if result.present:
            typer.echo(f"{len(result.present):,} left out: already there, the same")


@app.command("verify")
def verify(
    registry: RegistryPath = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="LINK", help="A link noted before, which must still be in the chain."
        ),
    ] = None,
    format: TextOrJson = "text",
) -> None:
    """Check every record, and that none is missing; exit 1 with each fault."""
    as_json = _as_json(format)
    if head is not None and re.fullmatch("[0-9a-f]{64}", head) is None:
        raise UsageError(f"--head {head}: a link is 64 hexadecimal digits, as verify prints it")
    with _open(registry) as opened:
        _must_exist(opened)
        faults = opened.verify(head)
        count, link = opened.head() if not faults else (None, None)
    if as_json:
        print_json({"faults": faults, "records": count, "head": link})
        if faults:
            raise typer.Exit(1)
        return
    for fault in faults:
        typer.echo(fault, err=True)
    if faults:
        said = "1 fault" if len(faults) == 1 else f"{len(faults):,} faults"
        raise KvschedError(f"{opened.path}: {said}")
    typer.echo(f"{count:,} records, all sound; the last link is {link}")
