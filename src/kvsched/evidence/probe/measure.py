"""Allocate blocks and read the accounts: repeats, one pooled tensor, fragmentation."""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Iterator, Sequence

from kvsched.evidence.probe.backend import Backend, Block, OutOfMemory, Reading
from kvsched.evidence.probe.report import Accounts, Copy, Fragmentation, Pooled, Run
from kvsched.evidence.probe.shape import BlockShape

PATTERNS = ("every-second", "random", "first-half")
FACTORS = (2, 4)
FEWEST_FOR_PATTERNS = 8
"""With fewer blocks a pattern says nothing."""
MOST_IN_PATTERNS = 4096
"""Every larger block takes a reading, so that more blocks would take minutes."""


def start(backend: Backend, shape: BlockShape) -> None:
    """Allocate one block and free it, so that what is set up once is not the first run's."""
    block = backend.allocate(shape)
    backend.touch(block)
    del block
    backend.release_cache()


def measure_run(backend: Backend, shape: BlockShape, blocks: int, repeat: int) -> Run:
    """Allocate ``blocks`` blocks with an empty cache, free them, and once more; O(blocks).

    Raises OutOfMemory.
    """
    backend.release_cache()
    backend.reset_peak()
    before, calls = backend.reading(), backend.system_calls()
    held, cold, touching = _fill(backend, shape, blocks)
    accounts = _accounts(backend, before, held)
    after = backend.system_calls()
    held.clear()
    backend.synchronize()
    held, warm, _ = _fill(backend, shape, blocks)
    end = backend.system_calls()
    held.clear()
    backend.release_cache()
    peak = accounts.peak_allocated_bytes if backend.caches else accounts.peak_driver_bytes
    return Run(
        repeat=repeat,
        block_count=blocks,
        allocation_ms=1e3 * cold,
        warm_allocation_ms=1e3 * warm,
        driver_ms=1e3 * (cold - warm),
        touch_ms=None if backend.caches else 1e3 * touching,
        system_calls=None if calls is None or after is None else after - calls,
        warm_system_calls=None if after is None or end is None else end - after,
        peak_memory_mb=None if peak is None else peak / 1e6,
        accounts=accounts,
    )


def _fill(
    backend: Backend, shape: BlockShape, blocks: int, pieces: int = 1
) -> tuple[list[Block], float, float]:
    """``blocks`` allocations of ``pieces`` blocks each; seconds in all, and of them touching."""
    held: list[Block] = []
    backend.synchronize()
    with _no_collection():
        began = time.perf_counter()
        for _ in range(blocks):
            held.append(backend.allocate(shape, pieces))
        backend.synchronize()
        allocated = time.perf_counter()
        for block in held:
            backend.touch(block)
        ended = time.perf_counter()
    return held, ended - began, ended - allocated


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's collector of cycles, which new objects set off, out of what is timed."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _accounts(backend: Backend, before: Reading, held: Sequence[Block]) -> Accounts:
    now, peak = backend.reading().above(before), backend.peak().above(before)
    ledger = sum(tensor.nbytes for block in held for tensor in block)
    return Accounts(
        requested_bytes=ledger if now.requested is None else now.requested,
        allocated_bytes=now.allocated,
        reserved_bytes=now.reserved,
        driver_bytes=now.driver,
        peak_allocated_bytes=peak.allocated,
        peak_reserved_bytes=peak.reserved,
        peak_driver_bytes=peak.driver,
    )


def measure_pooled(
    backend: Backend, shape: BlockShape, blocks: int, many: int | None
) -> Pooled | None:
    """The blocks as one tensor a part; None where no piece of that size is to be had.

    ``many`` is what one tensor a block held, bytes.
    """
    backend.release_cache()
    backend.reset_peak()
    before = backend.reading()
    try:
        held, seconds, _ = _fill(backend, shape, 1, blocks)
    except OutOfMemory:
        return None
    accounts = _accounts(backend, before, held)
    held.clear()
    backend.release_cache()
    one = accounts.held_bytes
    return Pooled(
        allocation_ms=1e3 * seconds,
        accounts=accounts,
        saved_bytes=None if many is None or one is None else many - one,
    )


def freed_places(pattern: str, blocks: int, seed: int) -> list[int]:
    """The half of ``blocks`` that a pattern frees, ascending."""
    half = blocks // 2
    if pattern == "every-second":
        return list(range(0, 2 * half, 2))
    if pattern == "first-half":
        return list(range(half))
    return sorted(random.Random(seed).sample(range(blocks), half))  # noqa: S311 - no secret


def measure_fragmentation(
    backend: Backend, shape: BlockShape, blocks: int, pattern: str, factor: int, seed: int
) -> Fragmentation:
    """Free half of the blocks in a pattern, and ask for blocks of ``factor`` times the size.

    One is served from what was freed if the allocator then holds no more than before the freeing,
    but for the noise of its account; the first that is not ends it. Larger blocks that the noise
    could hide are not counted. O(blocks) allocations. Raises OutOfMemory.
    """
    seen = factor * shape.tensor_bytes >= 4 * backend.noise_bytes
    plugs = backend.plug_holes(shape) if seen else []
    before = backend.reading()
    held, _, _ = _fill(backend, shape, blocks)
    full = backend.reading().above(before)
    places = freed_places(pattern, blocks, seed)
    for place in places:
        held[place] = []
    backend.synchronize()
    halved = backend.reading().above(before)
    ideal = len(places) // factor
    fits: int | None = None
    stranded: int | None = None
    if full.reserved is not None and seen:
        most = full.reserved + backend.noise_bytes
        stranded = _unused(halved)
        larger: list[Block] = []
        for _ in range(ideal):
            try:
                block = backend.allocate(shape, factor)
            except OutOfMemory:
                break
            backend.touch(block)
            now = backend.reading().above(before)
            if now.reserved is None or now.reserved > most:
                break
            larger.append(block)
            stranded = _unused(now)
        fits = len(larger)
        larger.clear()
    held.clear()
    plugs.clear()
    backend.release_cache()
    return Fragmentation(
        pattern=pattern,
        factor=factor,
        freed_blocks=len(places),
        freed_bytes=len(places) * shape.tensor_bytes,
        returned_bytes=(
            None
            if full.reserved is None or halved.reserved is None
            else full.reserved - halved.reserved
        ),
        ideal=ideal,
        fits=fits,
        stranded_bytes=stranded,
    )


def _unused(reading: Reading) -> int | None:
    if reading.reserved is None or reading.allocated is None:
        return None
    return reading.reserved - reading.allocated


def measure_copies(backend: Backend, sizes: Sequence[int], repeats: int) -> list[Copy]:
    """Median of ``repeats`` copies of each size, after one that warms up. Raises OutOfMemory."""
    found = []
    for size in sizes:
        for direction, memory, copy in backend.copies(size):
            copy()
            times = []
            for _ in range(repeats):
                began = time.perf_counter()
                copy()
                times.append(time.perf_counter() - began)
            middle = statistics.median(times)
            found.append(
                Copy(
                    direction=direction,
                    memory=memory,
                    bytes=size,
                    median_ms=1e3 * middle,
                    gb_s=bytes_a_second(size, middle) / 1e9,
                )
            )
    return found


def bytes_a_second(size: int, seconds: float) -> float:
    """Bytes over seconds; a clock that did not move counts as one nanosecond."""
    return size / max(seconds, 1e-9)
