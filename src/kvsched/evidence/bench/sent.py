"""A workload's identity, and the workload as a `Trace` at the engine's block size."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from kvsched.evidence.bench.workload import BenchWorkload
from kvsched.foundation.errors import UsageError
from kvsched.trace.build import build_trace
from kvsched.trace.model import UNKNOWN, Labels, Origin, Trace


def workload_digest(workload: BenchWorkload, load_plan: dict[str, Any]) -> str:
    """Return the SHA-256 (hex) of what is sent and when.

    Runs with different ones measured different things. Over every prompt, the answers' lengths,
    arrivals, waits, think times, priorities, sessions, and the load plan (concurrency). Where the
    requests came from is no part of it. O(tokens).
    """
    state = hashlib.sha256(f"kvsched bench workload 1\n{len(workload)}\n".encode())

    def add(name: str, column: Any) -> None:
        data = np.ascontiguousarray(column)
        state.update(f"{name} {data.dtype.str} {len(data)}\n".encode())
        state.update(data.view(np.uint8).data)

    add("prompt lengths", np.array([len(prompt) for prompt in workload.prompts], "<i8"))
    for prompt in workload.prompts:
        state.update(np.ascontiguousarray(prompt, "<i4").view(np.uint8).data)
    if workload.words is not None:
        state.update(msgspec.json.encode(workload.words))
    add("output_tokens", workload.output_tokens.astype("<i8"))
    # One NaN is not the next one bit by bit.
    add("arrival_s", np.nan_to_num(workload.arrival_s, nan=-1.0).astype("<f8"))
    add("after", workload.after.astype("<i4"))
    add("think_s", workload.think_s.astype("<f8"))
    if workload.priority is not None:
        add("priority", workload.priority.astype("<i4"))
    told = {"sessions": _same_session(workload), "load_plan": load_plan}
    state.update(msgspec.json.encode(told, order="sorted"))
    return state.hexdigest()


def _same_session(workload: BenchWorkload) -> list[int] | None:
    """A number for each request's session, in order of appearance: its name does not count."""
    if workload.session is None:
        return None
    number: dict[str, int] = {}
    return [number.setdefault(name, len(number)) if name else -1 for name in workload.session]


def block_keys(prompt: np.ndarray[Any, Any], block_size: int) -> list[int]:
    """Return a 64-bit number for each full block of a prompt, of its own tokens alone."""
    full = len(prompt) // block_size
    data = np.ascontiguousarray(prompt[: full * block_size], "<i4").tobytes()
    width = 4 * block_size
    return [
        int.from_bytes(
            hashlib.blake2b(data[at * width : (at + 1) * width], digest_size=8).digest(),
            "little",
            signed=True,
        )
        for at in range(full)
    ]


def as_trace(workload: BenchWorkload, block_size: int) -> Trace:
    """Return the requests as sent, request r being the workload's r, in full blocks by content.

    A node is a block of tokens after one particular prefix, so two prompts share as many nodes as
    full blocks of ``block_size`` tokens; what follows the last full block is in no node, as an
    engine that stores full blocks keeps none of it. A later turn that waits for an answer has its
    think time in ``delay_s``, and as time that of the request before it, since its own is not
    known before the run. O(tokens). Raises UsageError for a block size below 1.
    """
    if block_size < 1:
        raise UsageError(f"a block of {block_size} tokens: at least 1")
    keys = [block_keys(prompt, block_size) for prompt in workload.prompts]
    starts = np.zeros(len(workload) + 1, np.int64)
    np.cumsum([len(each) for each in keys], out=starts[1:])
    times = np.maximum.accumulate(np.nan_to_num(workload.arrival_s, nan=0.0))
    waiting = workload.after >= 0
    return build_trace(
        time_s=times,
        input_tokens=np.array([len(prompt) for prompt in workload.prompts], np.int64),
        output_tokens=workload.output_tokens.astype(np.int64),
        starts=starts,
        keys=np.array([key for each in keys for key in each], np.int64),
        block_size=block_size,
        origin=Origin(
            source=str(workload.source.get("source", "benchmark")),
            format="bench",
            time_unit="s",
            notes=workload.notes,
            settings={**workload.source, "block_size": block_size},
        ),
        session=_labels(workload.session),
        priority=workload.priority,
        delay_s=np.where(waiting, workload.think_s, np.nan) if waiting.any() else None,
    )


def _labels(session: tuple[str, ...] | None) -> Labels | None:
    if session is None:
        return None
    names = tuple(dict.fromkeys(name for name in session if name))
    if not names:
        return None
    number = {name: at for at, name in enumerate(names)}
    codes = np.array([number.get(name, UNKNOWN) for name in session], np.int32)
    return Labels(codes, names)
