"""A run's numbers: worked out by hand, and None with a reason where nothing was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from bench_results import NOTHING_SAID, failed, outcome

from kvsched.engine.counters import Growth
from kvsched.engine.kinds.registry import KINDS
from kvsched.evidence.bench.summary import BenchObjective, EngineSaid, numbers

VLLM = KINDS["vllm"]
NO_OBJECTIVE = BenchObjective()


def said(hits: float | None, queries: float | None, finished: float | None = None) -> EngineSaid:
    deltas = {
        "vllm:prefix_cache_hits": hits,
        "vllm:prefix_cache_queries": queries,
        "vllm:request_success": finished,
    }
    counters = {
        name: {"before": 0.0, "after": delta, "delta": delta}
        for name, delta in deltas.items()
        if delta is not None
    }
    return EngineSaid(VLLM, Growth(counters, {}), {"running": [1.0, 3.0, None]})


def test_latencies_by_hand() -> None:
    one = outcome(0, ttft_ms=20, tpot_ms=5, lag_ms=2, tokens=3)
    two = outcome(1, ttft_ms=40, tpot_ms=7, due_s=0.1, tokens=1)
    found = numbers([one, two], NO_OBJECTIVE, NOTHING_SAID).values
    assert found["ttft_ms"].mean == pytest.approx(30)
    assert found["tpot_ms"].count == 1
    assert found["tpot_ms"].mean == pytest.approx(5)
    assert found["itl_ms"].count == 2
    assert found["latency_ms"].max == pytest.approx(40)
    assert found["lag_ms"].max == pytest.approx(2)
    assert found["duration_s"] == pytest.approx(0.14)
    assert found["request_throughput"] == pytest.approx(2 / 0.14)
    assert found["output_token_throughput"] == pytest.approx(4 / 0.14)
    assert found["input_token_throughput"] == pytest.approx(128 / 0.14)
    # max(0, 1 - (40 - 20) ms / max(30 ms, 1 s))
    assert found["fairness"] == pytest.approx(0.98)


def test_a_piece_may_bring_more_tokens_than_one() -> None:
    one = outcome(tokens=5, token_s=(0.02, 0.04), token_counts=(1, 4))
    found = numbers([one], NO_OBJECTIVE, NOTHING_SAID).values
    assert found["tpot_ms"].mean == pytest.approx(5)
    assert found["itl_ms"].mean == pytest.approx(20)
    assert found["itl_ms"].count == 1


def test_failed_requests_are_in_no_latency() -> None:
    found = numbers([outcome(0), failed(1), failed(2, "timeout")], NO_OBJECTIVE, NOTHING_SAID)
    assert found.values["errors"] == {"reset": 1, "timeout": 1}
    assert found.values["completed"] == 1
    assert found.values["ttft_ms"].count == 1
    assert "2 of 3 requests failed" in found.warnings


def test_nothing_measured_is_none_with_a_reason() -> None:
    found = numbers([failed(0)], NO_OBJECTIVE, NOTHING_SAID)
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "latency_ms", "request_throughput", "goodput"):
        assert found.values[name] is None
        assert found.missing[name]
    for name in ("fairness", "good_requests", "output_token_throughput"):
        assert found.values[name] is None
        assert found.missing[name]
    assert all(value is None for value in found.values["gauges"].values())
    assert {"gauges.running", "gauges.waiting", "gauges.kv_use"} <= set(found.missing)
    assert found.values["hit_rate"].usage is None
    assert found.missing["hit_rate"]


def unexplained(found: Any) -> list[str]:
    """Fields that are None without a reason."""
    lacking = []
    for name, value in found.values.items():
        inner = value if isinstance(value, dict) else {}
        nothing = [f"{name}.{key}" for key, each in inner.items() if each is None]
        if name == "counters":
            nothing = [f"{name}.{key}" for key, row in inner.items() if row["delta"] is None]
        if value is None:
            nothing.append(name)
        if name == "hit_rate" and (value.usage is None or value.counters is None):
            nothing.append(name)
        lacking += [each for each in nothing if not found.missing.get(each)]
    return lacking


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [failed(0)],
        [failed(0, sent_s=None)],
        [outcome(0, tokens=1)],
        [outcome(0, cached=None)],
        [outcome(0), failed(1)],
    ],
    ids=["none", "failed", "unsent", "one token", "silent", "mixed"],
)
def test_every_none_has_its_reason(outcomes: Any) -> None:
    fell = Growth(
        {"vllm:prefix_cache_hits": {"before": 2.0, "after": 1.0, "delta": None}},
        {"vllm:prefix_cache_hits": "began anew"},
    )
    for heard in (NOTHING_SAID, EngineSaid(VLLM, fell, {}), said(0, 0, 0), said(32, 64, 1)):
        found = numbers(outcomes, NO_OBJECTIVE, heard)
        assert unexplained(found) == []
        found.missing.clear()
        assert unexplained(found)


def test_the_999th_needs_a_thousand() -> None:
    many = [outcome(at, ttft_ms=at) for at in range(1000)]
    found = numbers(many, NO_OBJECTIVE, NOTHING_SAID)
    assert found.values["p999_ms"]["ttft"] == pytest.approx(np.percentile(np.arange(1000), 99.9))
    fewer = numbers(many[1:], NO_OBJECTIVE, NOTHING_SAID)
    assert fewer.values["p999_ms"]["ttft"] is None
    assert "999 values" in fewer.missing["p999_ms.ttft"]
    assert fewer.values["p999_ms"]["itl"] is not None


def test_goodput() -> None:
    many = [outcome(0, ttft_ms=10), outcome(1, ttft_ms=30), outcome(2, tpot_ms=9), failed(3)]
    found = numbers(many, BenchObjective(ttft_ms=25, tpot_ms=6), NOTHING_SAID).values
    assert found["good_requests"] == 1
    assert found["goodput"] == pytest.approx(1 / found["duration_s"])


def test_hit_rate_two_ways() -> None:
    many = [outcome(0, cached=0), outcome(1, cached=32)]
    found = numbers(many, NO_OBJECTIVE, said(32, 128, 2)).values["hit_rate"]
    assert (found.usage, found.counters, found.agree, found.note) == (0.25, 0.25, True, "")


def test_hit_rates_that_differ_are_told() -> None:
    many = [outcome(0, cached=0), outcome(1, cached=32)]
    found = numbers(many, NO_OBJECTIVE, said(48, 128, 2))
    assert found.values["hit_rate"].agree is False
    assert "usage counts 32 hit tokens, the engine's counters 48" in found.values["hit_rate"].note
    assert any("hit tokens differ" in warning for warning in found.warnings)


def test_usage_that_does_not_say_is_not_zero() -> None:
    many = [outcome(0, cached=None), outcome(1, cached=32)]
    found = numbers(many, NO_OBJECTIVE, said(32, 128)).values["hit_rate"]
    assert found.usage is None
    assert found.agree is None
    assert found.counters == 0.25
    assert "1 of 2 requests" in found.note
    none = numbers([outcome(0, cached=None)], NO_OBJECTIVE, NOTHING_SAID).values["hit_rate"]
    assert (none.usage, none.counters) == (None, None)
    assert "does not say" in none.note
    assert "has no metrics" in none.note


@pytest.mark.parametrize("cached", [65, -1])
def test_usage_that_cannot_be_is_no_hit_rate(cached: int) -> None:
    many = [outcome(0, cached=cached), outcome(1, cached=64)]
    found = numbers(many, NO_OBJECTIVE, said(32, 128)).values["hit_rate"]
    assert (found.usage, found.agree, found.counters) == (None, False, 0.25)
    assert "usage of 1 requests has more cached tokens than the prompt has" in found.note


def test_an_engine_that_caches_nothing() -> None:
    found = numbers([outcome(0, cached=0)], NO_OBJECTIVE, said(0, 0, 1)).values["hit_rate"]
    assert found.usage == 0.0
    assert found.counters is None
    assert found.agree is True
    assert "caches no prefixes" in found.note


def test_gauges() -> None:
    found = numbers([outcome(0)], NO_OBJECTIVE, said(0, 64))
    assert found.values["gauges"]["running"].mean == 2
    assert found.values["gauges"]["running"].count == 2
    assert "gauges.kv_use" in found.missing


@pytest.mark.parametrize(("finished", "warned"), [(2, False), (3, True), (1, True)])
def test_others_at_the_engine_are_noticed(finished: float, warned: bool) -> None:
    found = numbers([outcome(0), outcome(1)], NO_OBJECTIVE, said(0, 128, finished))
    assert any("shared with others" in warning for warning in found.warnings) == warned


@pytest.mark.parametrize(("lag", "warned"), [(1, False), (11, True)])
def test_a_generator_that_fell_behind_is_told(lag: float, warned: bool) -> None:
    found = numbers([outcome(0, lag_ms=lag)], NO_OBJECTIVE, NOTHING_SAID)
    assert any("fell behind" in warning for warning in found.warnings) == warned


def test_answers_and_prompts_of_another_length_are_told() -> None:
    one = outcome(0, asked_output_tokens=9, sent_prompt_tokens=65, token_counts=())
    text = "; ".join(numbers([one], NO_OBJECTIVE, NOTHING_SAID).warnings)
    assert "1 answers have another length" in text
    assert "1 prompts had another length" in text
    assert "ITL is of pieces" in text
