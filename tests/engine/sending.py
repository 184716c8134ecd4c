"""Workloads for the fake engine, and what a process holds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvsched.engine.event_loop import new_event_loop
from kvsched.engine.openai import Client
from kvsched.engine.openai_answer import Answer
from kvsched.engine.openai_request import completion_fields
from kvsched.engine.target import Target
from kvsched.evidence.bench.workload import BenchWorkload

MODEL = "fake-model"

# uvloop keeps a pipe for signals from its first loop on, to the process's end.
new_event_loop().close()


def workload(
    count: int,
    output_tokens: int = 3,
    arrival_s: Sequence[float] | None = None,
    after: Sequence[int] | None = None,
    think_s: Sequence[float] | None = None,
    prompt_tokens: int = 20,
    **more: Any,
) -> BenchWorkload:
    """Requests whose last prompt token is their index, all due at once unless said."""
    prompts = [np.full(prompt_tokens, 1000 + index, np.int32) for index in range(count)]
    for index, prompt in enumerate(prompts):
        prompt[-1] = index
    waits = np.array([-1] * count if after is None else after, np.int32)
    due = np.zeros(count) if arrival_s is None else np.array(arrival_s, np.float64)
    return BenchWorkload(
        prompts=tuple(prompts),
        output_tokens=np.full(count, output_tokens),
        arrival_s=np.where(waits < 0, due, np.nan),
        after=waits,
        think_s=np.zeros(count) if think_s is None else np.array(think_s, np.float64),
        **more,
    )


def ask(
    target: Target,
    prompts: Sequence[Sequence[int]],
    output_tokens: int = 3,
    ttft_timeout_s: float = 60.0,
    timeout_s: float = 60.0,
) -> list[Answer]:
    """Send prompts one after another over one client; return their answers."""

    async def send() -> list[Answer]:
        client = Client(target)
        answers: list[Answer] = []
        for prompt in prompts:
            fields = completion_fields(target.model, list(prompt), output_tokens, {})
            ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            client.send(
                json_bytes(fields),
                asked_tokens=output_tokens,
                ttft_timeout_s=ttft_timeout_s,
                timeout_s=timeout_s,
                ended=ended.set_result,
            )
            answers.append(await ended)
        await client.close()
        return answers

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(send())


def json_bytes(fields: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.encode(fields)


def held() -> tuple[int, int, int]:
    """Return this process's open files, those of them that are sockets, and its children."""
    files = sockets = 0
    for entry in os.scandir("/proc/self/fd"):
        files += 1
        try:
            sockets += os.readlink(entry.path).startswith("socket:")  # noqa: PTH115
        except OSError:
            files -= 1  # the listing's own
    return files, sockets, len(children())


def children() -> list[int]:
    """Return the processes that this one has started and not waited for."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
