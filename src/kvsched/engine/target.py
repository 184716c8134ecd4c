"""Where an engine is and how it is spoken to."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from kvsched.foundation.errors import UsageError


@dataclass(frozen=True)
class Target:
    """An engine with an OpenAI-compatible API. Raises UsageError for an address that is none."""

    url: str
    """``http://127.0.0.1:8000``, without a path; ``/v1`` at its end is taken off."""
    model: str
    """The model's name in requests."""
    api_key: str | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", base_url(self.url))


def base_url(url: str) -> str:
    """Return the address without ``/v1`` and slashes at its end. Raises UsageError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--engine-url {url}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--engine-url {url}: must be like http://127.0.0.1:8000")
    if parts.query or parts.fragment or port == 0:
        raise UsageError(f"--engine-url {url}: must be like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
