"""Read any trace: `load_trace`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace.arrivals import parse_arrivals
from kvsched.trace.check import require_blocks
from kvsched.trace.clock import check_unit
from kvsched.trace.fields import MOST_TOKENS
from kvsched.trace.formats import FORMATS, detect_format, named_format
from kvsched.trace.model import Trace
from kvsched.trace.reading import Format, ReadOptions, Sampling
from kvsched.trace.roles import parse_columns
from kvsched.trace.sample import SampledTrace, sample
from kvsched.trace.source import Progress, Source, os_fault
from kvsched.trace.text import LEAST_RATIO, MOST_RATIO

_FLAGS = {
    "time_unit": "--time-unit",
    "block_size": "--block-size",
    "session_arrivals": "--session-arrivals",
    "include_subagents": "--include-subagents",
    "tokenizer": "--tokenizer",
    "chat_template": "--chat-template",
    "bytes_per_token": "--bytes-per-token",
    "columns": "--columns",
}


def load_trace(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    time_unit: str | None = None,
    block_size: int | None = None,
    session_arrivals: str = "zero",
    seed: int = 0,
    include_subagents: bool = False,
    tokenizer: str | os.PathLike[str] | None = None,
    chat_template: str | os.PathLike[str] | None = None,
    bytes_per_token: float | None = None,
    skip_bad_rows: bool = False,
    columns: str | Mapping[str, str] | None = None,
    progress: Progress | None = None,
    sampling: Sampling | None = None,
) -> Trace:
    """Read a trace from a file, or from a folder of session files.

    ``format`` is told from the content unless named; ``.gz`` and ``.zst`` of each are read.
    ``time_unit`` (s, ms, us, ns) and ``block_size`` (tokens) override what the format has.
    ``session_arrivals`` (``zero`` or ``poisson:RATE`` sessions a second, from ``seed``) places
    sessions that have no common clock. Logs of messages need ``tokenizer`` (the path of a
    tokenizer.json) and ``chat_template``, or ``bytes_per_token``. ``skip_bad_rows`` leaves bad
    rows out and counts them in ``origin.notes``. ``columns`` names a table's columns by role, as
    in ``time=TIMESTAMP,input=prompt_tokens``. ``progress`` is told the bytes read and in all.

    With ``sampling`` the result is what `sample` takes of the trace: laid from the rows, in the
    memory of their columns and ids, by every reader that has rows; raw columns are sampled whole.

    Raises InputError, which names file, row and fault, and UsageError for a wrong option, or
    where a trace to be sampled has no blocks.
    """
    check_unit(time_unit)
    if block_size is not None and not 1 <= block_size <= MOST_TOKENS:
        raise UsageError(f"block size {block_size} is out of range: 1 to {MOST_TOKENS} tokens")
    parse_arrivals(session_arrivals)
    if bytes_per_token is not None and not LEAST_RATIO <= bytes_per_token <= MOST_RATIO:
        raise UsageError(
            f"{bytes_per_token:g} bytes a token are out of range: {LEAST_RATIO:g} to {MOST_RATIO:g}"
        )
    options = ReadOptions(
        time_unit=time_unit,
        block_size=block_size,
        session_arrivals=session_arrivals,
        seed=seed,
        include_subagents=include_subagents,
        tokenizer=None if tokenizer is None else os.fspath(tokenizer),
        chat_template=None if chat_template is None else os.fspath(chat_template),
        bytes_per_token=bytes_per_token,
        skip_bad_rows=skip_bad_rows,
        columns=parse_columns(columns),
        progress=progress,
        sampling=sampling,
    )
    trace = _load(Path(path), format, options)
    if sampling is None or isinstance(trace, SampledTrace):
        return trace
    require_blocks(trace)
    return sample(trace, sampling.rate(trace.references), sampling.seed)


def _load(where: Path, format: str | None, options: ReadOptions) -> Trace:
    chosen = None if format is None else named_format(format)
    try:
        folder = where.is_dir()
    except OSError as error:
        raise InputError(str(where), os_fault(error)) from error
    if folder:
        return _load_folder(where, chosen, options)
    with Source(where, options.progress) as source:
        head = source.head()
        if not head:
            raise InputError(source.name, "the file is empty")
        if chosen is None:
            chosen = detect_format(source.name, head, named_columns=options.columns is not None)
        _check_options(chosen, options)
        return chosen.read(source, options)


def _load_folder(folder: Path, chosen: Format | None, options: ReadOptions) -> Trace:
    if chosen is None:
        chosen = _folder_format(folder)
    if chosen.read_folder is None:
        raise InputError(str(folder), f"is a folder; the {chosen.name} reader reads one file")
    _check_options(chosen, options)
    return chosen.read_folder(folder, options)


def _folder_format(folder: Path) -> Format:
    """The format whose files are in the folder, else the one that takes any name."""
    readers = [known for known in FORMATS if known.read_folder is not None]
    try:
        for known in readers:
            if known.sniff_folder is not None and known.sniff_folder(folder):
                return known
    except OSError as error:
        raise InputError(str(folder), os_fault(error)) from error
    return next(known for known in readers if known.sniff_folder is None)


def _check_options(chosen: Format, options: ReadOptions) -> None:
    """Refuse an option that the reader would ignore: silence would look like consent."""
    usual = ReadOptions()
    for name, flag in _FLAGS.items():
        if name not in chosen.options and getattr(options, name) != getattr(usual, name):
            raise UsageError(f"{flag} means nothing for a trace in the format {chosen.name}")
