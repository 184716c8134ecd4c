"""What a preflight is asked for, read and refused before anything is looked at."""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement

from kvsched.foundation.errors import UsageError

OPERATORS = ("<", ">", "=", "!", "~")


@dataclass(frozen=True, kw_only=True)
class PreflightSettings:
    """The requirements; `checked` refuses what makes no sense."""

    gpu: bool = False
    """Whether a GPU is required."""
    native_bf16: bool = False
    min_gpu_memory_gb: float | None = None
    """GB of 10^9 bytes that one device must have."""
    packages: tuple[str, ...] = ()
    """Distribution names, with versions where wanted: ``torch>=2.5``."""
    optional_packages: tuple[str, ...] = ()
    engine_url: str | None = None
    engine_timeout_s: float = 5.0
    output: str | None = None
    min_disk_gb: float = 1.0
    """Less free than this is a warning."""


def split_packages(texts: Iterable[str]) -> tuple[str, ...]:
    """Split at commas, but for those inside a version: ``torch>=2.5,<3,numpy`` are two."""
    found: list[str] = []
    for text in texts:
        for part in (piece.strip() for piece in text.split(",")):
            if part.startswith(OPERATORS) and found:
                found[-1] += f",{part}"
            elif part:
                found.append(part)
    return tuple(found)


def requirement(text: str, option: str) -> Requirement:
    """Read one package. Raises UsageError for what is no name with versions."""
    try:
        found = Requirement(text)
    except InvalidRequirement:
        raise UsageError(
            f"{option}: {text!r} is no distribution's name, with versions or without"
        ) from None
    if found.url or found.marker or found.extras:
        raise UsageError(f"{option}: {text!r} says more than a name and versions")
    return found


def checked(settings: PreflightSettings) -> tuple[list[Requirement], list[Requirement]]:
    """Return the packages that are required, and the optional ones. Raises UsageError."""
    for value, option in (
        (settings.min_gpu_memory_gb, "--min-gpu-memory-gb"),
        (settings.min_disk_gb, "--min-disk-gb"),
    ):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{option} is {value:g}, not a number of GB")
    timeout = settings.engine_timeout_s
    if not (math.isfinite(timeout) and 0 < timeout <= 600):
        raise UsageError(f"--engine-timeout-s is {timeout:g}, not above 0 and at most 600")
    if settings.engine_url is not None:
        engine_base(settings.engine_url)
    if settings.output is not None and (not settings.output or "\0" in settings.output):
        raise UsageError(f"--output is {settings.output!r}: no file can have that name")
    return (
        [requirement(text, "--packages") for text in settings.packages],
        [requirement(text, "--optional-packages") for text in settings.optional_packages],
    )


def engine_base(url: str) -> str:
    """Return the engine's address without a trailing slash or ``/v1``. Raises UsageError."""
    said = "--engine-url is no http:// or https:// address, as in http://localhost:8000"
    try:
        parts = urllib.parse.urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise UsageError(said) from None
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in parts.netloc):
        raise UsageError(said)
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("--engine-url holds more than an address: leave out names and queries")
    path = parts.path.rstrip("/").removesuffix("/v1")
    return f"{parts.scheme}://{parts.netloc}{path}"
