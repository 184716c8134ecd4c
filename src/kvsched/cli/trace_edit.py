"""`kvsched trace anonymize`, `slice` and `merge`: a trace from traces."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.groups import spread
from kvsched.cli.opening import keep_apart, open_trace
from kvsched.cli.options import TraceOptions
from kvsched.cli.trace_output import Output, find_writer, write
from kvsched.foundation.errors import InputError, UsageError

if TYPE_CHECKING:
    from kvsched.trace.model import Trace

_SHORT_SALT = 16


@spread
def anonymize(
    source: TraceOptions,
    output: Output,
    salt: Annotated[
        str | None,
        typer.Option("--salt", help="The secret; others may see it in the list of processes."),
    ] = None,
    salt_file: Annotated[
        str | None,
        typer.Option("--salt-file", metavar="FILE", help="The secret is this file's content."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option("--keep", metavar="type,model", help="Leave these names as they are."),
    ] = None,
) -> None:
    """Replace ids and names by salted hashes, and leave out the source and its first timestamp.

    Lengths, chains and times from the first request stay: a study gives the same numbers. They
    also stay for who knows the length and the moment of one request and looks for it. Without a
    salt a random one is drawn and never stored.
    """
    from kvsched.trace.anonymize import anonymize as changed

    writer = find_writer(output)
    for read in filter(None, (source.trace, salt_file, source.tokenizer, source.chat_template)):
        keep_apart(read, output)
    secret = _salt(salt, salt_file)
    kept = [name.strip() for name in keep.split(",")] if keep else []
    opened = open_trace(source)
    named_nowhere = changed(opened, secret, kept)
    for note in named_nowhere.origin.notes:
        if note not in opened.origin.notes:
            typer.echo(f"note: {note}", err=True)
    write(named_nowhere, output, writer, source.as_json)


def _salt(text: str | None, file: str | None) -> bytes:
    if text is not None and file is not None:
        raise UsageError("give --salt or --salt-file, not both")
    if text is None and file is None:
        import secrets

        typer.echo(
            "note: a random salt is drawn and not stored: ids and names of this file match those "
            "of no other, and another run gives others",
            err=True,
        )
        return secrets.token_bytes(32)
    secret = (text or "").encode("utf-8", "surrogateescape")
    if file is not None:
        try:
            secret = Path(file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            from kvsched.trace.source import os_fault

            raise InputError(file, os_fault(error)) from error
    if 0 < len(secret) < _SHORT_SALT:
        typer.echo(
            f"note: a salt of {len(secret)} bytes can be guessed, and names tested with it; "
            f"use {_SHORT_SALT} random ones or more",
            err=True,
        )
    return secret


@spread
def slice_(
    source: TraceOptions,
    output: Output,
    from_s: Annotated[
        float | None,
        typer.Option("--from", metavar="S", help="From this second of the trace's clock on."),
    ] = None,
    to_s: Annotated[
        float | None, typer.Option("--to", metavar="S", help="Before this second.")
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option("--requests", metavar="A:B", help="Requests A to B-1 in time order, from 0."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option("--first", metavar="N", help="The first N that the other conditions leave."),
    ] = None,
    session: Annotated[
        list[str] | None, typer.Option("--session", metavar="NAME", help="May be given again.")
    ] = None,
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", metavar="NAME", help="May be given again.")
    ] = None,
    type_: Annotated[
        list[str] | None, typer.Option("--type", metavar="NAME", help="May be given again.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="May be given again.")
    ] = None,
) -> None:
    """Cut a part out of a trace: the requests that meet every condition given.

    The new clock starts at the first request kept, and its cache is cold: a block is new where no
    request kept used it before.
    """
    from kvsched.trace.slice import slice_trace

    writer = find_writer(output)
    keep_apart(source.trace, output)
    given = {"session": session, "tenant": tenant, "type": type_, "model": model}
    names = {label: wanted for label, wanted in given.items() if wanted}
    if not names and (from_s, to_s, requests, first) == (None, None, None, None):
        raise UsageError("say which part: --from, --to, --requests, --first, --session, …")
    whole = open_trace(source)
    part = slice_trace(
        whole,
        from_s=from_s,
        to_s=to_s,
        requests=None if requests is None else _range(requests),
        first=first,
        names=names,
    )
    _tell_new_notes(part, len(part.origin.notes) - len(whole.origin.notes))
    write(part, output, writer, source.as_json)


def _range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        if colon:
            return int(low), int(high)
    except ValueError:
        pass
    raise UsageError(f"--requests {text}: write A:B, as in 0:1000")


def _tell_new_notes(trace: Trace, count: int) -> None:
    """Say the last ``count`` notes on stderr, those that opening did not say."""
    for note in trace.origin.notes[len(trace.origin.notes) - count :]:
        typer.echo(f"note: {note}", err=True)


@spread
def merge(
    source: TraceOptions,
    others: Annotated[
        list[str], typer.Argument(metavar="TRACE…", help="More traces, opened in the same way.")
    ],
    output: Output,
    align: Annotated[
        str,
        typer.Option(
            "--align",
            metavar="start|absolute",
            help="All start together, or as their sources' own clocks have them.",
        ),
    ] = "start",
    offset: Annotated[
        list[float] | None,
        typer.Option(
            "--offset",
            metavar="S",
            help="Instead: when a trace starts, in seconds; once for each trace, in order.",
        ),
    ] = None,
    share_blocks: Annotated[
        bool,
        typer.Option(
            "--share-blocks/--separate",
            help="Whether an id after the same prefix is the same block in all traces.",
        ),
    ] = False,
    label_tenant: Annotated[
        bool,
        typer.Option("--label-tenant", help="Put the file's name before every tenant."),
    ] = False,
) -> None:
    """Put several traces on one clock. Their blocks must have one size."""
    from kvsched.trace.merge import merge_traces

    writer = find_writer(output)
    asked = (source.trace, *others)
    for name in asked:
        keep_apart(name, output)
    opened = [open_trace(dataclasses.replace(source, trace=name)) for name in asked]
    merged = merge_traces(
        opened,
        align=align,
        offsets_s=offset or None,
        share_blocks=share_blocks,
        label_tenant=label_tenant,
        names=[Path(name).name or name for name in asked],
    )
    _tell_new_notes(merged, len(merged.origin.notes) - sum(len(t.origin.notes) for t in opened))
    write(merged, output, writer, source.as_json)
