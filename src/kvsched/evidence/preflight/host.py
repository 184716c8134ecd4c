"""Checks of Python, packages, disk and an engine's address."""

from __future__ import annotations

import http.client
import shutil
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

from packaging.requirements import Requirement

from kvsched.evidence.preflight.gpu import Machine
from kvsched.evidence.preflight.report import Check
from kvsched.evidence.preflight.settings import engine_base
from kvsched.foundation.files import is_special

PYTHON = (3, 11)
ENGINE_PATHS = ("/health", "/v1/models")


def python_check(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Check:
    """Whether Python is recent enough."""
    said = ".".join(str(part) for part in version)
    if version >= PYTHON:
        return Check(name="python", status="ok", reason=f"Python {said}.")
    wanted = ".".join(str(part) for part in PYTHON)
    return Check(
        name="python",
        status="blocked",
        reason=f"Python {said} is older than {wanted}.",
        next_action=f"install Python {wanted} or later",
    )


def package_checks(
    required: list[Requirement], optional: list[Requirement], machine: Machine
) -> list[Check]:
    """One check a package: required ones block, optional ones warn."""
    checks = []
    for wanted, must in [(each, True) for each in required] + [(each, False) for each in optional]:
        version = machine.package_version(wanted.name)
        name = f"package {wanted.name}"
        said = f"{wanted.name} {wanted.specifier}".strip()
        if version is not None and wanted.specifier.contains(version, prereleases=True):
            checks.append(Check(name=name, status="ok", reason=f"{wanted.name} {version}."))
            continue
        found = "is not installed" if version is None else f"{version} is installed"
        checks.append(
            Check(
                name=name,
                status="blocked" if must else "warning",
                reason=f"{wanted.name} {found}; wanted: {said}.",
                next_action=f"pip install '{wanted.name}{wanted.specifier}'",
            )
        )
    return checks


def disk_check(name: str, folder: Path, least_gb: float, *, must_write: bool) -> Check:
    """Whether ``folder`` takes a file, and its free space; its name is not in the result.

    Where it is not there and need not be, the nearest one above it counts.
    """
    there = folder
    while not must_write and not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0")
            file.flush()
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Check(
            name=name,
            status="blocked" if must_write else "warning",
            reason=f"nothing can be written there ({error.strerror}).",
            next_action="make the folder, or name another one"
            if must_write
            else "set KVSCHED_CACHE_DIR to a folder that can be written",
        )
    enough = free >= least_gb * 1e9
    return Check(
        name=name,
        status="ok" if enough else "warning",
        reason=f"{free / 1e9:,.1f} GB are free.",
        next_action="" if enough else f"make room: less than {least_gb:g} GB are free",
    )


def output_check(output: str, least_gb: float) -> Check:
    """Whether the file of ``--output`` can be written, and what is free beside it."""
    target = Path(output)
    fault = ""
    try:
        if target.is_dir():
            fault = "is a folder"
        elif is_special(target):
            fault = "is a device or a pipe"
        else:
            target.exists()
    except OSError as error:
        fault = f"cannot be a file ({error.strerror})"
    if fault:
        return Check(
            name="disk (output)",
            status="blocked",
            reason=f"what --output names {fault}.",
            next_action="name a file",
        )
    return disk_check("disk (output)", target.parent, least_gb, must_write=True)


def engine_check(url: str, timeout_s: float) -> Check:
    """Ask the engine whether it is there: ``/health``, or ``/v1/models`` where that is unknown.

    Takes ``timeout_s`` at most, however slowly names are found and answers drip.
    """
    found: list[Check] = []
    # A socket's time limit is one for each piece that arrives, not for the whole.
    asking = threading.Thread(
        target=lambda: found.append(_asked(engine_base(url), timeout_s)), daemon=True
    )
    asking.start()
    asking.join(timeout_s)
    return found[0] if found else _unreachable(f"no answer within {timeout_s:g} s")


def _asked(base: str, timeout_s: float) -> Check:
    # An engine is reached directly, as the load generator does.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    reason = ""
    for path in ENGINE_PATHS:
        try:
            with opener.open(base + path, timeout=timeout_s) as answer:
                reason = f"GET {path} answers {answer.status}."
                return Check(name="engine", status="ok", reason=reason)
        except urllib.error.HTTPError as error:
            error.close()
            reason = f"GET {path} answers {error.code}"
            if error.code not in (404, 405):
                break
        except (OSError, http.client.HTTPException) as error:
            reason = _why(error, timeout_s)
            break
        except ValueError:
            reason = f"GET {path} leads on to what is no address"
            break
    return _unreachable(reason)


def _unreachable(reason: str) -> Check:
    return Check(
        name="engine",
        status="blocked",
        reason=f"{reason}.",
        next_action="start the engine, wait until it is healthy, and look at its address and port",
    )


def _why(error: Exception, timeout_s: float) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(cause, ConnectionRefusedError):
        return "the connection is refused: nothing listens there"
    if isinstance(cause, socket.gaierror):
        return "its host's name is not known"
    if isinstance(cause, http.client.HTTPException):
        return "what answers there is no HTTP server"
    return f"the connection fails ({getattr(cause, 'strerror', None) or type(cause).__name__})"
