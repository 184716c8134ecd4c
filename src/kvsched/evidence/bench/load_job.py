"""What a worker process of the load generator is told, and what it tells: frames of MessagePack."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.engine.target import Target
from kvsched.evidence.bench.load_send import Part
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.evidence.bench.workload import BenchWorkload

_LENGTH = struct.Struct("<Q")


class Job(msgspec.Struct):
    """A part of a workload, and where it goes. Arrays are their bytes."""

    index: bytes
    prompts: list[bytes]
    output_tokens: bytes
    arrival_s: bytes
    after: bytes
    think_s: bytes
    priority: bytes | None
    words: tuple[str, ...] | None
    url: str
    model: str
    api_key: str | None
    headers: dict[str, str]
    settings: dict[str, Any]


class Told(msgspec.Struct, omit_defaults=True):
    """What a worker says: outcomes as they come, at last that it is done, or why it is not."""

    outcomes: list[RequestOutcome] = []
    done: bool = False
    fault: str | None = None
    usage: bool = False
    """Whether the fault is a wrong use."""


def new_job(part: Part, target: Target, settings: LoadSettings) -> Job:
    """Return what a worker needs to send ``part``."""
    return Job(
        index=part.index.astype(np.int64).tobytes(),
        prompts=[prompt.astype(np.int32, copy=False).tobytes() for prompt in part.prompts],
        output_tokens=part.output_tokens.astype(np.int64).tobytes(),
        arrival_s=part.arrival_s.astype(np.float64).tobytes(),
        after=part.after.astype(np.int32).tobytes(),
        think_s=part.think_s.astype(np.float64).tobytes(),
        priority=None if part.priority is None else part.priority.astype(np.int32).tobytes(),
        words=part.words,
        url=target.url,
        model=target.model,
        api_key=target.api_key,
        headers=target.headers,
        settings=dataclasses.asdict(settings),
    )


def job_parts(job: Job) -> tuple[Part, Target, LoadSettings]:
    """Return what `new_job` was given."""
    part = Part(
        index=np.frombuffer(job.index, np.int64),
        prompts=[np.frombuffer(prompt, np.int32) for prompt in job.prompts],
        output_tokens=np.frombuffer(job.output_tokens, np.int64),
        arrival_s=np.frombuffer(job.arrival_s, np.float64),
        after=np.frombuffer(job.after, np.int32),
        think_s=np.frombuffer(job.think_s, np.float64),
        priority=None if job.priority is None else np.frombuffer(job.priority, np.int32),
        words=job.words,
    )
    target = Target(job.url, job.model, job.api_key, job.headers)
    return part, target, LoadSettings(**job.settings)


def write_frame(stream: BinaryIO, message: object) -> None:
    """Write one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return the next message's bytes; None where the other side has gone."""
    head = _read(stream, _LENGTH.size)
    return None if head is None else _read(stream, _LENGTH.unpack(head)[0])


def _read(stream: BinaryIO, length: int) -> bytes | None:
    """Return ``length`` bytes of a stream that may be unbuffered."""
    parts = []
    while length:
        data = stream.read(length)
        if not data:
            return None
        parts.append(data)
        length -= len(data)
    return b"".join(parts)


def divide(workload: BenchWorkload, parts: int) -> list[Part]:
    """Divide a workload so that a session stays together. O(R log R).

    Sessions go round the parts by when they begin, so that each part is as busy as the next. Fewer
    parts than asked for come back where there are fewer sessions.
    """
    after = workload.after
    heads = np.flatnonzero(after < 0)
    heads = heads[np.argsort(workload.arrival_s[heads], kind="stable")]
    owner = np.zeros(len(workload), np.int64)
    owner[heads] = np.arange(len(heads)) % parts
    for place, before in enumerate(after.tolist()):
        if before >= 0:
            owner[place] = owner[before]
    return [
        _part(workload, np.flatnonzero(owner == part)) for part in range(min(parts, len(heads)))
    ]


def _part(workload: BenchWorkload, index: NDArray[np.int64]) -> Part:
    places = np.full(len(workload) + 1, -1, np.int32)
    places[index] = np.arange(len(index), dtype=np.int32)
    return Part(
        index=index,
        prompts=[workload.prompts[each] for each in index.tolist()],
        output_tokens=workload.output_tokens[index],
        arrival_s=workload.arrival_s[index],
        after=places[workload.after[index]],
        think_s=workload.think_s[index],
        priority=None if workload.priority is None else workload.priority[index],
        words=workload.words,
    )
