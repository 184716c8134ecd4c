"""Runs in AISimulate's own environment: predicts a trace's serving in a warm process.

A command is one JSON line, {"path": ..., "blocks": N}; the answer another: seconds from
the configuration to the summary, and those that it says itself it simulated for.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

from aisimulate.config.cli import CorePredictionConfig
from aisimulate.config.common import split_config_sections
from aisimulate.predict import run_prediction
from aisimulate.stack import resolve_runner_factory

STACK = "engine"


def configuration(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is asked of it, in its own words."""
    worker = {
        "scheduler": {"max_batched_tokens": 8192, "max_sequences": 1024},
        "kv_cache": {
            "block_size": 512,
            "capacity": {"type": "fixed", "blocks": asked["blocks"]},
        },
    }
    return {
        "engine": {
            "mode": "aggregated",
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": "h100_sxm",
            "backend": "vllm",
            "workers": {"aggregated": worker},
        },
        "traffic": {
            "source": {
                "type": "trace",
                "format": "mooncake",
                "block_size": 512,
                "paths": [asked["path"]],
            },
            "load": {"type": "trace_timestamps"},
        },
    }


def predict(asked: dict[str, Any]) -> dict[str, Any]:
    """Predict once; return what it took and what it says."""
    began = time.perf_counter()
    core, _ = split_config_sections(configuration(asked), command="predict")
    found = run_prediction(
        CorePredictionConfig.model_validate(core),
        stack=STACK,
        runner_factory=resolve_runner_factory(STACK),
    )
    seconds = time.perf_counter() - began
    said = found.summary
    return {
        "engine": "aisimulate",
        "version": importlib.metadata.version("aisimulate"),
        "seconds": seconds,
        "simulating": said["wall_time_ms"] / 1e3,
        "requests": said["num_requests"],
        "finished": said["completed_requests"],
        "duration_s": said["duration_ms"] / 1e3,
        "hit_ratio": said["first_admission_prefix_cache_reused_ratio"],
        "ttft_p50_s": said["median_ttft_ms"] / 1e3,
    }


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(predict(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
