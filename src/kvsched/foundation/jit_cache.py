"""Numba's disk cache, in a folder that the caller names. Imported only when something compiles."""

# Numba ships no types for its caching module.
# mypy: disable-error-code="no-untyped-call,misc"

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator
from numba.core.serialize import dumps


class _FolderLocator(_CacheLocator):
    """A folder whose name already says what the code is, so its stamp never changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return ""


@dataclass
class Tally:
    """What happened to the cache in this process."""

    compiled: int = 0
    """Functions that had to be compiled, parts and what Numba compiles for itself left out."""
    kept: int = 0
    """Those whose code was written to the disk."""


TALLY = Tally()


def folder_cache(function: Any, folder: Path) -> FunctionCache:
    """Return the cache of one compiled function; a damaged file counts as a miss."""

    class _Impl(CompileResultCacheImpl):
        """Names the cached files inside the folder; Numba hands it the function alone."""

        def __init__(self, _function: Any) -> None:
            self._locator = _FolderLocator(folder)
            self._filename_base = "kernel"

        # One wrong bit in machine code would end the process: the code is kept with its checksum.
        def reduce(self, cres: Any) -> tuple[str, bytes]:
            data = dumps(super().reduce(cres))
            return hashlib.sha256(data).hexdigest(), data

        def rebuild(self, target_context: Any, payload: tuple[str, bytes]) -> Any:
            checksum, data = payload
            if hashlib.sha256(data).hexdigest() != checksum:
                raise ValueError("the compiled code is damaged")
            return super().rebuild(target_context, pickle.loads(data))  # noqa: S301  # our own

    class _Cache(FunctionCache):
        _impl_class = _Impl

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            """Return the cached code for ``sig``, or None to have it compiled."""
            try:
                found = super().load_overload(sig, target_context)
            except Exception:  # noqa: BLE001  # damaged bytes may raise anything
                with contextlib.suppress(OSError):
                    self.flush()
                found = None
            TALLY.compiled += found is None
            return found

        def save_overload(self, sig: Any, data: Any) -> None:
            """Keep the code; a full or read-only disk costs the next start, nothing else."""
            try:
                super().save_overload(sig, data)
                TALLY.kept += 1
            except OSError:
                self.disable()

    return _Cache(function)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process; go on where there can be none."""
    try:
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def compile_once(dispatcher: Any, folder: Path) -> None:
    """Have processes that need the same code at the same time wait for the first one's."""
    compile_now = dispatcher.compile

    def compile_or_load(signature: Any) -> Any:
        with _locked(folder):
            return compile_now(signature)

    dispatcher.compile = compile_or_load
