"""A file opened for reading: decompressed as a stream, its faults named in words."""

from __future__ import annotations

import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from kvsched.foundation.errors import InputError

Progress = Callable[[int, int], None]
"""Called with the bytes of the file(s) read so far and in all (0 where that is not known)."""

BLOCK = 1 << 20
HEAD = 1 << 16
LONGEST_LINE = 1 << 28
_ZSTD_PIECE = 1 << 14  # a piece of zstd may unfold 30,000-fold: small pieces bound the memory
_BOM = b"\xef\xbb\xbf"


def os_fault(error: OSError) -> str:
    """What went wrong, as part of a sentence."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, IsADirectoryError):
        return "is a folder, not a file"
    return (error.strerror or str(error)).lower()


class Source:
    """One file of a trace. Compression is told by content, whatever the file is called.

    Used as a context manager. Faults of opening, reading and decompressing are `InputError`.
    """

    def __init__(self, path: Path, progress: Progress | None = None) -> None:
        self.path = path
        self.name = str(path)
        self.compression = ""
        """``gzip``, ``zstd`` or empty."""
        self._progress = progress
        self._done = 0
        try:
            self._file: IO[bytes] = path.open("rb", buffering=0)
            status = path.stat()
            self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0
            first = self._file.read(BLOCK) or b""
        except OSError as error:
            raise InputError(self.name, os_fault(error)) from error
        raw = self._raw(first)
        if first.startswith(b"\x1f\x8b"):
            self.compression = "gzip"
            self._plain = self._gunzip(raw)
        elif first.startswith(b"\x28\xb5\x2f\xfd"):
            self.compression = "zstd"
            self._plain = self._unzstd(raw)
        else:
            self._plain = raw
        self._ahead: list[bytes] = []

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def regular(self) -> bool:
        """Whether it is an uncompressed file on disk, which can be memory-mapped."""
        return not self.compression and self.size > 0

    def head(self) -> bytes:
        """The first 64 KiB or less, decompressed, to tell the format by. Reads nothing twice."""
        while sum(map(len, self._ahead)) < HEAD:
            block = next(self._plain, b"")
            if not block:
                break
            self._ahead.append(block)
        return b"".join(self._ahead)[:HEAD].removeprefix(_BOM)

    def blocks(self) -> Iterator[bytes]:
        """The content, decompressed, block by block, without a byte order mark. Can run once."""
        self.head()
        start = b"".join(self._ahead).removeprefix(_BOM)
        self._ahead.clear()
        if start:
            yield start
        yield from self._plain

    def read_all(self) -> bytes:
        """The whole content, decompressed. Memory: its size."""
        return b"".join(self.blocks())

    def line_chunks(self, size: int = 4 * BLOCK) -> Iterator[bytes]:
        """Chunks of whole lines of about ``size`` bytes; only the last may lack its newline."""
        pending: list[bytes] = []
        length = 0
        for block in self.blocks():
            pending.append(block)
            length += len(block)
            if length < size:
                continue
            data = b"".join(pending)
            cut = data.rfind(b"\n") + 1
            if cut:
                yield data[:cut]
            elif length > LONGEST_LINE:
                raise InputError(self.name, f"a line is longer than {LONGEST_LINE >> 20} MiB")
            pending = [data[cut:]]
            length = len(data) - cut
        rest = b"".join(pending)
        if rest:
            yield rest

    def _raw(self, first: bytes) -> Iterator[bytes]:
        block = first
        while block:
            self._done += len(block)
            if self._progress is not None:
                self._progress(self._done, self.size)
            yield block
            try:
                block = self._file.read(BLOCK) or b""
            except OSError as error:
                raise InputError(self.name, os_fault(error)) from error

    def _gunzip(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        member = zlib.decompressobj(wbits=31)
        fed = False
        for block in raw:
            data = block
            while data:
                if not fed:
                    data = data.lstrip(b"\0")  # padding between members
                    if not data:
                        break
                fed = True
                try:
                    out = member.decompress(data, BLOCK)
                except zlib.error as error:
                    raise InputError(self.name, "the gzip data is damaged") from error
                if out:
                    yield out
                data = member.unconsumed_tail
                if member.eof:
                    data = member.unused_data
                    member = zlib.decompressobj(wbits=31)
                    fed = False
        yield from self._drained(member, fed)

    def _drained(self, member: zlib._Decompress, fed: bool) -> Iterator[bytes]:
        """What the last member still holds back; an unfinished one was cut short."""
        while fed and not member.eof:
            try:
                out = member.decompress(b"", BLOCK)
            except zlib.error as error:
                raise InputError(self.name, "the gzip data is damaged") from error
            if not out:
                raise InputError(self.name, "the gzip data is cut short")
            yield out

    def _unzstd(self, raw: Iterator[bytes]) -> Iterator[bytes]:
        import zstandard

        context = zstandard.ZstdDecompressor()
        frame = context.decompressobj()
        fed = False
        for block in raw:
            for at in range(0, len(block), _ZSTD_PIECE):
                data = block[at : at + _ZSTD_PIECE]
                while data:
                    fed = True
                    try:
                        out = frame.decompress(data)
                    except zstandard.ZstdError as error:
                        raise InputError(self.name, "the zstd data is damaged") from error
                    if out:
                        yield out
                    data = b""
                    if frame.eof:
                        data = frame.unused_data
                        frame = context.decompressobj()
                        fed = False
        if fed:
            raise InputError(self.name, "the zstd data is cut short")
