"""Records for tests, of every kind, and raw access to a registry's file."""

from __future__ import annotations

import datetime
import sqlite3
from pathlib import Path
from typing import Any

from kvsched.evidence.record import Record
from kvsched.evidence.record_new import new_record
from kvsched.evidence.registry_file import DEFINITIONS

MOMENT = datetime.datetime(2026, 1, 31, 9, 30, tzinfo=datetime.UTC)


def a_record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "task": "prefix-cache",
        "evidence_level": "real_benchmark",
        "status": "ok",
        "created_at": MOMENT,
        "name": "prefix caching on",
        "decision": "accept",
        "reason": "hit rate up, TTFT down",
        "config": {"engine": {"block-size": 16, "enable-prefix-caching": True}, "rate": 2.5},
        "environment": {"machine": "x86_64", "packages": {"vllm": "0.32"}},
        "workload_digest": "d" * 64,
        "metrics": {"ttft_ms_p50": 12.5, "requests": 100, "goodput": None},
        "missing": {"goodput": "no objective was set"},
        "detail": {"runs": [{"repeat": 0}]},
    }
    return new_record(**(fields | changes))


PROBE: dict[str, Any] = {
    "task": "gpu-kv-probe",
    "evidence_level": "synthetic_gpu_block_probe",
    "runtime": {
        "device": "cuda",
        "gpu_memory_gb": 80.0,
        "torch": "2.5.1",
        "torch_cuda": "12.4",
        "native_bf16_supported": True,
    },
    "config": {
        "block_shape": [2, 16, 8, 128],
        "bytes_per_block_theoretical": 65536,
        "total_bytes_theoretical": 4194304,
        "block_count": 64,
        "dtype": "float16",
        "repeats": 3,
    },
    "runs": [
        {"repeat": 0, "allocation_ms": 4.0, "peak_memory_mb": 5.5, "block_count": 64},
        {"repeat": 1, "allocation_ms": 1.0, "peak_memory_mb": 5.0, "block_count": 64},
        {"repeat": 2, "allocation_ms": 2.0, "peak_memory_mb": 5.0, "block_count": 63},
    ],
    "decision": {"decision": "measure", "reason": "allocated bytes are above the theory"},
}
"""The course's probe report."""


def unguarded(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    """Change a registry behind its back: the triggers are taken off and put back."""
    connection = sqlite3.connect(path, isolation_level=None)
    triggers = {name: sql for name, sql in DEFINITIONS.items() if "TRIGGER" in sql}
    for name in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement, values if "?" in statement else ())
    for sql in triggers.values():
        connection.execute(sql)
    connection.close()
