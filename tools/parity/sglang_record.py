"""Record what SGLang's own classes do with requests, one after another.

Run by the environment that `sglang_env.sh` makes:

    python tools/parity/sglang_record.py random FOLDER
    python tools/parity/sglang_record.py mooncake TRACE.jsonl FOLDER

The tree, the allocators, matching, eviction, checkpoints and release are SGLang's; this script
only walks one request after another along the path of its scheduler, with a stand-in for the
model. A page of a prompt is named by a number, and its tokens are made from that number.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import itertools
import json
import random
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sglang_stand_ins  # isort: skip - before anything of SGLang
import sglang
import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import allocation, common, radix_cache
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

STRATEGIES = ("lru", "lfu", "fifo", "filo", "mru", "priority", "slru")
HASTY_FROM = 128
"""Page size from which steps of decoding inside a page are done at once."""
Row = tuple[int, int, int, list[int]]
"""Prompt tokens, generated tokens, priority, pages that have a name (the full ones at the end)."""

# The settings that release and length read; a server would publish them.
common.get_serving = schedule_batch.get_serving = lambda: SimpleNamespace(
    strip_thinking_cache=False
)
common.get_spec = lambda: SimpleNamespace(speculative_algorithm=None)


class Request(SimpleNamespace):
    """What the cache and its helpers read of a request; lengths are SGLang's own code."""

    _compute_max_prefix_len = schedule_batch.Req._compute_max_prefix_len
    refresh_fill_ids = schedule_batch.Req.refresh_fill_ids
    owned_kv_len = schedule_batch.Req.owned_kv_len

    def __init__(self, tokens: array, prompt: int, priority: int) -> None:
        super().__init__(
            rid="r",
            to_generate=tokens[prompt:],
            origin_input_ids=tokens[:prompt],
            output_ids=array("q"),
            full_untruncated_fill_ids=array("q"),
            kv=schedule_batch.ReqKvInfo(),
            priority=priority,
            extra_key=None,
            cache_salt=None,
            dllm_config=None,
            return_logprob=False,
            logprob_start_len=-1,
            skip_radix_cache_insert=False,
            finished_len=None,
            reasoning_tokens=0,
            lock=None,
            done=False,
        )

    def is_dllm(self) -> bool:
        """It decodes token by token."""
        return False

    def finished(self) -> bool:
        """Whether the last token is generated."""
        return self.done


class Engine:
    """SGLang's radix cache over a pool of ``capacity`` pages, and the scheduler's steps."""

    def __init__(self, strategy: str, page_size: int, capacity: int, chunk: int) -> None:
        self.page_size = page_size
        self.tokens = capacity * page_size
        self.chunk = chunk * page_size
        self.hasty = page_size >= HASTY_FROM
        kind = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
        if page_size == 1:
            self.allocator = TokenToKVPoolAllocator(self.tokens, **kind)
        else:
            self.allocator = PagedTokenToKVPoolAllocator(self.tokens, page_size, **kind)
        self.rows = ReqToTokenPool(1, self.tokens + page_size, "cpu", False)
        self.tree = radix_cache.RadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=self.rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=page_size,
                eviction_policy=strategy,
            )
        )
        self.victims: list[int] = []
        delete = self.tree._delete_leaf

        def watched(node: Any) -> None:
            starts = node.key.token_ids[:: self.page_size]
            self.victims.extend(token // self.page_size for token in reversed(starts))
            delete(node)

        self.tree._delete_leaf = watched

    def serve(self, row: Row, tokens: array) -> tuple[int, bool, list[int]]:
        """Serve one request; return tokens hit, whether refused, and pages that left in order."""
        self.victims = []
        prompt, output, priority, _ = row
        # The server's largest prompt, and the budget of `PrefillAdder` on an idle server.
        if prompt >= self.tokens - 1 - 5:
            return 0, True, []
        room = self.allocator.max_new_tokens_for_memory(
            prompt,
            max(min(output, self.tokens - 1 - prompt - 1), 0),
            token_capacity=self.tokens,
            sliding_window_size=None,
            chunk_size=None,
        )
        if prompt + room + self.page_size >= self.tokens:
            return 0, True, []
        request = Request(tokens[: prompt + output], prompt, priority)
        request.refresh_fill_ids()
        common.match_kv_cache(
            request,
            self.tree,
            request.full_untruncated_fill_ids,
            max_prefix_len=request._compute_max_prefix_len(prompt),
        )
        hit = request.kv.cache_protected_len = request.prefix_len
        request.lock = self.tree.lock(request.last_node)
        admitted, _ = self.allocator.create_prefill_budget(self.tree).check_prefill(
            extend_input_len=prompt - hit,
            total_tokens=prompt - hit + room + self.page_size,
            max_new_tokens=room,
            input_tokens=prompt,
            swa_host_hit_length=0,
            chunk_limit=None,
        )
        if not admitted:
            raise RuntimeError("an idle server refuses what it has room for")
        while request.prefix_len < prompt:
            self._prefill(request, prompt)
            if request.extend_end < prompt:
                common.checkpoint_kv_cache(request, self.tree)
            else:
                break
        self._generate(request)
        if len(request.output_ids) < room:
            common.checkpoint_kv_cache(request, self.tree)
        while len(request.output_ids) < room:
            for _ in range(self._decode(request, room - len(request.output_ids))):
                self._generate(request)
        request.done = True
        common.release_kv_cache(request, self.tree, checkpoint=True)
        free = self.allocator.available_size()
        if free + self.tree.evictable_size() != self.tokens:
            raise RuntimeError("pages leaked")
        return hit, False, self.victims

    def _generate(self, request: Request) -> None:
        at = len(request.output_ids)
        request.output_ids.append(request.to_generate[at] if at < len(request.to_generate) else -1)

    def _prefill(self, request: Request, prompt: int) -> None:
        """`alloc_for_extend` for one request."""
        start = request.prefix_len
        end = prompt
        if (
            self.chunk
            and self.allocator
            and -(-(prompt - start) // self.page_size) * (self.page_size) > self.chunk
        ):
            end = start + self.chunk
        row = self.rows.req_to_token
        if not request.kv.holds_kv:
            prefix = self.tree.prefix_device_indices(request)
            self.rows.alloc([request])
            self.rows.write((request.kv.req_pool_idx, slice(0, start)), prefix.to(torch.int32))
        line = request.kv.req_pool_idx
        if self.page_size == 1:
            found = allocation.alloc_token_slots(self.tree, end - start)
        else:
            last = row[line, start - 1 : start] if start else torch.tensor([-1])
            bounds = [torch.tensor([place]) for place in (start, start, end, end)]
            found = allocation.alloc_paged_token_slots_extend(
                self.tree, *bounds, last.to(torch.int64), end - start
            )
        self.rows.write((line, slice(start, end)), found.to(torch.int32))
        request.extend_end = end
        request.kv.kv_allocated_len = request.kv.kv_committed_len = end

    def _decode(self, request: Request, wanted: int) -> int:
        """`check_decode_mem` and `alloc_for_decode` for one request; return the steps done.

        Inside a page, with another page free, a step asks for nothing and takes the next slot:
        where ``hasty``, these steps are done at once.
        """
        kv = request.kv
        inside = kv.kv_committed_len % self.page_size
        if self.hasty and inside and self.allocator.available_size() >= self.page_size:
            steps = min(wanted, self.page_size - inside)
            start = kv.kv_committed_len
            last = int(self.rows.req_to_token[kv.req_pool_idx, start - 1])
            slots = torch.arange(last + 1, last + 1 + steps, dtype=torch.int32)
            self.rows.write((kv.req_pool_idx, slice(start, start + steps)), slots)
            kv.kv_allocated_len += steps
            kv.kv_committed_len += steps
            return steps
        begins = inside == 0
        if not self.allocator.check_decode_capacity(
            num_tokens=self.page_size * begins, tree_cache=self.tree
        ):
            raise RuntimeError("an admitted request runs out of memory")
        if self.page_size == 1:
            found = allocation.alloc_token_slots(self.tree, 1)
        else:
            length = torch.tensor([kv.kv_committed_len + 1])
            last = self.rows.req_to_token[kv.req_pool_idx, kv.kv_committed_len - 1]
            found = allocation.alloc_paged_token_slots_decode(
                self.tree, length, length, last.reshape(1).to(torch.int64)
            )
        self.rows.write((kv.req_pool_idx, kv.kv_committed_len), found[0].to(torch.int32))
        kv.kv_allocated_len += 1
        kv.kv_committed_len += 1
        return 1


def tokens_of(row: Row, page_size: int, number: int) -> array:
    """Tokens of request ``number``, prompt and output; a page without a name gets its own."""
    most = -(-(row[0] + row[1]) // page_size)
    unnamed = itertools.repeat((1 << 40) + number)
    tokens = array("q")
    for page in itertools.islice(itertools.chain(row[3], unnamed), most):
        tokens.extend(range(page * page_size, (page + 1) * page_size))
    return tokens


def replay(rows: Iterable[Row], strategy: str, page_size: int, capacity: int, chunk: int) -> Any:
    """Serve all rows; return tokens hit, refusals and victims, a list each."""
    engine = Engine(strategy, page_size, capacity, chunk)
    hits, refused, victims = [], [], []
    for number, row in enumerate(rows):
        hit, no, left = engine.serve(row, tokens_of(row, page_size, number))
        hits.append(hit)
        refused.append(int(no))
        victims.append(left)
    return hits, refused, victims


def random_rows(seed: int, page_size: int, count: int, longest: int) -> list[Row]:
    """Requests whose prompts share prefixes, come again, go on where an output ended, or don't."""
    draw = random.Random(seed)  # noqa: S311 - a workload, no secret
    fresh = itertools.count()
    paths: list[list[int]] = []
    rows: list[Row] = []
    for _ in range(count):
        old = draw.choice(paths[-60:]) if paths and draw.random() < 0.85 else []
        keep = draw.choice([len(old), len(old), draw.randint(0, len(old))])
        grow = draw.choice([0, 0, 1, 2, draw.randint(0, longest // 2)])
        if draw.random() < 0.03:
            grow = 4 * longest
        path = old[:keep] + [next(fresh) for _ in range(grow)]
        path = path[: longest if grow < 4 * longest else None] or [next(fresh)]
        tail = draw.choice([0, 0, draw.randrange(page_size)])
        prompt = len(path) * page_size + tail
        output = draw.choice([0, 1, 2, page_size, page_size + 1, draw.randint(0, 4 * page_size)])
        kept = (prompt + max(output, 1) - 1) // page_size
        path = path + [next(fresh) for _ in range(kept - len(path))]
        paths.append(path)
        rows.append((prompt, output, draw.choice([0, 0, 0, 1, 2, 5]), path))
    return rows


def mooncake_rows(path: Path, count: int, page_size: int) -> list[Row]:
    """The first requests of a Mooncake trace in time order; outputs have names of their own."""
    with path.open() as lines:
        found = [json.loads(line) for line in lines]
    found.sort(key=lambda request: request["timestamp"])
    unnamed = itertools.count(1 << 32)
    rows: list[Row] = []
    for request in found[:count]:
        prompt, output = request["input_length"], request["output_length"]
        pages = request["hash_ids"][: prompt // page_size]
        kept = (prompt + max(output, 1) - 1) // page_size
        pages += [next(unnamed) for _ in range(kept - len(pages))]
        rows.append((prompt, output, 0, pages))
    return rows


def digest(pages: list[int]) -> str:
    """Short digest of the pages that left for one request, in order."""
    text = ",".join(map(str, pages))
    return hashlib.sha256(text.encode()).hexdigest()[:8] if pages else ""


def write(path: Path, lines: Iterable[Any]) -> None:
    """Write lines of JSON, compressed, with nothing of the moment in the file."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def header(**more: Any) -> dict[str, Any]:
    """Say what was run."""
    return {"engine": "sglang", "version": sglang.__version__, "class": "RadixCache", **more}


def record_random(folder: Path) -> None:
    """Record every strategy at three page sizes, some with prefills in chunks."""
    for page_size, longest, capacity in ((1, 40, 110), (16, 12, 40), (64, 10, 34)):
        seed = page_size
        rows = random_rows(seed, page_size, 350, longest)
        lines: list[Any] = [header(workload="random", seed=seed, page_size=page_size)]
        lines.append({"requests": rows})
        for strategy, chunk in itertools.product(STRATEGIES, (0, 4)):
            if chunk and strategy not in ("lru", "lfu", "fifo"):
                continue
            hits, refused, victims = replay(rows, strategy, page_size, capacity, chunk)
            lines.append(
                {
                    "strategy": strategy,
                    "capacity_pages": capacity,
                    "chunk_pages": chunk,
                    "hit_tokens": hits,
                    "refused": refused,
                    "victims": victims,
                }
            )
            print(page_size, strategy, chunk, sum(hits), sum(refused), sum(map(len, victims)))
        write(folder / f"sglang_random_{page_size}.jsonl.gz", lines)


def record_mooncake(trace: Path, folder: Path) -> None:
    """Record integers and digests only: the trace itself stays where it is."""
    rows = mooncake_rows(trace, 2000, 512)
    lines: list[Any] = [
        header(workload="mooncake conversation", requests=len(rows), seed=None, page_size=512)
    ]
    for strategy, chunk in (("lru", 0), ("lru", 16), ("lfu", 0), ("slru", 0)):
        began = time.perf_counter()
        hits, refused, victims = replay(rows, strategy, 512, 2000, chunk)
        print(strategy, chunk, sum(hits), sum(refused), time.perf_counter() - began, flush=True)
        lines.append(
            {
                "strategy": strategy,
                "capacity_pages": 2000,
                "chunk_pages": chunk,
                "hit_tokens": hits,
                "refused": refused,
                "victims": [len(left) for left in victims],
                "victim_digest": [digest(left) for left in victims],
            }
        )
    write(folder / "sglang_mooncake.jsonl.gz", lines)


def main() -> None:
    """Record the workload that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=("random", "mooncake"))
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--counting-clock", action="store_true", help="a clock without ties")
    asked = parser.parse_args()
    if asked.counting_clock:
        ticks = itertools.count()
        clock: Callable[[], float] = lambda: float(next(ticks))  # noqa: E731
        radix_cache.time = SimpleNamespace(monotonic=clock, perf_counter=time.perf_counter)
    sglang_stand_ins.check()
    torch.set_num_threads(1)
    if asked.workload == "random":
        record_random(asked.paths[0])
    else:
        record_mooncake(asked.paths[0], asked.paths[1])


if __name__ == "__main__":
    main()
