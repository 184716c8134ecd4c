"""The file of a saved cache: a header in JSON and named arrays, whole, versioned and checksummed.

Magic (8 bytes), version (4), length of the header (8), the header, each array as a zstd frame or as
it is, SHA-256 over all before (32); integers little-endian. The checksum shows damage, not malice:
restore only files that you trust.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from kvsched.foundation.errors import InputError, KvschedError, UsageError
from kvsched.foundation.files import whole_file

MAGIC = b"\x89KVcache"
VERSION = 1
_LEAD = struct.Struct("<8sIQ")
_DIGEST = 32
_LEVEL = 1
"""zstd's fastest usual level: what is saved are mostly hashes and counters."""
_PIECE = 1 << 20

H = TypeVar("H", bound=msgspec.Struct)


class ArrayRecord(msgspec.Struct, forbid_unknown_fields=True):
    """One array, in the order of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stored: int
    """Bytes in the file."""
    packed: bool
    """Whether they are a zstd frame."""


class _Index(msgspec.Struct, Generic[H], forbid_unknown_fields=True):
    head: H
    arrays: list[ArrayRecord]


def save_arrays(
    path: str | os.PathLike[str],
    head: msgspec.Struct,
    arrays: Mapping[str, NDArray[Any]],
    plain: Iterable[str],
) -> None:
    """Write a header and arrays to ``path``, whole or not at all; those ``plain`` as they are.

    O(bytes). Raises UsageError and KvschedError where it cannot be written.
    """
    unpacked = set(plain)
    packer = zstandard.ZstdCompressor(level=_LEVEL)
    records, bodies = [], []
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        body: Any = little.reshape(-1).view(np.uint8).data
        packed = name not in unpacked
        if packed:
            body = packer.compress(body)
        bodies.append(body)
        records.append(ArrayRecord(name, little.dtype.str, array.shape, len(body), packed))
    header = msgspec.json.encode(_Index(head, records))
    digest = hashlib.sha256()
    with whole_file(path) as stream:
        for part in (_LEAD.pack(MAGIC, VERSION, len(header)), header, *bodies):
            digest.update(part)
            stream.write(part)
        stream.write(digest.digest())


class SavedFile(Generic[H]):
    """A saved cache as it was read: its header, and arrays that are unpacked when asked for.

    The whole file is in memory. Raises InputError, with nothing else done, for one that is no saved
    cache, of another version, cut off or changed.
    """

    def __init__(self, path: str | os.PathLike[str], head: type[H]) -> None:
        self.name = str(path)
        self._data = memoryview(_read(Path(path)))
        header = self._checked()
        try:
            index = msgspec.json.decode(header, type=_Index[head])  # type: ignore[valid-type]
        except UsageError as error:
            raise self.fault(f"its header makes no sense ({error})") from error
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise self.fault(f"its header cannot be read ({error})") from error
        self.head: H = index.head
        self._parts: dict[str, tuple[ArrayRecord, memoryview]] = {}
        at = _LEAD.size + len(header)
        end = len(self._data) - _DIGEST
        for record in index.arrays:
            if not 0 <= record.stored <= end - at or record.name in self._parts:
                raise self.fault(f"array {record.name} does not lie in it")
            self._parts[record.name] = (record, self._data[at : at + record.stored])
            at += record.stored
        if at != end:
            raise self.fault(f"{end - at:,} bytes belong to no array")

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def fault(self, what: str) -> InputError:
        """Return the error that names the file and what is wrong with it."""
        return InputError(self.name, what)

    def _checked(self) -> memoryview:
        """Return the header's bytes, once magic, version, lengths and checksum are right."""
        data = self._data
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise self.fault("is no saved cache" if len(data) else "is empty")
        if len(data) < _LEAD.size + _DIGEST:
            raise self.fault(f"is cut off: it has {len(data):,} bytes")
        _, version, length = _LEAD.unpack(data[: _LEAD.size])
        if version != VERSION:
            raise self.fault(
                f"has version {version} of the format, and this kvsched reads {VERSION}"
            )
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            raise self.fault("is cut off or was changed: its checksum is not that of its content")
        if length > len(data) - _LEAD.size - _DIGEST:
            raise self.fault(f"claims a header of {length:,} bytes, and has {len(data):,} in all")
        return data[_LEAD.size : _LEAD.size + length]

    def plain_bytes(self, name: str) -> int:
        """Return the bytes of an array that is stored as it is; 0 if there is none such."""
        found = self._parts.get(name)
        return 0 if found is None or found[0].packed else found[0].stored

    def form(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return an array's dtype and shape; None if there is none of that name."""
        found = self._parts.get(name)
        return None if found is None else (found[0].dtype, found[0].shape)

    def load(self, name: str, target: NDArray[Any]) -> None:
        """Fill ``target``, contiguous, with an array. Raises InputError if it has another form."""
        little = target.dtype.newbyteorder("<")
        wanted = (little.str, target.shape)
        if self.form(name) != wanted:
            raise self.fault(f"array {name} is {self.form(name)}, and not {wanted}")
        record, body = self._parts[name]
        found = target if little == target.dtype else np.empty(target.shape, little)
        room = found.reshape(-1).view(np.uint8).data.cast("B")
        if not record.packed:
            if record.stored != len(room):
                raise self.fault(f"array {name} has {record.stored:,} bytes, not {len(room):,}")
            room[:] = body
        elif not _unpack(body, room):
            raise self.fault(f"array {name} does not unpack to {len(room):,} bytes")
        if found is not target:
            target[...] = found


def _unpack(body: memoryview, room: memoryview) -> bool:
    """Fill ``room`` from a zstd frame; False if it holds more or less, or is none."""
    at = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            while at < len(room):
                count = reader.readinto(room[at : at + _PIECE])
                if not count:
                    return False
                at += count
            return not reader.read(1)
    except zstandard.ZstdError:
        return False


def _read(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(str(path), "is no file")
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise InputError(str(path), "is no saved cache" if found.st_size else "is empty")
            return MAGIC + stream.read()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(repr(str(path)), f"cannot be a file's name ({error})") from error
    except MemoryError as error:
        raise KvschedError(f"{path}: does not fit into memory") from error
