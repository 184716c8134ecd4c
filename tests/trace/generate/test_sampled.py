"""A sample laid without the trace is the sample of the trace."""

from __future__ import annotations

import numpy as np
import pytest

from kvsched.trace.generate import generate, generate_sampled, preset
from kvsched.trace.sample import SampledTrace, sample


def columns(trace: SampledTrace) -> dict[str, list[object]]:
    found = {name: np.nan_to_num(each, nan=-1).tolist() for name, each in trace.columns().items()}
    for name in ("path", "always", "reach", "whole_starts", "whole_tokens"):
        found[name] = getattr(trace, name).tolist()
    return found


@pytest.mark.parametrize(
    ("name", "requests", "one_in"),
    [
        ("chat", 6000, 10),
        ("chat", 6000, 1),
        ("rag", 4000, 7),
        ("mooncake-toolagent", 6000, 10),
        ("weka-coding-agents", 400, 10),
    ],
)
def test_it_is_the_sample_of_the_generated_trace(name: str, requests: int, one_in: int) -> None:
    workload = preset(name, requests=requests)
    told: list[int] = []

    def rate(references: int) -> int:
        told.append(references)
        return one_in

    laid = generate_sampled(workload, 3, rate)
    whole = generate(workload, 3)
    asked = sample(whole, one_in, 3)
    assert columns(laid) == columns(asked)
    assert laid.digest == asked.digest
    assert laid.whole_node_tokens == asked.whole_node_tokens
    assert laid.total_nodes == whole.nodes
    assert told == [whole.references]
    # The check can fail: another seed draws other nodes.
    assert columns(sample(whole, one_in, 4)) != columns(asked)


def test_plain_and_compiled_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = preset("chat", requests=300)
    compiled = columns(generate_sampled(workload, 0, lambda _: 5))
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    assert columns(generate_sampled(workload, 0, lambda _: 5)) == compiled


def test_small_traces_keep_nodes_below_heads_that_are_used_much() -> None:
    laid = generate_sampled(preset("chat", requests=30), 0, lambda _: 1000)
    asked = sample(generate(preset("chat", requests=30), 0), 1000, 0)
    assert np.array_equal(laid.always, asked.always)
    assert laid.always_kept > 0
