"""Single requests to an engine beside the load: health, version, metrics, a reset.

The standard library alone, and no proxy: what is measured must be the engine itself.
"""

from __future__ import annotations

import http.client
import socket
import time
import urllib.error
import urllib.request

from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError

MOST_BYTES = 32 << 20
"""A longer answer is refused."""
MOST_WORDS = 200
"""Characters of a fault."""
_AT_ONCE = 1 << 16


class EngineSilentError(KvschedError):
    """The engine did not answer as it should; ``status`` is the HTTP status where there was one."""

    def __init__(self, said: str, status: int | None = None) -> None:
        super().__init__(said)
        self.status = status


def ask(
    target: Target,
    path: str,
    *,
    method: str = "GET",
    timeout_s: float = 5.0,
    most_bytes: int = MOST_BYTES,
) -> bytes:
    """Return what the engine answers at ``path``. Raises EngineSilentError.

    The answer has to begin within ``timeout_s``, and to be whole within as long again.
    """
    headers = dict(target.headers)
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    where = f"{method} {target.url}{path}"
    request = urllib.request.Request(  # noqa: S310  # `Target` lets http and https through alone
        target.url + path, method=method, headers=headers, data=b"" if method == "POST" else None
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            data = _whole(answer, most_bytes, timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise EngineSilentError(f"{where}: status {error.code}", error.code) from error
    except urllib.error.URLError as error:
        raise EngineSilentError(f"{where}: {_words(error.reason)}") from error
    except (OSError, http.client.HTTPException) as error:
        raise EngineSilentError(f"{where}: {_words(error)}") from error
    if len(data) > most_bytes:
        raise EngineSilentError(f"{where}: the answer is longer than {most_bytes:,} bytes")
    return data


def _whole(answer: http.client.HTTPResponse, most_bytes: int, timeout_s: float) -> bytes:
    """Read up to one byte more than ``most_bytes``; TimeoutError for who sends drop by drop."""
    until = time.monotonic() + timeout_s
    parts: list[bytes] = []
    size = 0
    while size <= most_bytes:
        part = answer.read1(min(_AT_ONCE, most_bytes + 1 - size))
        if not part:
            break
        parts.append(part)
        size += len(part)
        if time.monotonic() > until:
            raise TimeoutError
    return b"".join(parts)


def _words(error: object) -> str:
    if isinstance(error, socket.timeout):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # What a server sent may be in it: no control characters, and not all of it.
    said = "".join(each if each.isprintable() else "?" for each in " ".join(str(error).split()))
    return said[:MOST_WORDS] or type(error).__name__
