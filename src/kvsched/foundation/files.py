"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kvsched.foundation.errors import KvschedError, UsageError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open ``path`` for writing so that a reader sees the old file or the new one, never a part.

    The bytes go to a temporary file beside it, which takes its name when the block ends
    without an error and is removed otherwise. Links are followed. Raises UsageError where nothing
    can be written (also to a device or a pipe, which no file may replace), and KvschedError where
    the disk gives out on the way.
    """
    if "\0" in str(path):
        raise UsageError(f"{str(path)!r}: no file can have that name")
    target = Path(os.path.realpath(path))  # the file takes the place of what a link points to
    if is_special(target):
        raise UsageError(f"{path}: cannot be written (it is no plain file)")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        try:
            Path(name).replace(target)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from error
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise KvschedError(f"{path}: cannot be written ({error.strerror})") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def is_special(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a device, a pipe or a socket, which a file must not replace."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all. Raises UsageError as `whole_file`."""
    with whole_file(path) as stream:
        stream.write(data)
