"""Requests and tokens of a step that nobody asked for, against a recording of vLLM's EngineArgs."""

from __future__ import annotations

from typing import Any

import pytest
import recorded_steps

from kvsched.catalog import Accelerator
from kvsched.foundation.errors import UsageError
from kvsched.serve import served, settings
from kvsched.serve.served import Asking, find_settings

ROWS: list[Any] = recorded_steps.read("vllm-defaults.jsonl.gz")
REFUSED = "refused"


def answer(asked: list[Any]) -> list[int] | str:
    device, mib, length, seqs, tokens, chunked, threshold = asked
    gpu = Accelerator(device, (), 0, mib, 1, 1, None, "a stand-in")
    asking = Asking(
        gpu=gpu,
        num_gpu_blocks_override=100,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        enable_chunked_prefill=chunked is None or chunked,
        long_prefill_token_threshold=threshold,
    )
    try:
        found, _ = find_settings(asking, 16)
    except UsageError:
        return REFUSED
    return [found.max_num_seqs, found.max_num_batched_tokens]


def differing() -> int:
    return sum(answer(asked) != its for asked, its in ROWS)


def test_no_setting_differs() -> None:
    assert [(asked, its) for asked, its in ROWS if answer(asked) != its] == []


def test_the_grid_has_every_kind() -> None:
    assert len(ROWS) >= 5000
    refused = sum(its == REFUSED for _, its in ROWS)
    assert len(ROWS) / 4 < refused < len(ROWS) * 3 / 4
    untold = [its for (_, _, length, *told), its in ROWS if length == 40_000 and not any(told)]
    assert len({tuple(its) for its in untold}) >= 5, "devices"


@pytest.mark.parametrize("which", ["length", "device", "a100", "tpu"])
def test_a_broken_rule_is_noticed(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = settings.device_defaults
    if which == "length":
        monkeypatch.setattr(served, "_check_length", lambda *_: None)
    elif which == "device":
        monkeypatch.setattr(served, "device_defaults", lambda memory, name: known(memory - 1, name))
    elif which == "a100":
        monkeypatch.setattr(served, "device_defaults", lambda memory, name: known(memory, "h100"))
    else:
        monkeypatch.setattr(settings, "TPU_TOKENS", {})
    assert differing() > 0
