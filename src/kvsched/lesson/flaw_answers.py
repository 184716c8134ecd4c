"""The examples of `kvsched.lesson.flaws`, with `kvsched.KVCacheScheduler` and the replay instead.

Each has the name of its example. Blocks hold one token here, so that sizes are easy to read.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvsched.foundation.errors import UsageError

if TYPE_CHECKING:
    from kvsched.cache import KVCacheScheduler, Lease, Request
    from kvsched.replay.run import Replay

Facts = Mapping[str, Any]


def replayed(prompts: Sequence[Sequence[str]], policy: str, capacity_blocks: int) -> Replay:
    """Replay prompts of named blocks, one a second, through a cache of ``capacity_blocks``."""
    import numpy as np

    from kvsched.replay.run import replay
    from kvsched.trace.build import build_trace
    from kvsched.trace.model import Origin

    ids: dict[str, int] = {}
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    keys = [ids.setdefault(block, len(ids)) for prompt in prompts for block in prompt]
    trace = build_trace(
        time_s=np.arange(len(prompts), dtype=np.float64),
        input_tokens=lengths,
        output_tokens=np.ones(len(prompts), np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        keys=np.array(keys, np.int64),
        block_size=1,
        origin=Origin(source="lesson", format="lesson", time_unit="s"),
    )
    return replay(trace, policy, capacity_blocks, compiled=False)


def cache(capacity_blocks: Any, **settings: Any) -> KVCacheScheduler:
    """Return a live scheduler with blocks of one token."""
    from kvsched.cache import KVCacheScheduler

    return KVCacheScheduler(capacity_blocks, 1, **settings)


def asked(name: str, tokens: int) -> Request:
    """Return a request for ``tokens`` of a text called ``name``."""
    from kvsched.cache import Request

    return Request(token_ids=[zlib.crc32(f"{name} {each}".encode()) for each in range(tokens)])


def served(live: KVCacheScheduler, request: Request) -> Lease:
    """Acquire, compute and release; return the lease, which says what hit."""
    with live.acquire(request) as lease:
        return lease


def old_and_hot() -> Facts:
    """Let hits fade."""
    prompts = [["old"]] * 100 + [["new 1"], ["new 2"]] * 50
    hits = replayed(prompts, "decay:half_life_s=10", 2).request_hits
    return {"hits_of_the_new": int(hits[100:].sum())}


def grows() -> Facts:
    """Move a record instead of adding one; hand events out, or none."""
    from kvsched.kernel.heap import empty_heap, heap_push, heap_remove

    heap = empty_heap(nodes=1, room=1)
    heap_push(heap, 0, 1, 0)
    for use in range(2, 10_001):
        heap_remove(heap, 0)
        heap_push(heap, 0, use, 0)
    live = cache(100)
    for _ in range(1_000):
        served(live, asked("a", 10))
    return {"records": int(heap.counts[0]), "events": len(live.take_events())}


def another_size() -> Facts:
    """Count every block."""
    live = cache(100)
    served(live, asked("chat", 10))
    longer = served(live, asked("chat", 90))
    served(live, asked("code", 60))
    return {"hit": longer.hit_tokens, "counted": live.cached_blocks}


def running() -> Facts:
    """Hold what a request uses, until it is released."""
    live = cache(100)
    lease = live.acquire(asked("running", 60)).lease
    other = live.acquire(asked("other", 60))
    kept = live.lookup(asked("running", 60))
    if lease is None or other.ticket is None:
        raise AssertionError("the first is admitted, the second waits")
    lease.close()
    later = other.ticket.admission
    return {
        "outcome": str(other.outcome),
        "reason": other.reason,
        "kept": kept,
        "later": str(later.outcome) if later else None,
    }


def scan() -> Facts:
    """Pin what is known to be hot, and serve what does not fit beside it without storing it."""
    live = cache(10, when_full="degrade", degrade="unstored", max_pinned_blocks=10)
    hot = [asked(f"hot {each}", 2) for each in range(5)]
    for request in hot:
        served(live, request)
        live.pin(request, "system prompts")
    admission = live.acquire(asked("scan", 10))
    outcome = str(admission.outcome)
    if admission.lease:
        admission.lease.close()
    names = [[f"hot {each}"] for each in range(5)]
    prompts = [*names * 20, [f"scan {each}" for each in range(10)], *names]
    return {
        "outcome": outcome,
        "hits": sum(served(live, request).hit_tokens for request in hot),
        "hits_of_opt": int(replayed(prompts, "opt", 6).request_hits[-5:].sum()),
        "hits_of_chapter": int(replayed(prompts, "chapter", 6).request_hits[-5:].sum()),
    }


def history() -> Facts:
    """Count what is not there, too."""
    from kvsched.kernel import sketch

    seen = sketch.empty_sketch(64, sample=1_000)
    for _ in range(11):
        sketch.sketch_add(seen, 7)
    return {"uses": int(sketch.sketch_count(seen, 7))}


def shared() -> Facts:
    """Share the blocks that two prompts begin with."""
    from kvsched.cache import Request

    live = cache(100)
    system = list(range(60))
    served(live, Request(token_ids=system + [100] * 10))
    second = served(live, Request(token_ids=system + [200] * 10))
    return {"hit": second.hit_tokens, "cached": live.cached_blocks}


def dear() -> Facts:
    """Rank by what it costs to compute a block where it stands."""
    document = [f"d{each}" for each in range(90)]
    prompts = [document, ["greeting"], ["new"], ["greeting"], document]
    run = replayed(prompts, "gdsf:attention_tokens=16", 91)
    return {
        "greeting": int(run.request_hits[3]),
        "document": int(run.request_hits[4]),
        "of": len(document),
    }


def ledger() -> Facts:
    """Refuse what is no whole number."""
    refused = []
    for capacity in (float("nan"), float("inf"), True):
        try:
            cache(capacity)
        except UsageError as error:
            refused.append(str(error))
    return {"refused": refused}


def half() -> Facts:
    """Answer each request of a batch with an outcome of its own."""
    live = cache(10)
    answers = []
    for name, tokens in (("a", 5), ("b", 5), ("c", 11), ("d", 5)):
        admission = live.acquire(asked(name, tokens))
        answers.append(str(admission.outcome) + (f" ({admission.reason})" * bool(admission.reason)))
        if admission.lease:
            admission.lease.close()
    return {"answers": answers}
