"""Block ids of a trace that is sampled as it is read: beyond 2 GiB of them, in a temporary file.

A sample needs them one after another a few times, never all at once. The file has no name and is
gone when the process ends, however it ends; the system's TMPDIR says where it is.
"""

from __future__ import annotations

import tempfile
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import KvschedError
from kvsched.trace.model import Int64s
from kvsched.trace.reading import Growing, Sampling
from kvsched.trace.source import os_fault

MOST_IN_MEMORY = 1 << 28
"""Ids, of 8 bytes."""
_STEP = 1 << 22


def _fault(error: OSError) -> KvschedError:
    where = tempfile.gettempdir()
    return KvschedError(
        f"block ids beyond {MOST_IN_MEMORY:,} are kept in {where}: {os_fault(error)} "
        "(TMPDIR names another folder)"
    )


class Spooled:
    """B block ids in a temporary file, which is closed with the object."""

    def __init__(self) -> None:
        self._length = 0
        try:
            self._file: Any = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (see finalize)
        except OSError as error:
            raise _fault(error) from error
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self._length

    def append(self, ids: Int64s) -> None:
        """Write ``ids`` (K,) after the others. Raises KvschedError."""
        view = ids.view(np.uint8).data
        done = 0
        try:
            self._file.seek(8 * self._length)
            while done < len(view):
                done += self._file.write(view[done:])
        except OSError as error:
            raise _fault(error) from error
        self._length += len(ids)

    def read_into(self, first: int, out: Int64s) -> None:
        """Fill ``out`` (K,) with the ids from ``first`` on. Raises KvschedError."""
        view = out.view(np.uint8).data
        done = 0
        try:
            self._file.seek(8 * first)
            while done < len(view):
                got = self._file.readinto(view[done:])
                if not got:
                    raise OSError("cut short")
                done += got
        except OSError as error:
            raise _fault(error) from error

    def take(self, places: NDArray[Any]) -> Int64s:
        """Return the ids at ``places`` (K,), in one pass. O(B + K log K)."""
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        out = np.empty(len(places), np.int64)
        for low in range(0, self._length, _STEP):
            begin, end = np.searchsorted(ordered, (low, low + _STEP))
            if begin < end:
                piece = np.empty(min(_STEP, self._length - low), np.int64)
                self.read_into(low, piece)
                out[order[begin:end]] = piece[ordered[begin:end] - low]
        return out

    def whole(self) -> Int64s:
        """Return all ids, in memory."""
        out = np.empty(self._length, np.int64)
        self.read_into(0, out)
        return out


Keys = Int64s | Spooled


class KeyColumn:
    """A column of block ids filled chunk by chunk; all in memory unless there is a sampling."""

    def __init__(self, sampling: Sampling | None) -> None:
        self._ids: Growing[Any] = Growing(np.int64)
        self._spooled: Spooled | None = None
        self._spools = sampling is not None

    def __len__(self) -> int:
        return len(self._ids) + (0 if self._spooled is None else len(self._spooled))

    def extend(self, values: NDArray[Any]) -> None:
        """Append ``values`` (K,). Amortised O(K). Raises KvschedError."""
        self._ids.extend(values)
        most = MOST_IN_MEMORY if self._spooled is None else _STEP
        if self._spools and len(self._ids) > most:
            self._flush(Spooled() if self._spooled is None else self._spooled)

    def _flush(self, spooled: Spooled) -> None:
        self._spooled = spooled
        spooled.append(self._ids.finish())
        self._ids = Growing(np.int64)

    def finish(self) -> Keys:
        """The ids. The object is spent. Raises KvschedError."""
        if self._spooled is None:
            return self._ids.finish()
        self._flush(self._spooled)
        return self._spooled


def in_memory(keys: Keys) -> Int64s:
    """Return all ids as an array."""
    return keys.whole() if isinstance(keys, Spooled) else keys
