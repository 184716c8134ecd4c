"""Policies with other parameters than the default: the same contract, the same oracle."""

from __future__ import annotations

import oracle_keys
import pytest
from contract import CHECKS, Run
from factory import traces, uneven
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.policy.registry import make
from kvsched.replay.run import replay
from kvsched.trace.model import Trace

LABELS = [label for label in oracle_keys.KEYS if ":" in label]
quick = settings(deadline=None, max_examples=80, derandomize=True)


@pytest.mark.parametrize("label", LABELS)
@quick
@given(trace=traces(requests=24, length=6), capacity=st.integers(1, 9))
def test_every_check_holds(label: str, trace: Trace, capacity: int) -> None:
    run = Run(trace, make(label), capacity)
    for check in CHECKS.values():
        check(run, label)
    compiled = replay(trace, label, capacity, decisions=True, compiled=True)
    assert compiled.request_hits.tolist() == run.counts.hits.tolist()
    assert compiled.decisions is not None
    victims = [node for node in run.log.victim.tolist() if node >= 0]
    assert compiled.decisions.victim.tolist() == victims


@pytest.mark.parametrize("label", LABELS)
@quick
@given(trace=traces(requests=24, length=6), capacity=st.integers(1, 9), seed=st.integers(0, 9))
def test_blocks_of_any_size(label: str, trace: Trace, capacity: int, seed: int) -> None:
    """A block begins where its ancestors end, of whatever size they are."""
    CHECKS["oracle"](Run(uneven(trace, seed), make(label), capacity), label)


@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_what_makes_the_policy(label: str) -> None:
    assert make(make(label).label).values == make(label).values
