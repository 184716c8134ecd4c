"""Replicas with limits on who waits and with a second tier: each has its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, dated, limits, plain, same, settings

from kvsched.serve.admission import AdmissionSettings
from kvsched.serve.asked import NEVER_FITS, QUEUE_FULL
from kvsched.serve.cost import linear_cost
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.swap import SwapSettings
from kvsched.trace.model import Trace

SWAP = SwapSettings(swap_blocks=6, bytes_per_block=100, swap_bytes_per_s=1000.0)


@given_settings(max_examples=80)
@given(
    dated(),
    settings(),
    limits(),
    st.sampled_from([{}, {"concurrency": 3}, {"sessions": True}]),
    st.sampled_from([None, SWAP]),
    st.sampled_from([None, 40.0]),
)
def test_one_limited_replica_is_an_engine(
    trace: Trace,
    told: Settings,
    limit: AdmissionSettings,
    how: dict[str, Any],
    swap: SwapSettings | None,
    horizon: float | None,
) -> None:
    more: dict[str, Any] = {
        "cost": COST, "admission": limit, "swap": swap, "horizon_s": horizon, "step_log": True,
        "compiled": False, **how,
    }  # fmt: skip
    engine = simulate(trace, told, **more)
    replica = simulate(trace, told, routing="round-robin", **more)
    assert same(engine, replica)
    assert np.array_equal(engine.rejected_s, replica.rejected_s, equal_nan=True)
    assert engine.reason.tolist() == replica.reason.tolist()


@given_settings(max_examples=60)
@given(
    dated(),
    settings(),
    limits(),
    st.sampled_from(["round-robin", "least-loaded", "prefix-aware"]),
    st.sampled_from([{}, {"concurrency": 4}]),
)
def test_nobody_is_lost_between_limited_replicas(
    trace: Trace, told: Settings, limit: AdmissionSettings, routing: str, how: dict[str, Any]
) -> None:
    found = simulate(
        trace, told, cost=COST, admission=limit, swap=SWAP, data_parallel_size=2, routing=routing,
        compiled=False, **how,
    )  # fmt: skip
    total = found.summary()
    assert total["finished"] + total["rejected"] == len(trace)
    assert ((found.reason > 0) == found.rejected).all()
    assert total["most_swapped_blocks"] <= SWAP.swap_blocks


def test_each_replica_has_limits_of_its_own() -> None:
    # One runs and one waits in each engine; the fifth and sixth find both places taken.
    trace = plain([(1, 50)] * 6)
    told = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)
    one_waits = AdmissionSettings(max_waiting=1)
    found = simulate(
        trace, told, cost=COST, admission=one_waits, data_parallel_size=2,
        routing="round-robin", compiled=False,
    )  # fmt: skip
    assert found.replica is not None
    assert found.replica.tolist() == [0, 1, 0, 1, 0, 1]
    assert found.reason.tolist() == [0, 0, 0, 0, QUEUE_FULL, QUEUE_FULL]
    alone = simulate(trace, told, cost=COST, admission=one_waits, compiled=False)
    assert alone.rejected.sum() == 4


def test_an_end_by_rejection_lets_the_next_come_at_its_time() -> None:
    """In a closed loop who is turned away brings the next: no engine may have run past that."""
    trace = plain([(1, 300), (1, 300), (1, 5), (1, 5), (1, 5), (1, 5)])
    told = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)
    impatient = AdmissionSettings(max_queue_s=20.0)
    found = simulate(
        trace, told, cost=COST, admission=impatient, data_parallel_size=2, concurrency=4,
        routing="round-robin", compiled=False,
    )  # fmt: skip
    assert found.rejected[2:].all()
    assert (np.diff(found.arrival_s) >= 0).all()
    # The fifth comes when the third is turned away, and so on.
    assert found.arrival_s[4:].tolist() == found.rejected_s[2:4].tolist()


def test_who_is_rejected_as_it_comes_brings_the_next_at_once() -> None:
    # The sixth is turned away in the step from 1 to 2 s; the seventh comes then, and never fits.
    lengths = [(1, 1)] * 6 + [(9, 1), (1, 1), (1, 1)]
    told = Settings(num_gpu_blocks=8, max_num_seqs=1, max_num_batched_tokens=64)
    more: dict[str, Any] = {
        "cost": linear_cost(1.0), "admission": AdmissionSettings(max_waiting=1), "concurrency": 3,
        "compiled": False,
    }  # fmt: skip
    found = simulate(plain(lengths), told, **more)
    assert found.reason[6] == NEVER_FITS
    assert found.arrival_s[7] == found.arrival_s[6]
    assert (np.diff(found.arrival_s) >= 0).all()
    replica = simulate(plain(lengths), told, routing="round-robin", **more)
    assert replica.arrival_s.tolist() == found.arrival_s.tolist()
