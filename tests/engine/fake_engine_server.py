"""The fake engine's server: ``python fake_engine_server.py [--port PORT] [SCRIPT in JSON]``.

Prints its port and serves until it is ended. Needs the standard library alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import struct
import sys
import time
import zlib
from collections import OrderedDict
from typing import Any

MODEL = "fake-model"

DEFAULTS: dict[str, Any] = {
    # Of one request: may be changed by `requests` and `when`.
    "ttft_s": 0.0,  # before the first token
    "ttft_per_token_s": 0.0,  # added for each prompt token that was not cached
    "itl_s": 0.0,  # between pieces
    "tokens_per_piece": 1,
    "tokens": None,  # how many come, instead of max_tokens
    "status": 200,
    "retry_after": None,  # the header's value
    "fail_times": None,  # the status holds for so many requests of the same prompt; None: always
    "error_after": None,  # tokens before an error object in the stream
    "invalid_after": None,  # tokens before an event that is no JSON
    "reset_after": None,  # tokens before the connection is reset
    "fin_after": None,  # tokens before it is closed in order
    "silent": False,  # takes the request and never answers
    "headers_only": False,  # answers 200 and never sends a piece
    "endless": False,  # never stops sending tokens
    "raw": None,  # bytes (latin-1) that are the whole answer, then the connection is closed
    "usage": "true",  # "true", "wrong", "none"
    "cached_details": True,
    "done": True,
    "token_ids": True,  # given where the request asks for return_token_ids
    "text": " a",
    "empty_first": False,  # a piece without a token comes first
    "keep_alives": False,  # a comment comes before each piece
    "close": False,  # no chunks, no length: the end of the connection ends the answer
    "refuse": [],  # fields of the request that are answered with 400
    # Of the engine.
    "block_size": 16,
    "num_blocks": 10_000,
    "prefix_caching": True,
    "max_num_seqs": 10_000,
    "die_after": None,  # the process dies when so many requests were answered
    "health_after_s": 0.0,
    "metrics": True,
    "version": "0.33.0",
    "max_model_len": 32_768,
    "keep_bodies": 0,
    "api_key": None,
    "text_only": False,  # refuses token ids; a text's tokens are its words
    "tls": None,  # [certificate, key]: paths
    "requests": {},
    "when": {},
}


class Cache:
    """Full blocks by (parent, tokens), least recently used first."""

    def __init__(self, block_size: int, num_blocks: int, enabled: bool) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enabled = enabled
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.queries = 0
        self.hits = 0

    def look_up(self, prompt: list[int]) -> int:
        """Return the tokens found, and store the prompt's full blocks."""
        if not self.enabled:
            return 0
        size = self.block_size
        chain, parent = [], 0
        for start in range(0, len(prompt) - size + 1, size):
            parent = hash((parent, *prompt[start : start + size]))
            chain.append(parent)
        found = 0
        # The last token is always computed, so the block that ends with it cannot be a hit.
        for block in chain[: (len(prompt) - 1) // size]:
            if block not in self.blocks:
                break
            found += 1
        for block in reversed(chain):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.num_blocks:
            self.blocks.popitem(last=False)
        self.queries += len(prompt)
        self.hits += found * size
        return found * size


class Engine:
    """The server's state."""

    def __init__(self, script: dict[str, Any]) -> None:
        unknown = set(script) - set(DEFAULTS)
        if unknown:
            raise SystemExit(f"no such behaviour: {sorted(unknown)}")
        self.script = DEFAULTS | script
        self.cache = Cache(
            self.script["block_size"], self.script["num_blocks"], self.script["prefix_caching"]
        )
        self.started = time.perf_counter()
        self.seats = asyncio.Semaphore(self.script["max_num_seqs"])
        self.asked: dict[tuple[int, ...], int] = {}
        self.bodies: list[dict[str, Any]] = []
        self.received_s: list[float] = []
        self.accepted_s: list[float] = []
        self.counts = dict.fromkeys(
            ("requests", "answered", "running", "waiting", "most_running", "connections", "open"), 0
        )
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.ttft: list[float] = []

    def behaviour(self, ordinal: int, prompt: list[int]) -> dict[str, Any]:
        script = dict(self.script)
        script |= self.script["requests"].get(str(ordinal), {})
        if prompt:
            script |= self.script["when"].get(str(prompt[-1]), {})
        return script

    def stats(self) -> dict[str, Any]:
        cache = {"queries": self.cache.queries, "hits": self.cache.hits}
        # This very question is asked over a connection of its own.
        counts = self.counts | {"open": self.counts["open"] - 1}
        moments = {"received_s": self.received_s, "accepted_s": self.accepted_s}
        return counts | cache | moments | {"bodies": self.bodies}

    def metrics(self) -> str:
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        usage = len(self.cache.blocks) / self.script["num_blocks"]
        rows: list[tuple[str, str, float]] = [
            ("vllm:num_requests_running", "gauge", self.counts["running"]),
            ("vllm:num_requests_waiting", "gauge", self.counts["waiting"]),
            ("vllm:kv_cache_usage_perc", "gauge", usage),
            ("vllm:prefix_cache_queries_total", "counter", self.cache.queries),
            ("vllm:prefix_cache_hits_total", "counter", self.cache.hits),
            ("vllm:num_preemptions_total", "counter", 0),
            ("vllm:prompt_tokens_total", "counter", self.prompt_tokens),
            ("vllm:prompt_tokens_cached_total", "counter", self.cache.hits),
            ("vllm:generation_tokens_total", "counter", self.output_tokens),
        ]
        text = ""
        for name, kind, value in rows:
            family = name.removesuffix("_total")
            text += f"# HELP {family} Of the fake engine.\n# TYPE {family} {kind}\n"
            text += f"{name}{labels} {float(value)}\n"
        name = "vllm:time_to_first_token_seconds"
        text += f"# HELP {name} Of the fake engine.\n# TYPE {name} histogram\n"
        for edge in (0.001, 0.01, 0.1, 1.0, 10.0):
            below = sum(value <= edge for value in self.ttft)
            text += f'{name}_bucket{{engine="0",le="{edge}",model_name="{MODEL}"}} {below}.0\n'
        text += f'{name}_bucket{{engine="0",le="+Inf",model_name="{MODEL}"}} {len(self.ttft)}.0\n'
        text += f"{name}_count{labels} {len(self.ttft)}.0\n{name}_sum{labels} {sum(self.ttft)}\n"
        config = (
            f'{{block_size="{self.script["block_size"]}",engine="0",'
            f'enable_prefix_caching="{self.script["prefix_caching"]}",'
            f'num_gpu_blocks="{self.script["num_blocks"]}"}}'
        )
        name = "vllm:cache_config_info"
        return (
            text + f"# HELP {name} Of the fake engine.\n# TYPE {name} gauge\n{name}{config} 1.0\n"
        )

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["connections"] += 1
        self.accepted_s.append(time.perf_counter())
        self.counts["open"] += 1
        try:
            while await self.request(reader, writer):
                pass
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self.counts["open"] -= 1
            writer.close()

    async def request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; say whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split("\r\n", 1)[0].split(" ", 2)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        key = self.script["api_key"]
        if key is not None and headers.get("authorization") != f"Bearer {key}":
            answer(writer, 401, {"error": {"message": "Unauthorized", "code": 401}})
        elif path == "/v1/completions" and method == "POST":
            return await self.completion(json.loads(body), headers, reader, writer)
        elif path == "/v1/models":
            model = {"id": MODEL, "object": "model", "max_model_len": self.script["max_model_len"]}
            answer(writer, 200, {"object": "list", "data": [model]})
        elif path == "/health":
            ready = time.perf_counter() - self.started >= self.script["health_after_s"]
            answer(writer, 200 if ready else 503, None)
        elif path == "/version":
            answer(writer, 200, {"version": self.script["version"]})
        elif path == "/metrics" and self.script["metrics"]:
            answer(writer, 200, self.metrics())
        elif path == "/reset_prefix_cache" and method == "POST":
            self.cache.blocks.clear()
            answer(writer, 200, None)
        elif path == "/fake/stats":
            answer(writer, 200, self.stats())
        else:
            answer(writer, 404, {"detail": "Not Found"})
        await writer.drain()
        return headers.get("connection", "").lower() != "close"

    async def completion(
        self,
        asked: dict[str, Any],
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        ordinal = self.counts["requests"]
        self.counts["requests"] += 1
        self.received_s.append(time.perf_counter())
        if len(self.bodies) < self.script["keep_bodies"]:
            kept = ("authorization", "content-type", "host", "user-agent")
            self.bodies.append(asked | {"headers": {name: headers.get(name) for name in kept}})
        prompt = asked["prompt"]
        if isinstance(prompt, str):
            prompt = [zlib.crc32(word.encode()) for word in prompt.split()]
        elif self.script["text_only"]:
            fault = {"message": "prompt: Input should be a valid string", "type": "BadRequestError"}
            answer(writer, 400, {"error": fault})
            return True
        script = self.behaviour(ordinal, prompt)
        refused = [field for field in script["refuse"] if field in asked]
        if refused:
            fault = f"Extra inputs are not permitted: '{refused[0]}'"
            answer(writer, 400, {"error": {"message": fault, "type": "BadRequestError"}})
            return True
        times = self.asked[tuple(prompt)] = self.asked.get(tuple(prompt), 0) + 1
        if script["status"] != 200 and (
            script["fail_times"] is None or times <= script["fail_times"]
        ):
            more = (
                [] if script["retry_after"] is None else [f"Retry-After: {script['retry_after']}"]
            )
            fault = {"message": f"as the script says, {script['status']}", "code": script["status"]}
            answer(writer, script["status"], {"error": fault}, more)
            return True
        if script["raw"] is not None:
            writer.write(script["raw"].encode("latin-1"))
            await writer.drain()
            return False
        if script["silent"] or script["headers_only"]:
            if script["headers_only"]:
                writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            await reader.read()
            return False
        self.counts["waiting"] += 1
        try:
            await self.seats.acquire()
        finally:
            self.counts["waiting"] -= 1
        self.counts["running"] += 1
        self.counts["most_running"] = max(self.counts["most_running"], self.counts["running"])
        try:
            goes_on = await self.stream(asked, prompt, script, writer)
        finally:
            self.counts["running"] -= 1
            self.seats.release()
        self.counts["answered"] += 1
        if self.script["die_after"] is not None and (
            self.counts["answered"] >= self.script["die_after"]
        ):
            await writer.drain()
            os._exit(1)
        return goes_on

    async def stream(
        self,
        asked: dict[str, Any],
        prompt: list[int],
        script: dict[str, Any],
        writer: asyncio.StreamWriter,
    ) -> bool:
        began = time.perf_counter()
        cached = self.cache.look_up(prompt)
        self.prompt_tokens += len(prompt)
        wanted = asked["max_tokens"] if script["tokens"] is None else script["tokens"]
        chunked = not script["close"]
        writer.write(
            HEAD
            + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Connection: close\r\n\r\n")
        )

        def send(event: str) -> None:
            data = f"data: {event}\n\n".encode()
            if script["keep_alives"]:
                data = b": ping\n\n" + data
            writer.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)

        if script["empty_first"]:
            send(piece("", [], None))
        wait = script["ttft_s"] + script["ttft_per_token_s"] * (len(prompt) - cached)
        if wait:
            await asyncio.sleep(wait)
        sent = 0
        while True:
            if script["reset_after"] is not None and sent >= script["reset_after"]:
                await writer.drain()
                reset(writer)
                return False
            if script["fin_after"] is not None and sent >= script["fin_after"]:
                await writer.drain()
                return False
            if script["error_after"] is not None and sent >= script["error_after"]:
                send(json.dumps({"error": {"message": "the engine core died", "code": 500}}))
                break
            if script["invalid_after"] is not None and sent >= script["invalid_after"]:
                send('{"choices": [{"text": ')
                break
            if sent >= wanted and not script["endless"]:
                break
            count = script["tokens_per_piece"]
            if not script["endless"]:
                count = min(count, wanted - sent)
            if sent and script["itl_s"]:
                await asyncio.sleep(script["itl_s"])
            sent += count
            last = sent >= wanted and not script["endless"]
            ids = [7] * count if asked.get("return_token_ids") and script["token_ids"] else None
            send(piece(script["text"] * count, ids, "length" if last else None))
            self.output_tokens += count
            if sent == count:
                self.ttft.append(time.perf_counter() - began)
            await writer.drain()
        options = asked.get("stream_options") or {}
        if options.get("include_usage") and script["usage"] != "none":
            send(json.dumps({"choices": [], "usage": usage(script, len(prompt), sent, cached)}))
        if script["done"]:
            send("[DONE]")
        if chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return chunked


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


def piece(text: str, token_ids: list[int] | None, finish_reason: str | None) -> str:
    """One event's data, with the fields that vLLM 0.33.0 gives."""
    choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None}
    choice |= {"finish_reason": finish_reason, "stop_reason": None}
    if token_ids is not None:
        choice["token_ids"] = token_ids
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": MODEL}
    return json.dumps(head | {"choices": [choice], "usage": None})


def usage(script: dict[str, Any], prompt: int, output: int, cached: int) -> dict[str, Any]:
    """What the engine says of a request; a wrong one has each number off by another amount."""
    wrong = script["usage"] == "wrong"
    told: dict[str, Any] = {
        "prompt_tokens": prompt + 1 if wrong else prompt,
        "completion_tokens": output + 2 if wrong else output,
    }
    told["total_tokens"] = told["prompt_tokens"] + told["completion_tokens"]
    if script["cached_details"]:
        told["prompt_tokens_details"] = {"cached_tokens": cached + 16 if wrong else cached}
    return told


def answer(
    writer: asyncio.StreamWriter, status: int, body: object, headers: list[str] | None = None
) -> None:
    """Write a whole answer with a length."""
    kind = "text/plain; version=0.0.4" if isinstance(body, str) else "application/json"
    text = body if isinstance(body, str) else "" if body is None else json.dumps(body)
    data = text.encode()
    lines = [f"HTTP/1.1 {status} as told", f"Content-Type: {kind}", f"Content-Length: {len(data)}"]
    writer.write("\r\n".join([*lines, *(headers or []), "", ""]).encode() + data)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset in place of an orderly end."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()


async def serve(script: dict[str, Any], port: int) -> None:
    """Serve until the process is ended."""
    engine = Engine(script)
    context = None
    if engine.script["tls"] is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*engine.script["tls"])
    server = await asyncio.start_server(
        engine.connection, "127.0.0.1", port, limit=2**26, backlog=2048, ssl=context
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201  # how the parent learns it
    await ended.wait()
    os._exit(0)


def main() -> None:
    """Serve as the command line says."""
    arguments = sys.argv[1:]
    port = 0
    if arguments[:1] == ["--port"]:
        port = int(arguments[1])
        del arguments[:2]
    script = json.loads(arguments[0]) if arguments else {}
    asyncio.run(serve(script, port))


if __name__ == "__main__":
    main()
