"""Preemption by swap: by hand, what it promises, and what a broken rule would do."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, plain, same, settings, work
from stepping import Stepping

from kvsched.foundation.errors import UsageError
from kvsched.serve.cost import linear_cost
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import LOG_SECONDS, LOG_SEQUENCES, LOG_TOKENS, STEPS, State
from kvsched.serve.swap import BACK, MOVED_NOW, OUT, REFUSALS, SWAP, USED, SwapSettings
from kvsched.trace.model import Trace

STEP = linear_cost(1.0)
QUARTER = SwapSettings(swap_blocks=10, bytes_per_block=1 << 20, swap_bytes_per_s=1 << 22)
"""A block takes a quarter of a second, which sums are exact of."""

# Two prompts of 32 tokens, 20 to generate, 5 blocks: the second is preempted in the second step.
TWO = plain([(2, 20), (2, 20)])
TIGHT = Settings(num_gpu_blocks=5, max_num_seqs=8, max_num_batched_tokens=64)


def run(trace: Trace, told: Settings, swap: SwapSettings | None, **more: Any) -> Simulation:
    return simulate(
        trace, told, swap=swap, step_log=True, **{"cost": STEP, "compiled": False} | more
    )


def test_by_hand() -> None:
    # Two blocks leave in the second step. The first request takes four blocks in all, one of them
    # with a hash of the second's last block: of two, one is hit at the return, and one moves.
    found = run(TWO, TIGHT, QUARTER)
    assert found.step_log is not None
    seconds = found.step_log[:, LOG_SECONDS].tolist()
    assert seconds == [1, 1.5, *[1] * 18, 1.25, *[1] * 18]
    assert found.finished_s.tolist() == [20.5, 39.75]
    assert found.first_token_s.tolist() == [1, 1]
    total = found.summary()
    assert (total["swaps"], total["swapped_out_blocks"], total["swapped_in_blocks"]) == (1, 2, 1)
    assert (total["swaps_refused"], total["most_swapped_blocks"], total["swap_s"]) == (0, 2, 0.75)
    assert total["computed_tokens"] == 32 + 32 + 19 + 19
    assert total["recomputed_tokens"] == 0


def test_without_a_cache_all_moves_back() -> None:
    found = run(TWO, dataclasses.replace(TIGHT, enable_prefix_caching=False), QUARTER)
    assert found.summary()["swapped_in_blocks"] == 2
    assert found.finished_s.tolist() == [20.5, 40]


def test_what_does_not_fit_is_computed_again() -> None:
    again = run(TWO, TIGHT, None)
    small = run(TWO, TIGHT, dataclasses.replace(QUARTER, swap_blocks=1))
    assert small.summary()["swaps_refused"] == 1
    assert small.summary()["recomputed_tokens"] == 16
    for name in ("finished_s", "first_token_s", "step_log"):
        assert getattr(small, name).tolist() == getattr(again, name).tolist()
    assert again.summary() == {**small.summary(), "swaps_refused": 0}
    assert again.finished_s.tolist() == [20, 39]
    assert again.summary()["computed_tokens"] == 32 + 32 + 19 + 19 + 16


def test_a_partial_block_moves_too() -> None:
    # In step 17 the first has 48 tokens and takes a block; the second has 17 tokens in 2 blocks.
    trace = plain([(2, 30), (1, 30)])
    told = dataclasses.replace(TIGHT, num_gpu_blocks=5, enable_prefix_caching=False)
    found = run(trace, told, QUARTER)
    assert found.summary()["swaps"] == 1
    assert found.summary()["swapped_out_blocks"] == 2
    assert found.summary()["recomputed_tokens"] == 0


@st.composite
def tiers(draw: st.DrawFn) -> SwapSettings:
    rate = draw(st.sampled_from([math.inf, 4.0, 1.0]))
    return SwapSettings(draw(st.sampled_from([0, 1, 3, 8, 1000])), 1, rate)


@given_settings(max_examples=80)
@given(work(), settings(), tiers(), st.sampled_from([None, "lru"]))
def test_every_step_is_sound(
    trace: Trace, told: Settings, swap: SwapSettings, policy: str | None
) -> None:
    stepping = Stepping(trace, told, STEP, swap=swap, policy=policy)
    state = stepping.run()
    check_run(stepping, state, swap)


def check_run(stepping: Stepping, state: State, swap: SwapSettings) -> None:
    """What is true of a whole run: seconds are of steps and of moves; what moved is kept."""
    log = state.log[: state.counts[STEPS]]
    tier = state.tier
    moved = int(tier.counts[OUT] + tier.counts[BACK])
    busy = int((log[:, LOG_SEQUENCES] > 0).sum())
    assert log[:, LOG_SECONDS].sum() == busy + moved * swap.block_s
    assert tier.counts[MOVED_NOW] == 0
    if tier.counts[REFUSALS] == 0:
        assert stepping.again == 0, "nothing that moved is computed again"
    done = state.progress.finished_s >= 0
    asked = (state.work.prompt + state.work.output - 1)[done].sum()
    once = log[:, LOG_TOKENS].sum() - stepping.again
    assert once <= asked
    if not stepping.told.enable_prefix_caching:
        assert once == asked


@given_settings(max_examples=60)
@given(work(), settings(), tiers(), st.sampled_from(["fcfs", "priority"]), st.booleans())
def test_jumps_change_nothing(
    trace: Trace, told: Settings, swap: SwapSettings, order: str, cached: bool
) -> None:
    more: dict[str, Any] = {"cost": COST, "order": order, "policy": "lru" if cached else None}
    assert same(run(trace, told, swap, **more), run(trace, told, swap, jumps=False, **more))


@given_settings(max_examples=40)
@given(work(), settings(), st.integers(0, 20))
def test_a_slower_link_only_takes_longer(trace: Trace, told: Settings, blocks: int) -> None:
    # Nobody arrives later, so nothing depends on the time: the steps are the same.
    trace = dataclasses.replace(trace, time_s=np.zeros(len(trace)))
    fast = run(trace, told, SwapSettings(blocks, 1, math.inf))
    slow = run(trace, told, SwapSettings(blocks, 1, 4.0))
    assert fast.step_log is not None
    assert slow.step_log is not None
    assert (fast.step_log[:, 2:] == slow.step_log[:, 2:]).all()
    assert slow.end_s == fast.end_s + slow.summary()["swap_s"]
    done = fast.finished
    assert (slow.finished_s[done] >= fast.finished_s[done]).all()


@given_settings(max_examples=30)
@given(work(), settings())
def test_a_tier_without_room_is_none(trace: Trace, told: Settings) -> None:
    none = run(trace, told, None)
    empty = run(trace, told, SwapSettings(0, 1, 1.0))
    assert (none.step_log == empty.step_log).all()
    assert none.summary() == {**empty.summary(), "swaps_refused": 0}


BUSY = plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 3, [0, 1, 3, 1] * 3)
BUSY_SETTINGS = Settings(
    num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64, enable_prefix_caching=False
)
SMALL = SwapSettings(4, 1, 4.0)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("reserve", [True, False])
@pytest.mark.parametrize("budget", [9, 64])
def test_where_many_are_preempted(budget: int, reserve: bool, cached: bool) -> None:
    told = dataclasses.replace(
        BUSY_SETTINGS, max_num_batched_tokens=budget, scheduler_reserve_full_isl=reserve,
        enable_prefix_caching=cached,
    )  # fmt: skip
    for swap in (SMALL, SwapSettings(1000, 1, 4.0)):
        stepping = Stepping(BUSY, told, STEP, swap=swap)
        check_run(stepping, stepping.run(), swap)
        assert stepping.state.progress.preemptions.max() > 1
    none = Stepping(BUSY, told, STEP)
    none.run()
    assert none.again > 0
    assert same(run(BUSY, told, SMALL), run(BUSY, told, SMALL, jumps=False))


def without_a_limit(state: State, request: int) -> bool:
    counts = state.tier.counts
    need = -(-int(state.progress.computed[request]) // 16)
    state.tier.blocks[request] = need
    counts[USED] += need
    return need > 0


def full_blocks_only(state: State, request: int) -> bool:
    moved = SWAP_OUT(state, request)
    if moved:
        state.tier.blocks[request] = state.progress.computed[request] // 16
    return bool(moved)


def forgets(state: State, request: int) -> bool:
    SWAP_OUT(state, request)
    return False


def stays(state: State, request: int, hits: int) -> None:
    pass


def free_of_charge(state: State) -> float:
    state.tier.counts[MOVED_NOW] = 0
    return 0.0


SWAP_OUT = SWAP["move_out"]
BROKEN = {
    "the tier has no limit": ("move_out", without_a_limit),
    "a partial block is forgotten": ("move_out", full_blocks_only),
    "what moved is computed again": ("move_out", forgets),
    "what came back stays there too": ("move_in", stays),
    "moves take no time": ("moved_seconds", free_of_charge),
}


@pytest.mark.parametrize("which", [None, *BROKEN])
def test_a_broken_rule_is_noticed(which: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if which is not None:
        monkeypatch.setitem(SWAP, *BROKEN[which])
    stepping = Stepping(BUSY, BUSY_SETTINGS, STEP, swap=SMALL)
    if which is None:
        check_run(stepping, stepping.run(), SMALL)
        assert stepping.state.tier.counts[OUT] > 0
        assert stepping.again > 0, "not all fits"
        return
    with pytest.raises(AssertionError):
        check_run(stepping, stepping.run(), SMALL)


def test_faults_are_said_in_one_line() -> None:
    for changed, said in (
        ({"swap_blocks": -1}, "swap_blocks must be a whole number of at least 0, not -1"),
        ({"swap_blocks": True}, "swap_blocks must be"),
        ({"bytes_per_block": 0}, "bytes_per_block must be a whole number of at least 1"),
        ({"swap_bytes_per_s": 0.0}, "swap_bytes_per_s must be a number above 0, not 0.0"),
        ({"swap_bytes_per_s": math.nan}, "swap_bytes_per_s must be a number above 0, not nan"),
    ):
        with pytest.raises(UsageError, match=said):
            dataclasses.replace(QUARTER, **changed)
    assert QUARTER.summary()["swap_blocks"] == 10
