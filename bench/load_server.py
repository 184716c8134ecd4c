"""A trivial server of streams: a fixed answer, a piece at a time, at next to no cost.

    load_server.py TOKENS GAP_MS

prints its port and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: bytes) -> bytes:
    data = b"data: %b\n\n" % event
    return b"%x\r\n%b\r\n" % (len(data), data)


def pieces(tokens: int) -> list[bytes]:
    """What is written for each token, the end with the last."""
    head = b'{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{'
    told = [
        chunk(
            head
            + b'"index":0,"text":" a","logprobs":null,"finish_reason":%b,"token_ids":[7]}]}'
            % (b'"length"' if number == tokens - 1 else b"null")
        )
        for number in range(tokens)
    ]
    usage = b'"usage":{"prompt_tokens":64,"completion_tokens":%d,"total_tokens":%d}'
    told[-1] += (
        chunk(b'{"id":"cmpl-0","choices":[],' + usage % (tokens, 64 + tokens) + b"}")
        + chunk(b"[DONE]")
        + b"0\r\n\r\n"
    )
    told[0] = HEAD + told[0]
    return told


class Server(asyncio.Protocol):
    def __init__(self, told: list[bytes], gap_s: float) -> None:
        self.told = told
        self.gap_s = gap_s
        self.left = b""
        self.loop = asyncio.get_running_loop()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.closed = True

    def data_received(self, data: bytes) -> None:
        data = self.left + data
        head, mark, body = data.partition(b"\r\n\r\n")
        if mark:
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(body) >= length:
                self.left = b""
                self.tell(0)
                return
        self.left = data

    def tell(self, number: int) -> None:
        if self.closed:
            return
        self.transport.write(self.told[number])
        if number + 1 < len(self.told):
            if self.gap_s:
                self.loop.call_later(self.gap_s, self.tell, number + 1)
            else:
                self.loop.call_soon(self.tell, number + 1)


async def serve() -> None:
    tokens, gap_s = int(sys.argv[1]), float(sys.argv[2]) / 1e3
    told = pieces(tokens)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(told, gap_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())
