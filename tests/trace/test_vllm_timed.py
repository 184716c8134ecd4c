"""vLLM's timed traces: read as vLLM's benchmark replays them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsched.foundation.errors import InputError
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace


def write(tmp_path: Path, *changes: dict[str, object]) -> Path:
    rows = []
    for i, change in enumerate(changes):
        row = {"timestamp": 1.5 * i, "input_length": 40, "output_length": 7, "hash_ids": [0, 1, 2]}
        rows.append(json.dumps(row | change))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows))
    return path


def load(path: Path, **options: object) -> Trace:
    trace = load_trace(path, "vllm-timed", **options)
    assert structural_fault(trace) is None
    return trace


def test_by_hand(tmp_path: Path) -> None:
    trace = load(write(tmp_path, {}, {"hash_ids": [1, 1, 2]}))
    assert trace.block_size == 16
    assert trace.time_s.tolist() == [0.0, 1.5]
    assert trace.tokens.tolist() == [16, 16, 8, 16, 16, 8]
    assert trace.chains.tolist() == [0, 1, 2, 3, 4, 5]
    assert trace.origin.notes == ()


def test_a_prompt_is_its_ids_and_no_longer(tmp_path: Path) -> None:
    """What `TimedTrace._expand_prompt` of vLLM 0.32.0 makes of these rows: 32, 20, 0 tokens."""
    trace = load(
        write(
            tmp_path,
            {"hash_ids": [5, 6]},
            {"input_length": 20, "hash_ids": [5, 6, 7, 8]},
            {"input_length": 0},
        )
    )
    assert trace.input_tokens.tolist() == [32, 20, 0]
    assert trace.chain_blocks.tolist() == [2, 2, 0]
    assert trace.key.tolist() == [5, 6]
    assert trace.origin.notes == (
        "1 prompt is longer than the ids say; the ids count, as in vLLM",
        "2 prompts have more ids than tokens; the rest is not used, as in vLLM",
        "1 block came again with another size; the first size is kept",
    )


def test_chunk_size_and_multiplier(tmp_path: Path) -> None:
    path = write(tmp_path, {"input_length": 600}, {"input_length": 1500, "timestamp": 1500})
    trace = load(path, block_size=512, time_unit="ms")
    assert trace.tokens.tolist() == [512, 88, 476]
    assert trace.time_s.tolist() == [0.0, 1.5]


def test_it_is_never_guessed(tmp_path: Path) -> None:
    path = write(tmp_path, {}, {})
    with pytest.raises(InputError, match=r"a block size of 16 fits every row \(--block-size 16\)"):
        load_trace(path)
    assert load_trace(path, block_size=16).origin.format == "mooncake"
