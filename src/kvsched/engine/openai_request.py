"""What is sent for a completion: the request's head, its fields, and to which addresses."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from kvsched.engine.target import Target
from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION


def request_head(target: Target) -> bytes:
    """Return a completion's request up to the number of its body's bytes.

    Raises UsageError for an address with a password, and for headers that HTTP cannot carry.
    """
    parts = urlsplit(target.url)
    if parts.username is not None or parts.password is not None:
        raise UsageError("--engine-url: a name and a password in the address are not supported")
    host = parts.netloc
    headers = {
        "Host": host,
        "User-Agent": f"kvsched/{VERSION}",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if target.api_key is not None:
        headers["Authorization"] = f"Bearer {target.api_key}"
    headers |= target.headers
    lines = [f"POST {parts.path}/v1/completions HTTP/1.1"]
    for name, value in headers.items():
        text = f"{name}: {value}"
        if not name or not text.isprintable() or not text.isascii():
            # Not shown: it may be a secret.
            raise UsageError(f"the header {name!r} has a character that HTTP cannot carry")
        lines.append(text)
    return "\r\n".join([*lines, "Content-Length: "]).encode("ascii")


def addresses(host: str, port: int) -> list[str]:
    """Return the numeric addresses of ``host``, as the system orders them. Raises UsageError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--engine-url: {host}: {error}") from error
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def completion_fields(
    model: str, prompt: Sequence[int] | str, output_tokens: int, more: dict[str, Any]
) -> dict[str, Any]:
    """Return a request's JSON object: a stream of exactly ``output_tokens`` tokens, greedily.

    ``more`` adds fields, changes them, or takes them out where its value is None.
    """
    fields: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    fields |= more
    return {name: value for name, value in fields.items() if value is not None}
