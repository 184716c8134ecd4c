"""kvsched's own raw columns: one file, opened memory-mapped, checked before anything uses it.

Layout (little-endian): 8 bytes of magic; uint32 version, length and CRC-32 of the header; the
header (JSON: block size, origin, labels, digest, and a table of columns with name, dtype,
offset, length and CRC-32), padded with spaces to a multiple of 64; then the columns, each at its
offset from there, a multiple of 64. Written whole or not at all.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError
from kvsched.foundation.files import whole_file
from kvsched.trace.check import structural_fault
from kvsched.trace.model import Labels, Origin, Trace
from kvsched.trace.reading import Format, ReadOptions
from kvsched.trace.source import Source

MAGIC = b"\x8bKVTRACE"
VERSION = 1
SUFFIX = ".kvtrace"
_PREFIX = struct.Struct("<8sIII")
_ALIGN = 64
_LABELS = ("tenant", "session", "type", "model")
_DTYPES = {
    "time_s": "<f8",
    "input_tokens": "<i8",
    "output_tokens": "<i8",
    "starts": "<i8",
    "chains": "<i4",
    "parent": "<i4",
    "depth": "<i4",
    "tokens": "<i4",
    "key": "<i8",
    **{f"{name}.codes": "<i4" for name in _LABELS},
    "turn": "<i4",
    "priority": "<i4",
    "deadline_s": "<f8",
    "delay_s": "<f8",
}
_REQUIRED = tuple(_DTYPES)[:9]

_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class _Column(msgspec.Struct):
    name: str
    dtype: str
    offset: _Size
    length: _Size
    crc32: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _Origin(msgspec.Struct):
    source: str
    format: str
    time_unit: str
    notes: list[str]
    settings: dict[str, Any]


class _Header(msgspec.Struct):
    block_size: _Size
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    origin: _Origin
    labels: dict[str, list[str]]
    columns: list[_Column]


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _pieces(trace: Trace) -> Iterator[bytes | memoryview]:
    """The file's bytes, piece by piece."""
    arrays: dict[str, NDArray[Any]] = {
        n: np.ascontiguousarray(a, _DTYPES[n]) for n, a in trace.columns().items()
    }
    table = []
    offset = 0
    for name, array in arrays.items():
        checksum = zlib.crc32(array.view(np.uint8).data) if len(array) else 0
        table.append(_Column(name, _DTYPES[name], offset, len(array), checksum))
        offset += _aligned(array.nbytes)
    origin = trace.origin
    header = {
        "block_size": trace.block_size,
        "digest": trace.digest,
        "origin": {
            "source": origin.source,
            "format": origin.format,
            "time_unit": origin.time_unit,
            "notes": list(origin.notes),
            "settings": origin.settings,
        },
        "labels": {
            name: list(labels.names)
            for name in _LABELS
            if (labels := getattr(trace, name)) is not None
        },
        "columns": [msgspec.to_builtins(column) for column in table],
    }
    text = json.dumps(header, sort_keys=True, allow_nan=False).encode()
    text += b" " * (_aligned(_PREFIX.size + len(text)) - _PREFIX.size - len(text))
    yield _PREFIX.pack(MAGIC, VERSION, len(text), zlib.crc32(text))
    yield text
    for array in arrays.values():
        yield array.view(np.uint8).data if len(array) else b""
        yield b"\0" * (_aligned(array.nbytes) - array.nbytes)


def write_columns(trace: Trace, path: Path) -> None:
    """Write ``trace`` to ``path``, compressed where that ends in ``.gz`` or ``.zst``.

    The same trace gives the same bytes. Raises UsageError where it cannot be written.
    """
    with whole_file(path) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                _write(trace, packed.write)
        elif path.suffix == ".zst":
            import zstandard

            with zstandard.ZstdCompressor(3, write_checksum=True).stream_writer(
                stream, closefd=False
            ) as writer:
                _write(trace, writer.write)
        else:
            _write(trace, stream.write)


def _write(trace: Trace, write: Callable[[Any], object]) -> None:
    for piece in _pieces(trace):
        write(piece)


def read(source: Source, options: ReadOptions) -> Trace:  # noqa: ARG001
    """Open raw columns: memory-mapped, or unpacked to memory where compressed.

    O(B + N) to check that every index is in range and every byte as it was written, a few ns
    each. Raises InputError.
    """
    data: NDArray[np.uint8]
    if source.regular:
        try:
            data = np.asarray(np.memmap(source.path, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise InputError(source.name, "cannot be memory-mapped") from error
    else:
        data = np.frombuffer(source.read_all(), np.uint8)
    header, base = _read_header(source.name, data)
    try:
        trace = _assemble(source.name, header, data[base:])
        fault = structural_fault(trace)
    except (ValueError, UnicodeEncodeError) as error:
        raise InputError(source.name, "damaged: the columns do not make a trace") from error
    if fault is not None:
        raise InputError(source.name, f"damaged: {fault}")
    _check_sums(source.name, header, data[base:])
    trace.__dict__["digest"] = header.digest
    return trace


def _read_header(file: str, data: NDArray[np.uint8]) -> tuple[_Header, int]:
    """The header, and where the columns start."""
    if len(data) < _PREFIX.size or data[: len(MAGIC)].tobytes() != MAGIC:
        raise InputError(file, "not a kvsched trace: it does not start as one")
    _, version, length, checksum = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
    if version != VERSION:
        raise InputError(
            file, f"version {version} of the raw columns; this kvsched reads {VERSION}"
        )
    base = _PREFIX.size + length
    if base > len(data):
        raise InputError(file, "cut short: the header is not whole")
    text = data[_PREFIX.size : base].tobytes()
    if zlib.crc32(text) != checksum:
        raise InputError(file, "damaged: the header is not as it was written")
    try:
        header = msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(file, "damaged: the header cannot be read") from error
    return header, base


def _check_sums(file: str, header: _Header, data: NDArray[np.uint8]) -> None:
    """Refuse a column whose bytes are not those that were written: the digest rests on them."""
    for column in header.columns:
        size = column.length * np.dtype(column.dtype).itemsize
        if zlib.crc32(data[column.offset : column.offset + size].data) != column.crc32:
            raise InputError(file, f"damaged: {column.name} is not as it was written")


def _assemble(file: str, header: _Header, data: NDArray[np.uint8]) -> Trace:
    """The trace over the columns in ``data``, whose places and types are checked."""
    arrays: dict[str, Any] = {}
    end = 0
    for column in header.columns:
        if _DTYPES.get(column.name) != column.dtype or column.name in arrays:
            raise InputError(file, "damaged: a column is not one of a trace")
        dtype = np.dtype(column.dtype)
        last = column.offset + column.length * dtype.itemsize
        if column.offset % _ALIGN:
            raise InputError(file, "damaged: a column is out of its place")
        end = max(end, column.offset + _aligned(column.length * dtype.itemsize))
        arrays[column.name] = data[column.offset : last]
        if len(arrays[column.name]) == last - column.offset:
            arrays[column.name] = arrays[column.name].view(dtype)
    if len(data) < end:
        raise InputError(file, f"cut short: {end - len(data)} bytes of the columns are missing")
    if len(data) > end:
        raise InputError(file, "damaged: it goes on after the columns")
    if any(name not in arrays for name in _REQUIRED):
        raise InputError(file, "damaged: a column is missing")
    labels: dict[str, Any] = {}
    for name in _LABELS:
        codes = arrays.pop(f"{name}.codes", None)
        if (codes is None) != (name not in header.labels):
            raise InputError(file, f"damaged: {name} has codes or names, not both")
        if codes is not None:
            labels[name] = Labels(codes, tuple(header.labels[name]))
    origin = header.origin
    return Trace(
        **arrays,
        **labels,
        block_size=header.block_size,
        origin=Origin(
            origin.source, origin.format, origin.time_unit, tuple(origin.notes), origin.settings
        ),
    )


def sniff(head: bytes) -> bool:
    """Whether it starts with the magic."""
    return head.startswith(MAGIC)


FORMAT = Format(
    name="columns",
    title="kvsched's raw columns, written by `kvsched trace convert`",
    suffixes=(SUFFIX,),
    sniff=sniff,
    read=read,
)
