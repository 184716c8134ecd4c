"""Writes a large generated trace as Mooncake JSONL, and studies the file as a user would.

Arguments: PIECES REQUESTS ONE_IN. Each piece is a generated workload of so many requests, its
times after the one before and its ids its own, but for the first block that all prompts begin
with: so no more than a piece is ever in the memory of the process that writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard

from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace

PRESET = "mooncake-conversation"
ROWS = 8192
CAPACITY_SHARE = 20


def _rows(trace: Trace, first_ms: int, shift: int) -> Iterator[list[dict[str, Any]]]:
    """Some thousands of rows at a time."""
    times = np.rint(trace.time_s * 1e3).astype(np.int64) + first_ms
    for low in range(0, len(trace), ROWS):
        high = min(low + ROWS, len(trace))
        ids = trace.chains[trace.starts[low] : trace.starts[high]].astype(np.int64)
        named = np.where(ids == 0, 0, ids + shift).tolist()
        begin = (trace.starts[low : high + 1] - trace.starts[low]).tolist()
        columns = zip(
            times[low:high].tolist(),
            trace.input_tokens[low:high].tolist(),
            trace.output_tokens[low:high].tolist(),
            strict=True,
        )
        yield [
            {
                "timestamp": timestamp,
                "input_length": prompt,
                "output_length": output,
                "hash_ids": named[begin[row] : begin[row + 1]],
            }
            for row, (timestamp, prompt, output) in enumerate(columns)
        ]


def _write(path: Path, pieces: int, requests: int) -> tuple[int, int]:
    """Write the file; return its references and about how many nodes it has."""
    encoder = msgspec.json.Encoder()
    first_ms = shift = references = 0
    with path.open("wb") as file, zstandard.ZstdCompressor(1).stream_writer(file) as packed:
        for seed in range(pieces):
            trace = generate(preset(PRESET, requests=requests), seed)
            for rows in _rows(trace, first_ms, shift):
                packed.write(encoder.encode_lines(rows))
            first_ms += round(trace.duration_s * 1e3) + 1
            shift += trace.nodes
            references += trace.references
    return references, shift


def main(pieces: int, requests: int, one_in: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "requests.jsonl.zst")
        references, nodes = _write(path, pieces, requests)
        size = path.stat().st_size
        command = [sys.executable, "-m", "kvsched", "study", str(path), "--format", "json"]
        command += ["--sample", f"1/{one_in}", "--capacity-blocks", str(nodes // CAPACITY_SHARE)]
        began = time.perf_counter()
        with Path(folder, "said.json").open("wb") as said:
            child = subprocess.Popen([*command, "-o", str(Path(folder, "out"))], stdout=said)
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"the study ended with code {child.returncode}")
        told = json.loads(Path(folder, "said.json").read_bytes())
    if told["trace"]["blocks"] != references:
        raise RuntimeError("the study is not of the file that was written")
    return {
        "requests": told["trace"]["requests"],
        "references": references,
        "nodes": told["trace"]["distinct_blocks"],
        "file_bytes": size,
        "seconds": time.perf_counter() - began,
        "peak_bytes": usage.ru_maxrss * 1024,
        "expected_error": max(each["expected_error"] for each in told["sample"]["errors"]),
    }


print(json.dumps(main(*map(int, sys.argv[1:]))))
