"""SGLang through the frame of engine rules: limits, ceilings, results, a study."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from factory import make_trace, traces
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Setup
from kvsched.replay.run import replay
from kvsched.replay.sglang import RESERVED_TOKENS
from kvsched.replay.sglang_rules import RADIX, SGLang
from kvsched.replay.sglang_tree import STRATEGIES
from kvsched.study.run import Options, study
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace

POLICIES = (*STRATEGIES, "slru", "gdsf", "opt-fit")


@st.composite
def conversations(draw: st.DrawFn) -> Trace:
    """Draw a small trace with answers of every length."""
    trace = draw(traces(requests=16, length=5, keys=2))
    count = len(trace)
    tokens = st.sampled_from([0, 1, 2, 11, 16, 17, 33, 60])
    outputs = draw(st.lists(tokens, min_size=count, max_size=count))
    return dataclasses.replace(trace, output_tokens=np.array(outputs, np.int64))


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=60, derandomize=True)
@given(trace=conversations(), capacity=st.integers(1, 14))
def test_what_is_hit_was_held_and_fits(policy: str, trace: Trace, capacity: int) -> None:
    rules = SGLang(trace)
    found = rules.replay(policy, capacity, decisions=True, compiled=False)
    assert (found.request_hits <= rules.ceiling()).all()
    assert (found.request_hits * trace.block_size <= np.maximum(trace.input_tokens - 1, 0)).all()
    assert 0 <= found.resident_blocks <= capacity
    assert not found.request_hits[found.request_refused].any()
    assert found.decisions is not None
    assert len(found.decisions.victim) == found.evictions
    assert found.request_stored.sum() - found.evictions == found.resident_blocks


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30, derandomize=True)
@given(trace=conversations())
def test_an_unlimited_pool_hits_the_ceiling(policy: str, trace: Trace) -> None:
    rules = SGLang(trace)
    found = rules.replay(policy, 10_000, compiled=False)
    assert found.request_hits.tolist() == rules.ceiling().tolist()
    assert found.evictions == 0
    assert found.refused == 0


@settings(deadline=None, max_examples=30, derandomize=True)
@given(trace=conversations(), capacity=st.integers(2, 14))
def test_compiled_equals_plain(trace: Trace, capacity: int) -> None:
    plain = replay(trace, "lfu", capacity, engine="sglang", decisions=True, compiled=False)
    quick = replay(trace, "lfu", capacity, engine="sglang", decisions=True, compiled=True)
    assert plain.request_hits.tolist() == quick.request_hits.tolist()
    assert plain.request_known.tolist() == quick.request_known.tolist()
    assert plain.decisions is not None
    assert quick.decisions is not None
    assert plain.decisions.victim.tolist() == quick.decisions.victim.tolist()


def test_a_node_leaves_whole_where_pages_would_leave_one_by_one() -> None:
    # Three pages in one run of a pool of five; then two more, and one to spare, are asked for.
    trace = make_trace([(1, 2, 3), (4, 5), (1, 2, 3)], [0, 1, 1], [0, 0, 0])
    trace = dataclasses.replace(trace, output_tokens=np.ones(3, np.int64))
    own = replay(trace, "lru", 5, engine="sglang", decisions=True)
    assert own.request_evictions.tolist()[:2] == [0, 3], "one page was missing, the run had three"
    assert own.decisions is not None
    assert own.decisions.victim.tolist()[:3] == [2, 1, 0], "its tail first"
    pages = replay(trace, "gdsf", 5, engine="sglang")
    assert pages.request_evictions.tolist()[:2] == [0, 0], "page by page two still fit"


def test_names_of_strategies_are_sglangs_and_others_the_registrys() -> None:
    assert type(SGLang.policy("lru")) is RADIX["lru"]
    assert type(SGLang.policy()) is RADIX["lru"]
    assert SGLang.policy("gdsf").name == "gdsf"
    with pytest.raises(UsageError, match="needs --engine sglang"):
        SGLang.policy("lru").prepare(Setup(1, 1, 1))
    with pytest.raises(UsageError, match="unknown policy nothing"):
        SGLang.policy("nothing")


def test_what_can_never_fit_is_refused_and_counted() -> None:
    trace = make_trace([(1, 2, 3, 4), (5,)], [0, 1], [0, 0])
    found = replay(trace, None, 3, engine="sglang")
    assert found.request_refused.tolist() == [True, False]
    assert found.summary()["refused_requests"] == 1
    assert trace.block_size > RESERVED_TOKENS


def test_a_study_under_its_rules_sums_up() -> None:
    trace = generate(preset("chat", requests=600), 2)
    options = Options(engine="sglang", points=3, policies=("lfu", "gdsf"))
    result = study(trace, 2000, options=options)
    row = result.anatomy.overall
    assert row.hit + row.compulsory + row.tail + row.capacity + row.regret == row.tokens
    assert row.tokens == result.trace.prompt_tokens
    assert not result.optimum_is_exact
    assert result.definitions["engine"].startswith("sglang: pages")
    assert "over radix nodes" in result.definitions["policies"]
    assert {row.policy for row in result.policies} == {"lru", "lfu", "gdsf", "opt-fit", "opt"}
    own = next(row for row in result.policies if row.policy == "lru")
    assert own.hit_tokens == replay(trace, "lru", 2000, engine="sglang").hit_tokens
