"""What the chapter's scheduler gets wrong in real use, each as a few lines that run.

A flaw's ``example`` runs the chapter's class and returns what happened; ``instead`` runs the same
with what the replay and the live scheduler are built of, and returns that. `kvsched lesson flaws`
prints both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsched.foundation.errors import InputError, UsageError
from kvsched.lesson.chapter import KVCacheSchedulerSim
from kvsched.lesson.flaw_texts import TEXTS, FlawText
from kvsched.lesson.frame import Text

if TYPE_CHECKING:
    from kvsched.replay.run import Replay

Facts = Mapping[str, Any]
BLOCK = 16


@dataclass(frozen=True)
class Flaw:
    """One flaw: its number, its texts, what shows it, and what shows that it can be otherwise."""

    number: int
    example: Callable[[], Facts]
    instead: Callable[[], Facts]

    @property
    def text(self) -> FlawText:
        """The texts, in every language; their templates name the facts."""
        return TEXTS[self.example.__name__]

    def shows(self) -> Text:
        """Run the example; return what happened, in words."""
        return self.text.shows.fill(**_said(self.example()))

    def done_instead(self) -> Text:
        """Run what is done instead; return that in words."""
        return self.text.instead.fill(**_said(self.instead()))


def _said(facts: Facts) -> dict[str, object]:
    return {name: _one(value) for name, value in facts.items()}


def _one(value: Any) -> object:
    if isinstance(value, bool):
        return Text("yes", "是") if value else Text("no", "否")
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value


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
        input_tokens=lengths * BLOCK,
        output_tokens=np.ones(len(prompts), np.int64),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        keys=np.array(keys, np.int64),
        block_size=BLOCK,
        origin=Origin(source="lesson", format="lesson", time_unit="s"),
    )
    return replay(trace, policy, capacity_blocks, compiled=False)


def old_and_hot() -> Facts:
    """Run a hundred uses of one prefix, then a hundred of two others."""
    sim = KVCacheSchedulerSim(20)
    sim.schedule([("old", 10)] * 100)
    sim.schedule([("new 1", 10), ("new 2", 10)] * 50)
    recency = {row.priority - row.hits + 0.25 * row.bytes / 20 for row in sim.entries.values()}
    return {
        "kept": "old" in sim.entries,
        "unused_for": sim.time - sim.entries["old"].last_used,
        "hits_of_the_new": sum(line.startswith("reuse:new") for line in sim.log),
        "recency": sorted(recency),
    }


def _old_and_hot() -> Facts:
    prompts = [["old"]] * 100 + [["new 1"], ["new 2"]] * 50
    hits = replayed(prompts, "decay:half_life_s=10", 2).request_hits
    return {"hits_of_the_new": int(hits[100:].sum())}


def grows() -> Facts:
    """Use one prefix ten thousand times."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("a", 10)] * 10_000)
    return {"entries": len(sim.entries), "records": len(sim.queue), "lines": len(sim.log)}


def _grows() -> Facts:
    from kvsched.kernel.heap import empty_heap, heap_push, heap_remove

    heap = empty_heap(nodes=1, room=1)
    heap_push(heap, 0, 1, 0)
    for use in range(2, 10_001):
        heap_remove(heap, 0)
        heap_push(heap, 0, use, 0)
    return {"records": int(heap.counts[0])}


def another_size() -> Facts:
    """Hit a prefix that has become longer."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("chat", 10), ("chat", 90), ("code", 60)])
    return {"counted": sim.current_bytes, "really": 90 + 60, "log": sim.log}


def _another_size() -> Facts:
    run = replayed([["c1"], [f"c{each}" for each in range(1, 10)]], "lru", 10)
    return {"hit": int(run.request_hits[1]), "resident": run.resident_blocks}


def running() -> Facts:
    """Let another request come while one is being decoded."""
    sim = KVCacheSchedulerSim(100)
    sim.touch("running", 60)  # and its decoding goes on
    sim.touch("other", 60)
    return {"log": sim.log, "kept": "running" in sim.entries}


def _running() -> Facts:
    # Five blocks, room for three: what the request holds already is no victim of its own rest.
    run = replayed([["r1", "r2", "r3", "r4", "r5"]], "lru", 3)
    return {"evictions": run.evictions, "resident": run.resident_blocks}


def scan() -> Facts:
    """Read one long prompt once, beside five prefixes that are used all the time."""
    sim = KVCacheSchedulerSim(10)
    sim.schedule([(f"hot {each}", 2) for each in range(5)] * 20)
    sim.touch("scan", 10)
    return {
        "evicted": sum(line.startswith("evict:hot") for line in sim.log),
        "left": sorted(sim.entries),
    }


def _scan() -> Facts:
    hot = [[f"hot {each}"] for each in range(5)]
    prompts = [*hot * 20, [f"scan {each}" for each in range(10)], *hot]
    return {
        "hits": int(replayed(prompts, "opt", 6).request_hits[-5:].sum()),
        "hits_of_chapter": int(replayed(prompts, "chapter", 6).request_hits[-5:].sum()),
    }


def history() -> Facts:
    """Let a prefix that was used ten times be pushed out, and come back."""
    sim = KVCacheSchedulerSim(10)
    sim.schedule([("a", 5)] * 10 + [("large", 10)] + [("a", 5)])
    return {"hits": sim.entries["a"].hits, "uses": 11}


def _history() -> Facts:
    from kvsched.kernel import sketch

    seen = sketch.empty_sketch(64, sample=1_000)
    for _ in range(11):
        sketch.sketch_add(seen, 7)
    return {"uses": int(sketch.sketch_count(seen, 7))}


def shared() -> Facts:
    """Ask two questions about one system prompt."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("system + question 1", 60 + 10), ("system + question 2", 60 + 10)])
    return {"log": sim.log, "needed": 60 + 10 + 10}


def _shared() -> Facts:
    system = [f"s{each}" for each in range(6)]
    run = replayed([[*system, "q1"], [*system, "q2"]], "lru", 10)
    return {
        "hit": int(run.request_hits[1]),
        "resident": run.resident_blocks,
        "evictions": run.evictions,
    }


def dear() -> Facts:
    """Have a long document and a short greeting, used once each, and room for one."""
    sim = KVCacheSchedulerSim(100)
    sim.schedule([("greeting", 5), ("document", 90), ("new", 20)])
    return {"evicted": [line[6:] for line in sim.log if line.startswith("evict:")]}


def _dear() -> Facts:
    # The document's last block stands behind 80 tokens; computing it costs most.
    document = [f"d{each}" for each in range(6)]
    prompts = [document, ["greeting"], ["new"], ["greeting"], document]
    costs = replayed(prompts, "gdsf:attention_tokens=16", 7)
    return {
        "greeting": int(costs.request_hits[3]),
        "document": int(costs.request_hits[4]),
        "of": len(document),
    }


def ledger() -> Facts:
    """Give sizes and capacities that are no whole numbers."""
    nan: Any = float("nan")
    sim = KVCacheSchedulerSim(100)
    sim.touch("a", nan)
    sim.schedule([(f"b{each}", 100) for each in range(5)])
    endless = KVCacheSchedulerSim(float("inf"))  # type: ignore[arg-type]
    endless.schedule([(f"b{each}", 100) for each in range(5)])
    no_number = KVCacheSchedulerSim(nan)
    no_number.schedule([(f"b{each}", 100) for each in range(5)])
    true = KVCacheSchedulerSim(True)
    true.touch("a", True)
    return {
        "bytes_after_nan": sim.current_bytes,
        "really": sum(row.bytes for row in sim.entries.values() if row.prefix != "a"),
        "capacity": sim.capacity_bytes,
        "evicted": sum(
            line.startswith("evict") for each in (sim, endless, no_number) for line in each.log
        ),
        "true": true.snapshot(),
    }


def _ledger() -> Facts:
    refused = []
    capacity: Any
    for capacity in (float("nan"), float("inf"), True):
        try:
            replayed([["a"]], "lru", capacity)
        except UsageError as error:
            refused.append(str(error))
    return {"refused": refused}


def half() -> Facts:
    """Schedule a batch whose third request is too large."""
    sim = KVCacheSchedulerSim(10)
    sim.touch("kept", 10)
    try:
        sim.schedule([("a", 5), ("b", 5), ("c", 11), ("d", 5)])
    except ValueError as error:
        return {"error": str(error), "log": sim.log}
    raise AssertionError("an entry above the capacity was taken")


def _half() -> Facts:
    import tempfile
    from pathlib import Path

    from kvsched.trace.load import load_trace

    row = '{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n'
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "batch.jsonl")
        file.write_text(row + row.replace("16", "-16") + row, encoding="utf-8")
        try:
            load_trace(file)
        except InputError as error:
            return {"error": f"row {error.row}: {error.fault}"}
    raise AssertionError("a bad row was taken")


FLAWS = tuple(
    Flaw(number, example, instead)
    for number, (example, instead) in enumerate(
        (
            (old_and_hot, _old_and_hot),
            (grows, _grows),
            (another_size, _another_size),
            (running, _running),
            (scan, _scan),
            (history, _history),
            (shared, _shared),
            (dear, _dear),
            (ledger, _ledger),
            (half, _half),
        ),
        1,
    )
)


def find_flaw(number: int) -> Flaw:
    """Return flaw ``number``. Raises UsageError where there is none."""
    if not 1 <= number <= len(FLAWS):
        raise UsageError(f"there is no flaw {number}; there are 1 to {len(FLAWS)}")
    return FLAWS[number - 1]
