"""Compare the time of SGLang's radix cache with kvsched's rules, in one process, interleaved.

Run by the environment that `sglang_env.sh` makes, with PYTHONPATH=src. Both serve the same
requests; nothing is generated, so that the steps of decoding do not count.
"""

from __future__ import annotations

import time

import sglang_record  # isort: skip - before anything of SGLang
import numpy as np
import torch

from kvsched.replay.loop import Counts, Decisions
from kvsched.replay.sglang import Pages, sglang_replay

PAGE_SIZE = 16
CAPACITY = 4000


def pages_of(rows: list[sglang_record.Row]) -> Pages:
    """Make kvsched's arrays of the requests."""
    number: dict[int, int] = {}
    parent, chains, starts = [], [], [0]
    for *_, path in rows:
        above = -1
        for name in path:
            if name not in number:
                number[name] = len(number)
                parent.append(above)
            above = number[name]
            chains.append(above)
        starts.append(len(chains))
    prompt, output, priority = (np.array([row[at] for row in rows]) for at in range(3))
    return Pages(
        PAGE_SIZE,
        np.array(parent, np.int32),
        np.array(starts, np.int64),
        np.array(chains, np.int32),
        prompt,
        output,
        np.diff(starts),
        (prompt - 1) // PAGE_SIZE,
        priority,
    )


def main() -> None:
    """Print nanoseconds a page of both, and the ratio."""
    torch.set_num_threads(1)
    drawn = sglang_record.random_rows(7, PAGE_SIZE, 1000, 200)
    rows = [(row[0], 0, row[2], row[3][: row[0] // PAGE_SIZE]) for row in drawn]
    served = [(row, sglang_record.tokens_of(row, PAGE_SIZE, at)) for at, row in enumerate(rows)]
    pages = pages_of(rows)
    total = len(pages.chains)
    counts = Counts(*(np.zeros(len(rows), np.int32) for _ in Counts._fields))
    none = Decisions(np.empty(0, np.int32), np.empty(0, np.int32))
    sglang_replay(pages, "lru", CAPACITY, counts, none, True)
    print(f"{total:,} pages of {len(rows):,} requests")
    for strategy in ("lru", "lfu", "slru"):
        spent = [0.0, 0.0]
        for _ in range(3):
            engine = sglang_record.Engine(strategy, PAGE_SIZE, CAPACITY, 0)
            began = time.perf_counter()
            hits = [engine.serve(row, tokens)[0] for row, tokens in served]
            spent[0] += time.perf_counter() - began
            for array in counts:
                array[:] = 0
            began = time.perf_counter()
            sglang_replay(pages, strategy, CAPACITY, counts, none, True)
            spent[1] += time.perf_counter() - began
        if hits != (counts.hits * PAGE_SIZE).tolist():
            raise RuntimeError("they differ")
        theirs, ours = (1e9 * seconds / 3 / total for seconds in spent)
        print(
            f"{strategy}: SGLang {theirs:,.0f} ns a page, kvsched {ours:,.1f}: {theirs / ours:.0f}x"
        )


if __name__ == "__main__":
    main()
