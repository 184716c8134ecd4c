"""The timed simulation: by hand, its properties, its faults, and the sequential replay's hits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, plain, same, settings, work

import kvsched
from kvsched.foundation.errors import UsageError
from kvsched.serve import simulate
from kvsched.serve.asked import (
    EMPTY_PROMPT,
    NEVER_FITS,
    NOT_IN_ONE_STEP,
    PROMPT_TOO_LONG,
    prepare,
)
from kvsched.serve.cost import StepCost, linear_cost
from kvsched.serve.engine import LivelockError, StalledError
from kvsched.serve.orders.base import QueueOrder
from kvsched.serve.orders.priority import Priority
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings, device_defaults
from kvsched.serve.state import (
    LOG_FREE,
    LOG_RUNNING,
    LOG_SECONDS,
    LOG_SEQUENCES,
    LOG_START_S,
    LOG_TOKENS,
    RUNNING,
    WAITING,
)
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

ORDERS = ("fcfs", "priority")


def test_by_hand() -> None:
    # Two prompts of 32 tokens, 3 to generate, a budget of 40: the second is cut at 8 tokens.
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=40)
    found = simulate.simulate(
        plain([(2, 3), (2, 3)]), told, cost=linear_cost(1.0, 0.5), step_log=True, compiled=False
    )
    assert found.step_log is not None
    assert found.step_log[:, LOG_TOKENS].tolist() == [40, 25, 2, 1]
    assert found.step_log[:, LOG_SECONDS].tolist() == [21, 13.5, 2, 1.5]
    assert found.step_log[:, LOG_START_S].tolist() == [0, 21, 34.5, 36.5]
    assert found.scheduled_s.tolist() == [0, 0]
    assert found.first_token_s.tolist() == [21, 34.5]
    assert found.finished_s.tolist() == [36.5, 38]
    assert found.tpot_s.tolist() == [7.75, 1.75]
    assert found.queued_s.tolist() == [0, 0]
    assert found.latency_s.tolist() == [36.5, 38]
    assert found.end_s == 38
    assert found.summary()["computed_tokens"] == 68
    assert "2 of 2 requests finished in 4 steps" in repr(found)


def test_seconds_read_what_the_batch_reads() -> None:
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=40)
    trace = plain([(2, 2)])
    read = simulate.simulate(trace, told, cost=linear_cost(1.0, 0, 1.0), compiled=False)
    assert read.finished_s[0] == 1 + 32 + 1 + 33
    pairs = simulate.simulate(trace, told, cost=linear_cost(1.0, 0, 0, 1.0), compiled=False)
    assert pairs.finished_s[0] == 1 + 32 * 33 // 2 + 1 + 33


def test_who_can_never_fit_is_named_before_the_run() -> None:
    trace = plain([(2, 5), (9, 5), (3, 200), (1, 1), (4, 5)])
    told = Settings(num_gpu_blocks=8, max_num_seqs=2, max_num_batched_tokens=50)
    assert prepare(trace, told).reason.tolist() == [0, NEVER_FITS, NEVER_FITS, 0, 0]
    whole = dataclasses.replace(told, enable_chunked_prefill=False)
    expected = [0, NEVER_FITS, NEVER_FITS, 0, NOT_IN_ONE_STEP]
    assert prepare(trace, whole).reason.tolist() == expected
    short = dataclasses.replace(told, max_model_len=64)
    found = simulate.simulate(trace, short, cost=COST, compiled=False)
    assert found.reason.tolist() == [0, PROMPT_TOO_LONG, 0, 0, PROMPT_TOO_LONG]
    assert found.generated_tokens.tolist() == [5, 0, 16, 1, 0], "an answer is cut"
    assert found.summary()["rejected_because"] == {"its prompt reaches max_model_len": 2}
    empty = dataclasses.replace(trace, input_tokens=np.array([0, 144, 48, 16, 64]))
    assert prepare(empty, told).reason[0] == EMPTY_PROMPT


def check(found: Simulation, concurrency: int | None) -> None:
    """Nothing is lost, and time does not go back."""
    total = found.summary()
    assert total["finished"] + total["rejected"] + total["unfinished"] == total["requests"]
    done = found.finished
    work_done = found.generated_tokens[done]
    assert (work_done == found.trace.output_tokens[done]).all()
    assert (found.queued_s[done] >= 0).all()
    assert (found.ttft_s[done] > found.queued_s[done]).all()
    assert (found.latency_s[done] >= found.ttft_s[done]).all()
    assert np.isnan(found.scheduled_s[found.rejected]).all()
    assert (found.hit_tokens <= np.maximum(found.trace.input_tokens - 1, 0)).all()
    log = found.step_log
    assert log is not None
    assert (np.diff(log[:, LOG_START_S]) >= 0).all()
    assert (log[:, LOG_FREE] >= 0).all()
    assert (log[:, LOG_RUNNING] <= found.settings.max_num_seqs).all()
    assert (log[:, LOG_TOKENS] <= found.settings.max_num_batched_tokens).all()
    assert log[:, LOG_TOKENS].sum() == total["computed_tokens"]
    assert (log[:, LOG_SEQUENCES] <= log[:, LOG_RUNNING]).all()
    if concurrency is not None:
        assert (log[:, LOG_RUNNING] <= concurrency).all()
    if total["unfinished"] == 0 and total["preemptions"] == 0:
        # Every token is computed once: what hit is not, nor is the last that is generated.
        asked = found.trace.input_tokens + found.trace.output_tokens - 1 - found.hit_tokens
        assert total["computed_tokens"] == asked[done].sum()


@given_settings(max_examples=150)
@given(
    work(),
    settings(),
    st.sampled_from(ORDERS),
    st.none() | st.integers(1, 5),
    st.none() | st.just(40.0),
)
def test_no_request_is_lost(
    trace: Trace, told: Settings, order: str, concurrency: int | None, horizon: float | None
) -> None:
    found = simulate.simulate(
        trace, told, cost=COST, order=order, concurrency=concurrency, horizon_s=horizon,
        step_log=True, compiled=False,
    )  # fmt: skip
    check(found, concurrency)
    if horizon is None:
        assert found.summary()["unfinished"] == 0


@given_settings(max_examples=150)
@given(
    work(),
    settings(),
    st.sampled_from(ORDERS),
    st.none() | st.integers(1, 5),
    st.none() | st.just(40.0),
)
def test_jumps_change_nothing(
    trace: Trace, told: Settings, order: str, concurrency: int | None, horizon: float | None
) -> None:
    more: dict[str, Any] = {
        "cost": COST, "order": order, "concurrency": concurrency, "horizon_s": horizon,
        "step_log": True, "compiled": False,
    }  # fmt: skip
    jumped = simulate.simulate(trace, told, jumps=True, **more)
    stepped = simulate.simulate(trace, told, jumps=False, **more)
    assert same(jumped, stepped)
    assert stepped.jumped_steps == 0


def test_the_comparison_of_jumps_can_fail() -> None:
    trace = plain([(1, 60), (2, 80), (3, 40), (1, 90)], [0, 1, 30, 1])
    told = Settings(num_gpu_blocks=16, max_num_seqs=8, max_num_batched_tokens=64)
    jumped = simulate.simulate(trace, told, cost=COST, step_log=True, compiled=False)
    assert jumped.jumped_steps > 50
    stepped = simulate.simulate(trace, told, cost=COST, step_log=True, jumps=False, compiled=False)
    assert same(jumped, stepped)
    later = dataclasses.replace(jumped, finished_s=np.nextafter(jumped.finished_s, np.inf))
    assert not same(later, stepped)


def test_compiled_is_plain() -> None:
    trace = plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 5, [0, 1, 3, 1] * 5)
    told = Settings(num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64)
    for order in ORDERS:
        one = simulate.simulate(trace, told, cost=COST, order=order, step_log=True, compiled=True)
        other = simulate.simulate(
            trace, told, cost=COST, order=order, step_log=True, compiled=False
        )
        assert same(one, other)
        assert one.summary()["preemptions"] > 0


@given_settings(max_examples=60)
@given(work(), st.integers(1, 30), st.booleans())
def test_one_at_a_time_hits_what_the_replay_hits(trace: Trace, blocks: int, cached: bool) -> None:
    told = Settings(
        num_gpu_blocks=blocks, max_num_seqs=4, max_num_batched_tokens=30, cache_generated=cached
    )
    found = simulate.simulate(trace, told, cost=COST, concurrency=1, compiled=False)
    replayed = kvsched.replay(
        trace, None, blocks, engine="vllm", cache_generated=cached, compiled=False
    )
    told_apart = found.reason != EMPTY_PROMPT
    assert (found.hit_tokens == replayed.request_hit_tokens).all()
    assert (found.rejected == replayed.request_refused)[told_apart].all()


@pytest.mark.parametrize("blocks", [150, 1500, 11275])
@pytest.mark.parametrize(
    "source", ["mooncake/conversation_trace.jsonl", "mooncake/synthetic_trace.jsonl", "weka"]
)
def test_real_traces_one_at_a_time(source: str, blocks: int, shared_traces: Path) -> None:
    trace = load_trace(shared_traces / source)
    told = Settings(num_gpu_blocks=blocks, max_num_seqs=256, max_num_batched_tokens=2048)
    found = simulate.simulate(trace, told, cost=COST, concurrency=1, compiled=True)
    replayed = kvsched.replay(trace, None, blocks, engine="vllm", compiled=True)
    assert found.hit_tokens.tolist() == replayed.request_hit_tokens.tolist()
    assert found.rejected.tolist() == replayed.request_refused.tolist()
    assert set(found.reason[found.rejected].tolist()) <= {NEVER_FITS}
    assert found.summary()["finished"] == len(trace) - replayed.refused
    # Two at a time do not hit the same: the comparison can fail.
    two = simulate.simulate(trace, told, cost=COST, concurrency=2, compiled=True)
    if replayed.refused < 1000:
        assert two.hit_tokens.tolist() != replayed.request_hit_tokens.tolist()


def test_a_closed_loop_keeps_its_number_running() -> None:
    trace = plain([(1, 5)] * 9)
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=64)
    found = simulate.simulate(trace, told, cost=COST, concurrency=3, step_log=True, compiled=False)
    assert found.step_log is not None
    assert set(found.step_log[:, LOG_RUNNING].tolist()) == {3.0}
    assert (found.arrival_s[3:] >= np.sort(found.finished_s)[:6]).all()


def test_the_horizon_leaves_requests_unfinished() -> None:
    trace = plain([(1, 50), (1, 50), (1, 5)], [0, 0, 1000])
    told = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)
    found = simulate.simulate(trace, told, cost=COST, horizon_s=30, compiled=False)
    assert found.status.tolist() == [RUNNING, WAITING, 0]
    assert found.unfinished.all()
    assert found.summary()["unfinished"] == 3
    assert found.end_s < 32


class Backwards(QueueOrder):
    """The last comes first."""

    name = "backwards"

    @staticmethod
    def queue_key(state: Any, own: Any, request: int, now: float) -> int:
        return -request


class ByWait(QueueOrder):
    """Keys that time changes: who has waited longest beyond its own patience goes first."""

    name = "by-wait"
    moves = True

    @staticmethod
    def queue_key(state: Any, own: Any, request: int, now: float) -> int:
        return -int(1000 * (now - state.progress.arrival_s[request]) * own[request])

    def prepare(self, trace: Trace) -> Any:
        return 1.0 + np.arange(len(trace)) % 3


class Nowhere(QueueOrder):
    """It preempts somebody who does not run."""

    name = "nowhere"

    @staticmethod
    def preempted_place(state: Any, own: Any, request: int, now: float) -> int:
        return 1000


@pytest.mark.parametrize("compiled", [True, False])
def test_an_order_of_ones_own(compiled: bool) -> None:
    trace = plain([(1, 5)] * 6)
    told = Settings(num_gpu_blocks=100, max_num_seqs=1, max_num_batched_tokens=64)
    found = simulate.simulate(trace, told, cost=COST, order=Backwards, compiled=compiled)
    assert np.argsort(found.finished_s).tolist() == [5, 4, 3, 2, 1, 0]
    moving = simulate.simulate(trace, told, cost=COST, order=ByWait(), compiled=compiled)
    assert np.argsort(moving.finished_s).tolist() == [0, 2, 5, 1, 4, 3]


class Counting(QueueOrder):
    """It counts the tokens that every request computes."""

    name = "counting"
    watches = True

    @staticmethod
    def on_ran(state: Any, own: Any, request: int, tokens: int) -> None:
        own[request] += tokens

    def prepare(self, trace: Trace) -> Any:
        self.seen = np.zeros(len(trace), np.int64)
        return self.seen


@pytest.mark.parametrize("jumps", [True, False])
def test_an_order_sees_what_is_computed(jumps: bool) -> None:
    trace = plain([(1, 60), (2, 80), (3, 40), (1, 90)])
    told = Settings(num_gpu_blocks=100, max_num_seqs=3, max_num_batched_tokens=64)
    order = Counting()
    found = simulate.simulate(trace, told, cost=COST, order=order, jumps=jumps, compiled=False)
    assert order.seen.tolist() == (trace.input_tokens + trace.output_tokens - 1).tolist()
    assert (found.jumped_steps > 0) is jumps


def test_keys_that_move_are_jumped_over_exactly() -> None:
    trace = plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 4, [0, 1, 3, 1] * 4)
    told = Settings(num_gpu_blocks=9, max_num_seqs=3, max_num_batched_tokens=64)
    more: dict[str, Any] = {"cost": COST, "order": ByWait, "step_log": True, "compiled": False}
    one = simulate.simulate(trace, told, **more)
    assert same(one, simulate.simulate(trace, told, jumps=False, **more))
    assert one.jumped_steps > 0


def test_an_order_that_names_nobody() -> None:
    trace = plain([(1, 50)] * 4)
    told = Settings(num_gpu_blocks=5, max_num_seqs=4, max_num_batched_tokens=64)
    with pytest.raises(UsageError, match="place in the running list that does not exist"):
        simulate.simulate(trace, told, cost=COST, order=Nowhere, compiled=False)


def test_a_stall_is_reported_with_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    # No setting stalls, as who cannot fit is rejected: so let one through.
    trace = plain([(9, 5)])
    told = Settings(num_gpu_blocks=8, max_num_seqs=2, max_num_batched_tokens=50)
    found = prepare(trace, told)
    through = dataclasses.replace(found, reason=np.zeros(1, np.int8))
    monkeypatch.setattr(simulate, "prepare", lambda *_: through)
    with pytest.raises(StalledError, match=r"1 requests wait .* request 0 .* 8 of 8 blocks"):
        simulate.simulate(trace, told, cost=COST, compiled=False)


def test_faults_are_said_in_one_line() -> None:
    trace = plain([(1, 5)])
    told = Settings(num_gpu_blocks=8)
    for more, said in (
        ({"speedup": 0.0}, "speedup must be above 0"),
        ({"concurrency": 0}, "concurrency must be"),
        ({"horizon_s": -1.0}, "horizon must be above 0"),
        ({"order": "lifo"}, r"unknown order lifo \(known: fcfs, priority, lpm, "),
    ):
        with pytest.raises(UsageError, match=said):
            simulate.simulate(trace, told, cost=COST, compiled=False, **more)
    for changed, said in (
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number of at least 1"),
        ({"watermark": 1.0}, "watermark must be"),
        ({"max_num_batched_tokens": 3}, r"\(3\) must be at least max_num_seqs \(256\)"),
        ({"num_gpu_blocks": True}, "num_gpu_blocks must be"),
    ):
        with pytest.raises(UsageError, match=said):
            dataclasses.replace(told, **changed)
    with pytest.raises(UsageError, match="seconds must be finite"):
        linear_cost(-1.0)
    with pytest.raises(UsageError, match="no hook seconds"):
        StepCost(np.zeros(4), hooks={"seconds": len})


def test_defaults_by_device() -> None:
    assert device_defaults(80 << 30, "h100") == {
        "max_num_seqs": 1024, "max_num_batched_tokens": 8192
    }  # fmt: skip
    assert device_defaults(80 << 30, "NVIDIA A100")["max_num_batched_tokens"] == 2048
    assert device_defaults(192 << 30, "b200")["max_num_batched_tokens"] == 16384
    assert device_defaults(24 << 30, "l4")["max_num_seqs"] == 256


def test_the_log_grows() -> None:
    trace = plain([(1, 3000)])
    told = Settings(num_gpu_blocks=500, max_num_seqs=1, max_num_batched_tokens=64)
    found = simulate.simulate(trace, told, cost=COST, step_log=True, compiled=True)
    assert found.step_log is not None
    assert len(found.step_log) == found.steps == 3000


def test_speedup_brings_arrivals_together() -> None:
    trace = plain([(1, 5)] * 3, [0, 10, 10])
    told = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=64)
    found = simulate.simulate(trace, told, cost=COST, speedup=2.0, compiled=False)
    assert found.arrival_s.tolist() == [0, 5, 10]


class Ties(Priority):
    """Whoever is first in the running list is preempted, so that equals take each other's turn."""

    name = "ties"

    @staticmethod
    def preempted_place(state: Any, own: Any, request: int, now: float) -> int:
        return 0


@pytest.mark.parametrize("jumps", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_livelock_is_reported_with_the_state(compiled: bool, jumps: bool) -> None:
    # Each prompt fills the memory, 9 tokens at a time, and finds none of what it has lost.
    trace = plain([(6, 1), (6, 1)])
    told = Settings(
        num_gpu_blocks=6,
        max_num_seqs=8,
        max_num_batched_tokens=69,
        long_prefill_token_threshold=9,
        scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
    )
    found = simulate.simulate(trace, told, cost=COST, order="priority", compiled=False)
    assert found.finished.all()
    with pytest.raises(
        LivelockError, match=r"none has gained a token for \d+ steps; 1 run: \d"
    ) as e:
        simulate.simulate(trace, told, cost=COST, order=Ties, compiled=compiled, jumps=jumps)
    assert "preempted" in str(e.value)
