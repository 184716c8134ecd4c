"""The orders of requests: by hand, against an oracle, and what each says of starvation."""

from __future__ import annotations

import dataclasses
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from factory import About, make_trace
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from order_oracle import ORACLES, follow
from serving import COST, plain, same, settings, work
from test_orders_can_fail import crowded
from test_simulate import check

from kvsched.serve.orders.decode_order import Weights
from kvsched.serve.orders.registry import find_order, make_order, order_names
from kvsched.serve.orders.tenant_fair import TenantFair
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.trace.model import Labels, Trace

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
@given(
    trace=asked(), told=settings(), seed=st.integers(0, 5), policy=st.sampled_from([None, "fifo"])
)
def test_admissions_are_the_oracles(
    name: str, trace: Trace, told: Settings, seed: int, policy: str | None
) -> None:
    follow(trace, told, with_values(name, seed), COST, policy=policy)


@pytest.mark.parametrize("name", NEW)
@given_settings(max_examples=40)
@given(
    trace=asked(), told=settings(), seed=st.integers(0, 5), policy=st.sampled_from([None, "lfu"]),
    concurrency=st.none() | st.integers(1, 5), horizon=st.none() | st.just(40.0),
)  # fmt: skip
def test_nothing_is_lost_and_jumps_change_nothing(
    name: str,
    trace: Trace,
    told: Settings,
    seed: int,
    policy: str | None,
    concurrency: int | None,
    horizon: float | None,
) -> None:
    more: dict[str, Any] = {
        "cost": COST, "policy": policy, "concurrency": concurrency, "horizon_s": horizon,
        "step_log": True, "compiled": False,
    }  # fmt: skip
    jumped = simulate(trace, told, order=with_values(name, seed), **more)
    stepped = simulate(trace, told, order=with_values(name, seed), jumps=False, **more)
    assert same(jumped, stepped)
    check(jumped, concurrency)
    if horizon is None:
        assert jumped.summary()["unfinished"] == 0


class Hasty(TenantFair):
    """A tenant's turn may come while steps are jumped over, and it does not say so."""

    picks = False


def test_a_jump_over_an_admission_is_noticed() -> None:
    more: dict[str, Any] = {"cost": COST, "step_log": True, "compiled": False}
    for order, expected in ((TenantFair, True), (Hasty, False)):
        equal = True
        for seed in range(20):
            trace, told = crowded(seed)
            jumped = simulate(trace, told, order=order, **more)
            equal &= same(jumped, simulate(trace, told, order=order, jumps=False, **more))
        assert equal is expected


ONE = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=200)


def order_of(trace: Trace, order: Any, told: Settings = ONE, **more: Any) -> list[int]:
    """Return the requests as they are first admitted, those of one step in the trace's order."""
    found = simulate(trace, told, cost=COST, order=order, compiled=False, **more)
    return np.argsort(found.scheduled_s, kind="stable").tolist()


def paths_of(*paths: tuple[int, ...], gaps: list[int] | None = None, output: int = 2) -> Trace:
    """Return requests with these blocks, and a tail of 5 tokens each so that all blocks can hit."""
    trace = make_trace(list(paths), gaps or [0] * len(paths), [5] * len(paths))
    return dataclasses.replace(trace, output_tokens=np.full(len(paths), output))


def test_lpm_by_hand() -> None:
    # The first runs alone. Then two blocks of it are another's, one a third's, none a fourth's.
    asks = paths_of((1, 2, 3), (4, 5, 6), (1, 5, 6), (1, 2, 7), gaps=[0, 1, 0, 0])
    assert order_of(asks, "lpm:same-prefix=0") == [0, 3, 2, 1]
    # One block of 16 tokens is not above 32: that one goes by its hits, and is no duplicate.
    assert order_of(asks, "lpm") == [0, 3, 2, 1]
    assert order_of(asks, "lpm:longest=2") == [0, 1, 3, 2], "sorted once two are left"
    assert order_of(asks, "lpm:longest=0") == [0, 1, 2, 3]
    assert order_of(asks, "fcfs") == [0, 1, 2, 3]


def test_lpm_lets_one_of_a_prefix_go_first() -> None:
    asks = paths_of((1, 2, 3), (1, 2, 4), (5, 6, 7), (1, 6, 7))
    told = Settings(num_gpu_blocks=100, max_num_seqs=3, max_num_batched_tokens=200)
    # The second has 32 tokens of the first, which nobody has computed; the fourth has 16.
    assert order_of(asks, "lpm", told) == [0, 2, 3, 1]
    assert order_of(asks, "lpm:same-prefix=48", told) == [0, 1, 2, 3]


def test_spf_by_hand() -> None:
    # Tokens to compute beside the tail: 48, then 80, 16, 64 less 48 that are cached, and 32.
    asks = paths_of((1, 2, 3), (4, 5, 6, 7, 8), (9,), (1, 2, 3, 4), (10, 11), gaps=[0, 1, 0, 0, 0])
    assert order_of(asks, "spf") == [0, 2, 3, 4, 1], "16, 16 that came later, 32, 80"
    plainly = dataclasses.replace(ONE, enable_prefix_caching=False)
    assert order_of(asks, "spf", plainly) == [0, 2, 4, 3, 1]


def test_edf_by_hand() -> None:
    asks = plain([(1, 5)] * 4, [0, 1, 0, 0])
    assert order_of(asks, "edf") == [0, 1, 2, 3], "without deadlines by arrival"
    asks = dataclasses.replace(asks, deadline_s=np.array([9.0, 8.0, np.nan, 4.0]))
    assert order_of(asks, "edf:ttft_s=5") == [0, 3, 2, 1], "at 4, 1 + 5 and 8 s"
    assert order_of(asks, "edf:ttft_s=9") == [0, 3, 1, 2]
    # Each has its own time from its own arrival on, however fast they come.
    assert order_of(asks, "edf:ttft_s=5", speedup=4.0) == [0, 3, 2, 1]


def tenants(codes: list[int], gaps: list[int] | None = None, output: int = 1) -> Trace:
    """Return requests of 16 tokens, each of a tenant; -1 for none."""
    asks = plain([(1, output)] * len(codes), gaps)
    return dataclasses.replace(asks, tenant=Labels(np.array(codes, np.int32), ("a", "b")))


def test_tenant_fair_by_hand() -> None:
    asks = tenants([0, 0, 0, 0, 1, 1])
    assert order_of(asks, "tenant-fair") == [0, 4, 1, 5, 2, 3]
    # Of weight 2, each costs b 8: it is behind at 16 to 8, even at 16 to 16.
    assert order_of(asks, "tenant-fair:weight.b=2") == [0, 4, 5, 1, 2, 3]
    assert order_of(asks, TenantFair(weights={"b": 2})) == [0, 4, 5, 1, 2, 3]
    assert order_of(asks, "tenant-fair:weight.a=2") == [0, 4, 1, 2, 5, 3]
    assert order_of(tenants([0, 0, -1, -1]), "tenant-fair") == [0, 2, 1, 3], "none is one tenant"
    # In one step too: what is admitted is charged at once.
    three = Settings(num_gpu_blocks=100, max_num_seqs=3, max_num_batched_tokens=200)
    found = simulate(asks, three, cost=COST, order="tenant-fair", compiled=False)
    assert np.flatnonzero(found.scheduled_s == 0).tolist() == [0, 1, 4]


def test_a_tenant_that_comes_back_does_not_save_up() -> None:
    # A step of one prompt is about 1.2 s: two of a are served when b comes, the third runs.
    asks = tenants([0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, 3, 0, 0])
    assert order_of(asks, "tenant-fair") == [0, 1, 2, 3, 6, 4, 7, 5, 8]


def test_what_is_generated_counts_twice_as_much() -> None:
    # Both have two requests. The first of a generates 10: 16 + 2 · 9 = 34; those of b 16 each.
    asks = tenants([0, 0, 1, 1])
    asks = dataclasses.replace(asks, output_tokens=np.array([10, 1, 1, 1]))
    assert order_of(asks, "tenant-fair") == [0, 2, 3, 1]
    assert order_of(asks, "tenant-fair:generated_cost=0") == [0, 2, 1, 3]


def test_decode_order_by_hand() -> None:
    paths = [(1, 2, 3), (4,), (1, 2, 3), (5,), (6,)]
    about = [About(priority=0), About(), About(), About(priority=1), About(priority=-1)]
    asks = make_trace(paths, [0, 1, 0, 0, 0], [5, 0, 0, 0, 0], about)
    # Priority 1 is 1; two blocks of three are cached of the third (its last token never): 0.67.
    assert order_of(asks, "decode-order") == [0, 3, 2, 1, 4]
    assert order_of(asks, "decode-order:priority=0") == [0, 2, 1, 3, 4]
    assert order_of(asks, "decode-order:cached=0:priority=0") == [0, 1, 2, 3, 4]


def test_who_waits_longer_overtakes() -> None:
    # Ten seconds of waiting are a step of priority.
    about = [About(), About(priority=0), About(priority=1)]
    for later, expected in ((9, [0, 2, 1]), (11, [0, 1, 2])):
        asks = make_trace([(1,), (2,), (3,)], [0, 0, later], [0, 0, 0], about)
        asks = dataclasses.replace(asks, output_tokens=np.array([30, 1, 1]))
        assert order_of(asks, "decode-order") == expected


@pytest.mark.parametrize("name", ["edf", "decode-order"])
def test_who_is_preempted(name: str) -> None:
    rng = np.random.default_rng(3)
    order = find_order(name)
    for _ in range(200):
        count = int(rng.integers(1, 8))
        running = rng.permutation(9)[:count]
        arrived = np.sort(rng.integers(0, 3, 9)).astype(float)
        tie, slack = np.arange(9), rng.integers(0, 3, 9).astype(float)
        prompt, hit, rank = np.full(9, 8), rng.integers(0, 9, 9), rng.integers(-1, 2, 9)
        computed = rng.integers(0, 8, 9)
        progress = SimpleNamespace(
            arrival_s=arrived, tie=tie, first_hit=hit, computed=computed, tokens=np.full(9, 8)
        )
        state = SimpleNamespace(
            counts=[count], running=running, progress=progress,
            work=SimpleNamespace(prompt=prompt, priority=-rank),
        )  # fmt: skip
        own: Any = slack
        if name == "decode-order":
            own = Weights(np.array([2.0, 1.0, 1.0, 0.25]), 16)
            scores = 2.0 * (computed == 7) + hit / 8 + rank - 0.25 * arrived
            expected = min(range(count), key=lambda at: (scores[running[at]], -tie[running[at]]))
        else:
            due = arrived + slack
            expected = max(range(count), key=lambda at: (due[running[at]], tie[running[at]]))
        assert order.preempted_place(state, own, int(running[0]), 0.0) == expected


def better_and_better(count: int = 60) -> Trace:
    """Return one long prompt of little priority, and short better ones faster than they end."""
    paths = [(1, 2), *((7,) for _ in range(20)), (3, 4, 5, 6), *((7,) for _ in range(count))]
    about = [About(priority=1) for _ in paths]
    about[21] = About(priority=0)
    asks = make_trace(paths, [0] * 22 + [1] * count, [5] * len(paths), about)
    return dataclasses.replace(asks, tenant=Labels(np.array(
        [0] * 21 + [1] + [0] * count, np.int32), ("a", "b")))  # fmt: skip


POOR = 21


@pytest.mark.parametrize("name", ["spf", "lpm", "decode-order:waited=0", "priority"])
def test_who_may_starve(name: str) -> None:
    asks = better_and_better()
    assert order_of(asks, name)[-1] == POOR, "as long as better ones come"


@pytest.mark.parametrize("name", ["tenant-fair", "decode-order", "edf", "fcfs"])
def test_who_does_not_starve(name: str) -> None:
    asks = better_and_better()
    served = order_of(asks, name)
    before = served[: served.index(POOR)]
    if name == "tenant-fair":
        assert before == [0], "the other tenant has been served, and it has not"
    elif name == "decode-order":
        # Cached as a whole and a priority above: 2 points, 20 seconds.
        assert max(asks.time_s[r] for r in before) <= asks.time_s[POOR] + 20
        assert len(before) > 25, "it does wait behind better ones"
    else:
        assert before == list(range(POOR))


@given_settings(max_examples=60)
@given(asked(), settings())
def test_waiting_bounds_who_overtakes(trace: Trace, told: Settings) -> None:
    found = simulate(trace, told, cost=COST, order="decode-order:waited=1", compiled=False)
    assert trace.priority is not None
    span = 1 + int(trace.priority.max() - trace.priority.min())
    assert overtaken(found.arrival_s, found.scheduled_s, span) == 0


@given_settings(max_examples=60)
@given(asked(), settings())
def test_the_spread_of_deadlines_bounds_who_overtakes(trace: Trace, told: Settings) -> None:
    found = simulate(trace, told, cost=COST, order="edf:ttft_s=20", compiled=False)
    # Times from -5 to 60 seconds.
    assert overtaken(found.arrival_s, found.scheduled_s, 65) == 0


def overtaken(arrival_s: Any, scheduled_s: Any, bound_s: float) -> int:
    """Return the pairs of which the later by more than ``bound_s`` was admitted before."""
    late = arrival_s[:, None] + bound_s + 1e-5 < arrival_s[None, :]
    return int((late & (scheduled_s[:, None] > scheduled_s[None, :])).sum())


def test_the_bounds_can_fail() -> None:
    due = dataclasses.replace(plain([(1, 30)] * 3, [0, 0, 10]), deadline_s=np.array([0, 60, 5.0]))
    found = simulate(due, ONE, cost=COST, order="edf", compiled=False)
    assert overtaken(found.arrival_s, found.scheduled_s, 65) == 0
    assert overtaken(found.arrival_s, found.scheduled_s, 9) == 1
    asks = better_and_better()
    more: dict[str, Any] = {"cost": COST, "compiled": False}
    found = simulate(asks, ONE, order="decode-order", **more)
    assert overtaken(found.arrival_s, found.scheduled_s, 20) == 0
    assert overtaken(found.arrival_s, found.scheduled_s, 15) > 0
    found = simulate(asks, ONE, order="spf", **more)
    assert overtaken(found.arrival_s, found.scheduled_s, 20) > 0


@pytest.mark.parametrize("name", order_names())
def test_hooks_are_plain_functions(name: str) -> None:
    """A compiled loop takes nothing else: a `staticmethod` of another is none."""
    wrong = [
        key
        for key, value in find_order(name).hooks().items()
        if not isinstance(value, bool | types.FunctionType)
    ]
    assert wrong == []
