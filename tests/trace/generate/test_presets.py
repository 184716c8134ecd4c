"""How near each preset comes to the statistics it is named for."""

from __future__ import annotations

import numpy as np
import pytest

from kvsched.trace.generate import PRESETS, generate, preset
from kvsched.trace.model import Trace


def ceiling(trace: Trace) -> float:
    return 1 - trace.nodes / trace.references


def times_to_reuse(trace: Trace) -> np.ndarray:
    """Seconds since the same node was last asked for, one a block that was seen before."""
    when = np.repeat(trace.time_s, trace.chain_blocks)
    order = np.argsort(trace.chains, kind="stable")
    again = np.diff(trace.chains[order]) == 0
    return np.diff(when[order])[again]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("name", "aims"),
    [
        ("chat", (15_000, 1_155, 211, 0.54)),
        ("mooncake-conversation", (12_031, 12_035, 343, 0.366)),
        ("mooncake-toolagent", (23_608, 8_596, 182, 0.59)),
        ("weka-coding-agents", (3_110, 94_747, 411, 0.962)),
    ],
)
def test_published_statistics(name: str, aims: tuple[int, int, int, float], seed: int) -> None:
    requests, mean_input, mean_output, best = aims
    trace = generate(preset(name), seed)
    assert len(trace) == requests
    assert trace.input_tokens.mean() == pytest.approx(mean_input, rel=0.12)
    assert trace.output_tokens.mean() == pytest.approx(mean_output, rel=0.06)
    assert ceiling(trace) == pytest.approx(best, abs=0.04 if best < 0.9 else 0.012)


def test_rag_lengths() -> None:
    trace = generate(preset("rag"), 1)
    assert trace.input_tokens.mean() == pytest.approx(2944, rel=0.05)
    assert trace.output_tokens.mean() == pytest.approx(283, rel=0.05)
    assert trace.session is not None
    assert len(trace) / len(trace.session.names) == pytest.approx(7106 / 3990, rel=0.05)


def test_time_to_reuse() -> None:
    chat = times_to_reuse(generate(preset("chat"), 1))
    assert (chat <= 600).mean() == pytest.approx(0.8, abs=0.07)
    kimi = times_to_reuse(generate(preset("mooncake-conversation"), 1))
    assert np.median(kimi) == pytest.approx(114, rel=0.2)
    agents = times_to_reuse(generate(preset("weka-coding-agents"), 1))
    assert 9 <= np.median(agents) <= 20


def test_reuse_in_chat_is_skewed() -> None:
    trace = generate(preset("chat"), 1)
    hits = np.sort(np.bincount(trace.chains) - 1)[::-1]
    assert hits[: len(hits) // 10].sum() / hits.sum() == pytest.approx(0.77, abs=0.08)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_day_is_a_day(seed: int) -> None:
    # The last hours are so quiet that a few hundred requests more or less make an hour.
    assert generate(preset("day"), seed).duration_s == pytest.approx(86_400, rel=0.15)


def test_every_preset_says_what_it_is() -> None:
    assert all(len(text) > 40 and preset(name).name == name for name, text in PRESETS.items())


def test_a_million_references_and_more() -> None:
    trace = generate(preset("chat", requests=60_000), 1)
    assert trace.references > 3_000_000
    assert trace.parent.max() < trace.nodes


def test_measured_on_the_real_conversation_trace(shared_traces) -> None:  # type: ignore[no-untyped-def]
    """The figures that the presets aim at, counted again from the recording."""
    import json

    path = shared_traces / "mooncake" / "conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    made = generate(preset("mooncake-conversation"), 1)
    references = sum(len(row["hash_ids"]) for row in rows)
    nodes = len({found for row in rows for found in row["hash_ids"]})
    inputs = np.array([row["input_length"] for row in rows])
    assert len(rows) == len(made)
    assert made.references == pytest.approx(references, rel=0.06)
    assert ceiling(made) == pytest.approx(1 - nodes / references, abs=0.03)
    for percent in (50, 75, 90, 95):
        assert np.percentile(made.input_tokens, percent) == pytest.approx(
            np.percentile(inputs, percent), rel=0.2
        )
