"""Record how SGLang's own `SchedulePolicy` sorts its waiting queue.

Run by the environment that `sglang_env.sh` makes:

    python tools/parity/sglang_order_record.py FOLDER

The policy and both of its trees are SGLang's. Requests arrive, leave from the head, or come back
with what they generated; the cache gains prompts, and is emptied now and then.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sglang_stand_ins  # isort: skip - before anything of SGLang
import sglang
import torch
from sglang.srt.managers import schedule_policy
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang_record import Request

PAGE = 16
LENGTHS = {"lpm": (5, 6, 6, 8, 12, 16), "shortest-prefill-first": (5, 6, 12, 16)}
"""The most that arrive between two passes, for each workload."""
FIRST_OUTPUT = 1 << 40

# The settings that a pass reads; a server would publish them.
schedule_policy.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
schedule_policy.get_memory = lambda: SimpleNamespace(radix_eviction_policy="lru")


def tokens_of(blocks: list[int]) -> array:
    """Return tokens that say which block they are of."""
    return array("q", [block * PAGE + at for block in blocks for at in range(PAGE)])


def insert(tree: Any, tokens: array) -> None:
    """Let the cache hold a prompt."""
    key = RadixKey(token_ids=tokens, extra_key=None, cache_salt=None)
    tree.insert(InsertParams(key=key, value=torch.empty(len(tokens), dtype=torch.int64)))


class Workload:
    """One queue over one cache: what happened, and the queue after each pass."""

    def __init__(self, policy: str, seed: int, arrivals: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # a workload, no secret
        self.arrivals = arrivals
        self.tree = RadixCache.create_simulated(page_size=PAGE)
        self.policy = schedule_policy.SchedulePolicy(policy, self.tree, False, False, False)
        self.queue: list[Any] = []
        self.away: list[Any] = []
        self.requests: list[Any] = []
        self.events: list[list[Any]] = []
        self.times = itertools.count()

    def arrive(self) -> None:
        """Make a request; few blocks, so that prefixes meet."""
        draw = self.random
        blocks = [draw.choice((1, 1, 1, 2, 3)) for _ in range(draw.randint(1, 6))]
        tokens = tokens_of(blocks)
        # A tail of its own, so that every block can hit.
        tail = FIRST_OUTPUT + 100 * len(self.requests)
        tokens.extend(range(tail, tail + draw.randint(1, PAGE - 1)))
        request = Request(tokens, len(tokens), 0)
        request.rid = str(len(self.requests))
        request.number = len(self.requests)
        request.blocks = blocks
        request.time_stats = SimpleNamespace(wait_queue_entry_time=0)
        self.requests.append(request)
        self.wait(request)

    def wait(self, request: Any) -> None:
        """Put a request at the queue's end."""
        request.time_stats.wait_queue_entry_time = next(self.times)
        self.queue.append(request)
        self.events.append(["queue", request.number, len(request.output_ids)])

    def look(self) -> None:
        """Make a pass, and write down the queue and what each matched."""
        self.policy.calc_priority(self.queue)
        matched = {each.number: int(each.num_matched_prefix_tokens) for each in self.queue}
        self.events.append(
            ["pass", [each.number for each in self.queue], [matched[n] for n in sorted(matched)]]
        )

    def step(self) -> None:
        """Let some arrive or come back, make a pass, let some leave from the head."""
        draw = self.random
        for _ in range(draw.randint(0, self.arrivals)):
            self.arrive()
        if self.away and draw.random() < 0.2:
            back = self.away.pop(draw.randrange(len(self.away)))
            first = FIRST_OUTPUT * 2 + 1000 * next(self.times)
            back.output_ids.extend(range(first, first + draw.randint(1, 40)))
            self.wait(back)
        if draw.random() < 0.04:
            self.tree.reset()
        for request in self.queue:
            request.num_matched_prefix_tokens = 0
        self.look()
        for _ in range(min(len(self.queue), draw.randint(0, 3))):
            request = self.queue.pop(0)
            self.events.append(["admit", request.number])
            insert(self.tree, request.origin_input_ids)
            self.away.append(request)


def main() -> None:
    """Write one file: a line of what it is, then a line a workload."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    sglang_stand_ins.check()
    about = {"engine": "sglang", "version": sglang.__version__, "class": "SchedulePolicy"}
    rows: list[Any] = [{**about, "page_size": PAGE}]
    for policy, lengths in LENGTHS.items():
        for seed, arrivals in enumerate(lengths):
            workload = Workload(policy, seed, arrivals)
            for _ in range(40):
                workload.step()
            asked = [[each.blocks, len(each.origin_input_ids)] for each in workload.requests]
            rows.append({"policy": policy, "requests": asked, "events": workload.events})
    lines = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    path = folder / "sglang-orders.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    print(f"{path.name}: {len(rows) - 1} workloads")


if __name__ == "__main__":
    main()
