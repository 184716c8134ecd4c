"""Files that a long command will write: refused before it runs, not after."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kvsched.foundation.errors import UsageError
from kvsched.foundation.files import is_special


def check_writable(option: str, path: str | None) -> None:
    """Raise UsageError where ``path`` could not be written. None asks for no file."""
    if path is None:
        return
    if not path or "\0" in path:
        raise UsageError(f"{option} is {path!r}: no file can have that name")
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{option}: {target} is a folder")
    if is_special(target):
        raise UsageError(f"{option}: {target} is no plain file")
    try:
        target.exists()  # asks whether the name is one
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise UsageError(f"{option}: {target} cannot be written ({error.strerror})") from None


def check_apart(*paths: str | None) -> None:
    """Raise UsageError where two of the files that are asked for are one."""
    given = [Path(path).absolute() for path in paths if path is not None]
    if len(set(given)) < len(given):
        raise UsageError("two of the files to write are the same")
