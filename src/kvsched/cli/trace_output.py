"""Where a trace is written to: the suffix of the file says in which format."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsched.cli.options import print_json
from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.trace.model import Trace

    Writer = Callable[[Trace, Path], tuple[str, ...]]

Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        help="File to write: raw columns (.kvtrace) or Mooncake JSON lines (.jsonl), "
        "each also .gz or .zst; or a Parquet table (.parquet).",
        show_default=False,
    ),
]
Uncovered = Annotated[
    str | None,
    typer.Option(
        "--uncovered",
        metavar="cut|fresh",
        help="For .jsonl, whose ids cover the prompt: tokens in no block are cut off the prompt "
        "(the default), or get ids that never come again.",
        show_default=False,
    ),
]


def _columns(trace: Trace, path: Path) -> tuple[str, ...]:
    from kvsched.trace.columns import write_columns

    write_columns(trace, path)
    return ()


def _mooncake(trace: Trace, path: Path, uncovered: str = "cut") -> tuple[str, ...]:
    from kvsched.trace.mooncake_export import write_mooncake

    return write_mooncake(trace, path, uncovered)


def _parquet(trace: Trace, path: Path) -> tuple[str, ...]:
    from kvsched.trace.parquet_export import write_parquet

    return write_parquet(trace, path)


_PACKED = ("", ".gz", ".zst")
WRITERS: dict[str, Writer] = {
    **{f".kvtrace{packed}": _columns for packed in _PACKED},
    **{f".jsonl{packed}": _mooncake for packed in _PACKED},
    ".parquet": _parquet,
}
"""By suffix: writes a trace to a path, and returns notes on what the file does not say."""


def find_writer(output: str, uncovered: str | None = None) -> Writer:
    """Return what writes a file of that name. Raises UsageError, before any work is done."""
    writer = next((WRITERS[suffix] for suffix in WRITERS if output.endswith(suffix)), None)
    if writer is None:
        raise UsageError(f"{output}: name it {', '.join(WRITERS)}")
    if writer is _parquet:
        from kvsched.trace.parquet import load_polars

        load_polars()
    if uncovered is None:
        return writer
    if writer is not _mooncake:
        raise UsageError(f"--uncovered means nothing for {output}: it is for .jsonl")
    return functools.partial(_mooncake, uncovered=uncovered)


def write(trace: Trace, output: str, writer: Writer, as_json: bool = False) -> None:
    """Write the trace, and say what was written; notes go to stderr."""
    for note in writer(trace, Path(output)):
        typer.echo(f"note: {note}", err=True)
    if as_json:
        print_json(
            {
                "output": Path(output).name,
                "requests": len(trace),
                "block_references": trace.references,
                "digest_of_source": trace.digest,
            }
        )
        return
    typer.echo(
        f"{output}: {len(trace):,} requests, {trace.references:,} block references, "
        f"from the trace with digest {trace.digest[:16]}"
    )
