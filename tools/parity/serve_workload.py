"""Workloads for recordings of vLLM's Scheduler: settings, and requests that arrive at steps.

Plain Python without kvsched or an engine, so that it is a second opinion on both. Also how one
step is written as text, and what is kept of a run.
"""

from __future__ import annotations

import base64
import random
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import workload

COUNT = 72
"""Random workloads."""
CONVERSATION = 2000
"""Requests of the conversation trace."""
STEP_MS = 40
"""Milliseconds of the conversation trace that pass in a step."""


@dataclass(frozen=True)
class Settings:
    """What the scheduler is told, in vLLM's names; ``blocks`` leave the null block out."""

    block_size: int
    blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    scheduler_reserve_full_isl: bool = True


@dataclass(frozen=True)
class Asked:
    """One request: when it arrives, and how important it is (larger is more)."""

    step: int
    priority: int
    request: workload.Request

    @property
    def output(self) -> int:
        """Tokens that it generates: no engine generates none."""
        return max(self.request.output, 1)


@dataclass(frozen=True)
class Work:
    """A workload and the settings it is run with; no request is too long for the blocks."""

    name: str
    settings: Settings
    asked: list[Asked]

    def chain(self, at: int) -> list[int]:
        """Return the ids of all blocks that request ``at`` fills."""
        requests = [each.request for each in self.asked]
        return workload.chain(requests, at, self.settings.block_size)


def _blocks(request: workload.Request, block_size: int) -> int:
    return -(-request.computed // block_size)


def _requests(draw: random.Random, seed: int, block_size: int) -> list[workload.Request]:
    count = draw.randrange(60, 160)
    if seed % 3:
        made = workload.chats(seed, count, block_size, exact=draw.random(), tail=seed % 2 == 0)
    else:
        made = workload.trees(seed, count, block_size, branches=draw.choice([2, 3, 5]))
    made = [each for each in made if each.prompt > 0]
    if draw.random() < 0.5:
        return made
    # Long answers make running requests outgrow the memory.
    most = 6 * block_size
    return [replace(each, output=draw.randrange(most)) for each in made]


def random_work(seed: int) -> Work:
    """Make a workload by its number: every setting is drawn, tight memory is as usual as loose."""
    draw = random.Random(1000 + seed)  # noqa: S311  # a workload, not a secret
    block_size = draw.choice([16, 32])
    requests = _requests(draw, seed, block_size)
    longest = max(_blocks(each, block_size) for each in requests)
    mean = sum(_blocks(each, block_size) for each in requests) / len(requests)
    seqs = draw.choice([2, 4, 8, 16, 16, 64])
    blocks = max(
        longest,
        draw.choice([longest, longest + 2, int(2.5 * mean), int(4 * mean), int(30 * mean)]),
    )
    computed = max(each.computed + 1 for each in requests)
    chunked = draw.random() < 0.8
    budget = max(seqs, draw.choice([16, 40, 100, 300, 2000])) if chunked else computed + 8
    settings = Settings(
        block_size=block_size,
        blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        max_model_len=1 << 16 if chunked else budget,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw.choice([0, 0, 7, 33, 90]) if chunked else 0,
        policy="priority" if seed % 2 else "fcfs",
        watermark=draw.choice([0.0, 0.0, 0.0, 0.03, 0.2]),
        enable_prefix_caching=seed % 9 != 4,
        scheduler_reserve_full_isl=draw.random() < 0.7,
    )
    pace = draw.choice([0, 1, 2, 10])
    step = 0
    asked = []
    for request in requests:
        step += draw.randrange(pace + 1) if draw.random() < 0.97 else 200
        asked.append(Asked(step, draw.choice([0, 0, 1, 2, -1]), request))
    return Work(f"random-{seed}", settings, asked)


def conversation(path: Path, blocks: int, policy: str) -> Work:
    """Make the first requests of the Mooncake conversation trace, its times as steps."""
    requests = workload.mooncake(path, CONVERSATION)
    times = workload.mooncake_times(path, CONVERSATION)
    kept = [
        Asked((time - times[0]) // STEP_MS, at % 3, request)
        for at, (time, request) in enumerate(zip(times, requests, strict=True))
    ]
    settings = Settings(
        block_size=512,
        blocks=blocks,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        max_model_len=1 << 20,
        policy=policy,
    )
    return Work(f"conversation-{policy}-{blocks}", settings, kept)


@dataclass(frozen=True)
class Step:
    """What one step did."""

    number: int
    """Which tick of the clock it is: ticks without a request are left out."""
    ran: Sequence[tuple[int, int]]
    """Requests in the order they were scheduled, and tokens of each."""
    preempted: Sequence[int]
    """Requests in the order they were preempted."""
    hits: Sequence[tuple[int, int]]
    """Requests that were admitted in this step, and tokens of each that were hit."""
    free: Sequence[int]
    """Blocks (from 0) in the order of the free list, after what ended in the step has left."""

    def text(self) -> str:
        """Return the step as one line; the free list as its length and a checksum."""
        order = zlib.crc32(array("i", self.free).tobytes())
        ran = " ".join(f"{request}:{tokens}" for request, tokens in self.ran)
        hits = " ".join(f"{request}:{tokens}" for request, tokens in self.hits)
        preempted = " ".join(map(str, self.preempted))
        return f"{self.number}|{ran}|{preempted}|{hits}|{len(self.free)}|{order:08x}"


EVERY = 4
"""Steps between two digests that are kept."""


def digests(lines: Iterable[str]) -> str:
    """Return 16 bits every few steps, of a checksum over all steps so far, as base64."""
    state = 0
    found = array("H")
    for at, line in enumerate(lines, 1):
        state = zlib.crc32(line.encode(), state)
        if at % EVERY == 0:
            found.append(state & 0xFFFF)
    found.append(state & 0xFFFF)
    return base64.b64encode(found.tobytes()).decode()


def first_difference(one: str, other: str) -> int | None:
    """Return the place of the first digests that differ, or None."""
    first, second = (array("H", base64.b64decode(each)) for each in (one, other))
    for at, (mine, its) in enumerate(zip(first, second, strict=False)):
        if mine != its:
            return at
    return None if len(first) == len(second) else min(len(first), len(second))


def random_works() -> Iterator[Work]:
    """Yield every random workload."""
    for seed in range(COUNT):
        yield random_work(seed)
