"""The orders of requests: by hand, against an oracle, and what each says of starvation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from factory import make_trace
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from order_oracle import ORACLES, first_times, follow
from serving import plain, settings, work

from kvsched.serve.cost import linear_cost
from kvsched.serve.orders.registry import make_order, order_names
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.trace.model import Labels, Trace

COST = linear_cost(1.0, 0.01, 0.0001, 0.000001)
NEW = list(ORACLES)


@st.composite
def asked(draw: st.DrawFn) -> Trace:
    """Draw work with tenants, some requests without one, and deadlines, some without one."""
    trace = draw(work())
    count = len(trace)
    codes = draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count))
    has = draw(st.lists(st.sampled_from([np.nan, -5.0, 1.0, 60.0]), min_size=count, max_size=count))
    return dataclasses.replace(
        trace,
        tenant=Labels(np.array(codes, np.int32), ("a", "b", "c")),
        deadline_s=draw(st.none() | st.just(trace.time_s + np.array(has))),
    )


def with_values(name: str, seed: int) -> Any:
    """Return an order with parameters of its own, or its defaults."""
    told = {
        "lpm": ["lpm", "lpm:longest=3", "lpm:same-prefix=16"],
        "spf": ["spf", "spf:same_prefix=0", "spf:same_prefix=1000"],
        "edf": ["edf", "edf:ttft_s=10"],
        "tenant-fair": ["tenant-fair", "tenant-fair:weight.b=2:weight.a=4:prompt_cost=3"],
        "decode-order": ["decode-order"],
    }[name]
    return make_order(told[seed % len(told)])


@pytest.mark.parametrize("name", NEW)
@given_settings(max_examples=60)
@given(trace=asked(), told=settings(), seed=st.integers(0, 5), policy=st.sampled_from([None, "fifo"]))
def test_admissions_are_the_oracles(
    name: str, trace: Trace, told: Settings, seed: int, policy: str | None
) -> None:
    follow(trace, told, with_values(name, seed), COST, policy=policy)
