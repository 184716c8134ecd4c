"""The registry of trace formats. Adding one: a file with a `FORMAT`, and a line here."""

from __future__ import annotations

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace import (
    azure,
    bailian,
    burstgpt,
    columns,
    delimited,
    lmcache,
    mooncake,
    openai,
    parquet,
    ragpulse,
    vllm_timed,
    weka,
)
from kvsched.trace.reading import Format

FORMATS: tuple[Format, ...] = (
    columns.FORMAT,
    parquet.FORMAT,
    openai.FORMAT,
    ragpulse.FORMAT,
    weka.FORMAT,
    bailian.FORMAT,
    lmcache.FORMAT,
    mooncake.FORMAT,
    vllm_timed.FORMAT,
    azure.FORMAT,
    burstgpt.FORMAT,
    delimited.FORMAT,
)
"""In the order in which they are tried."""


_LFS_POINTER = b"version https://git-lfs"


def known_names() -> str:
    """The names of all formats, for a sentence."""
    return ", ".join(sorted(known.name for known in FORMATS))


def named_format(name: str) -> Format:
    """The format of that name. Raises UsageError with the names there are."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise UsageError(f"trace format {name!r} is not known: use one of {known_names()}")


def detect_format(file: str, head: bytes, named_columns: bool = False) -> Format:
    """The format that the first 64 KiB of ``file`` look like. Raises InputError.

    Where its columns are named it is a table: text, if it is in no format that takes them.
    """
    if not head:
        raise InputError(file, "the file is empty")
    if head.startswith(_LFS_POINTER):
        raise InputError(file, "a pointer of Git LFS, not the trace: `git lfs pull` fetches it")
    if named_columns and b"\0" not in head:
        return delimited.FORMAT
    for known in FORMATS:
        if known.sniff(head):
            return known
    if b"\0" in head:
        raise InputError(file, f"binary data, in none of the formats known: {known_names()}")
    if not head.strip():
        raise InputError(file, "the file is empty")
    hint = "--format names one; --columns time=NAME,input=NAME,… names the columns of a table"
    raise InputError(file, f"its content is in none of the formats known: {known_names()} ({hint})")
