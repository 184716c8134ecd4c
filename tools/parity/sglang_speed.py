"""Compare the time of SGLang's radix cache with kvsched's rules, in one process, interleaved.

Run by the environment that `sglang_env.sh` makes, with PYTHONPATH=src. Both serve the same
requests; nothing is generated, so that the steps of decoding do not count.
"""

from __future__ import annotations

import time

import sglang_record  # isort: skip - before anything of SGLang
import numpy as np
import torch
from sglang_pages import pages_of

from kvsched.replay.loop import Counts, Decisions
from kvsched.replay.sglang import sglang_replay

PAGE_SIZE = 16
CAPACITY = 4000


def main() -> None:
    """Print nanoseconds a page of both, and the ratio."""
    torch.set_num_threads(1)
    drawn = sglang_record.random_rows(7, PAGE_SIZE, 1000, 200)
    rows = [(row[0], 0, row[2], row[3][: row[0] // PAGE_SIZE]) for row in drawn]
    served = [(row, sglang_record.tokens_of(row, PAGE_SIZE, at)) for at, row in enumerate(rows)]
    pages, _ = pages_of(rows, PAGE_SIZE)
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
