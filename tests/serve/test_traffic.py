"""When requests arrive: rates, sessions that wait, and what does not go together."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import COST, in_sessions, plain, same, settings, work

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind
from kvsched.kernel.table import NONE
from kvsched.serve import engine
from kvsched.serve.arrivals import expect
from kvsched.serve.arrivals import turn as right_turn
from kvsched.serve.cost import linear_cost
from kvsched.serve.loop import run_steps
from kvsched.serve.orders.fcfs import FCFS
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.state import ENDED, Rules, State
from kvsched.serve.traffic import Traffic, plan, rate_times
from kvsched.trace.model import Trace

SECOND = linear_cost(1.0)
TOLD = Settings(num_gpu_blocks=100, max_num_seqs=8, max_num_batched_tokens=64)


def test_equal_gaps() -> None:
    assert rate_times(4, 2.0, math.inf, 0).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert rate_times(3, math.inf, 1.0, 0).tolist() == [0, 0, 0]
    assert rate_times(0, 2.0, 1.0, 0).tolist() == []


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_gamma_distribution(burstiness: float) -> None:
    times = rate_times(40_001, 8.0, burstiness, 3)
    gaps = np.diff(times)
    assert (times[0], times[-1]) == (0.0, 5000.0)
    assert (gaps >= 0).all()
    # A gamma distribution of mean 1/8 and shape b: its deviation is the mean over sqrt(b), its
    # skewness 2 / sqrt(b).
    assert gaps.std() * 8 == pytest.approx(burstiness**-0.5, rel=0.03)
    skewness = ((gaps - gaps.mean()) ** 3).mean() / gaps.std() ** 3
    assert skewness == pytest.approx(2 * burstiness**-0.5, rel=0.15)


def test_a_rate_holds_at_any_burstiness() -> None:
    for seed in range(20):
        times = rate_times(10, 2.0, 0.01, seed)
        assert (times[0], times[-1]) == (0.0, 4.5)
    with pytest.raises(UsageError, match="too small: all would arrive at once"):
        rate_times(240, 2.0, 1e-300, 0)


def test_a_seed_is_a_traffic() -> None:
    one = rate_times(100, 3.0, 1.0, 7)
    assert one.tobytes() == rate_times(100, 3.0, 1.0, 7).tobytes()
    assert one.tobytes() != rate_times(100, 3.0, 1.0, 8).tobytes()
    # Another rate is the same traffic on another clock.
    assert np.allclose(one, 2 * rate_times(100, 6.0, 1.0, 7), rtol=1e-15)
    found = simulate(plain([(1, 3)] * 9), TOLD, cost=COST, rate=0.5, seed=7, compiled=False)
    assert found.arrival_s.tolist() == rate_times(9, 0.5, 1.0, 7).tolist()


def turns(*, delay: list[float] | None = None) -> Trace:
    """Two sessions, A and B, and a request of none; one block and 3 tokens to generate each."""
    #                  A  B  A  -  A   B
    trace = plain([(1, 3)] * 6, [0, 1, 4, 1, 10, 4])
    found = in_sessions(trace, [0, 1, 0, -1, 0, 1])
    if delay is not None:
        found = dataclasses.replace(found, delay_s=np.array(delay))
    return found


def test_sessions_by_hand() -> None:
    # With a second a step and room for all, an answer takes 3 s from the first step after arrival.
    found = simulate(turns(), TOLD, cost=SECOND, sessions=True, compiled=False)
    # Think times are the trace's gaps: 5 and 11 s in A, 19 s in B.
    assert found.arrival_s.tolist() == [0, 1, 3 + 5, 6, 11 + 11, 4 + 19]
    assert found.finished_s.tolist() == [3, 4, 11, 9, 25, 26]
    quick = simulate(turns(), TOLD, cost=SECOND, sessions=True, speedup=2.0, compiled=False)
    # B comes at 0.5 s, in the middle of the first step, and is in those from 1 s on.
    assert quick.arrival_s.tolist() == [0, 0.5, 3 + 2.5, 3, 9 + 5.5, 4 + 9.5]
    assert quick.finished_s.tolist()[:4] == [3, 4, 9, 6]


def test_the_think_time_is_told_by_the_trace_or_a_constant() -> None:
    nan = math.nan
    told = turns(delay=[9, 9, 2, 9, nan, 0])
    found = simulate(told, TOLD, cost=SECOND, sessions=True, compiled=False)
    assert found.arrival_s.tolist() == [0, 1, 3 + 2, 6, 8 + 11, 4 + 0]
    constant = simulate(told, TOLD, cost=SECOND, sessions=True, think_s=7, compiled=False)
    assert constant.arrival_s.tolist() == [0, 1, 3 + 7, 6, 13 + 7, 4 + 7]


def test_sessions_at_a_rate_and_so_many_at_a_time() -> None:
    found = simulate(
        turns(), TOLD, cost=SECOND, sessions=True, think_s=1, rate=0.1, burstiness=math.inf,
        compiled=False,
    )  # fmt: skip
    assert found.arrival_s.tolist() == [0, 10, 4, 20, 8, 14]
    # One session at a time: A's three turns, B's two, then the request of none.
    one = simulate(
        turns(), TOLD, cost=SECOND, sessions=True, think_s=1, concurrency=1, compiled=False
    )
    assert one.arrival_s.tolist() == [0, 11, 4, 18, 8, 15]
    two = simulate(
        turns(), TOLD, cost=SECOND, sessions=True, think_s=1, concurrency=2, compiled=False
    )
    # B ends at 7, and the request of none begins.
    assert two.arrival_s.tolist() == [0, 0, 4, 7, 8, 4]


def test_a_turn_that_was_rejected_ended_when_it_arrived() -> None:
    trace = in_sessions(plain([(1, 3), (90, 3), (1, 3), (90, 3), (1, 3)]), [0, 0, 0, 1, 1])
    told = dataclasses.replace(TOLD, num_gpu_blocks=50)
    found = simulate(trace, told, cost=SECOND, sessions=True, think_s=4, compiled=False)
    assert found.rejected.tolist() == [False, True, False, True, False]
    assert found.arrival_s.tolist() == [0, 7, 11, 0, 4]
    closed = simulate(
        trace, told, cost=SECOND, sessions=True, think_s=4, concurrency=1, compiled=False
    )
    assert closed.arrival_s.tolist() == [0, 7, 11, 14, 18]


def test_a_rejection_in_the_last_step_brings_the_next_turn() -> None:
    trace = in_sessions(plain([(1, 3), (90, 3), (1, 3), (90, 3)], [0, 1, 9, 0]), [-1, 0, 0, 0])
    told = dataclasses.replace(TOLD, num_gpu_blocks=50)
    more: dict[str, Any] = {"cost": linear_cost(10.0), "sessions": True, "compiled": False}
    for routing in (None, "round-robin"):
        found = simulate(trace, told, think_s=2, horizon_s=5, routing=routing, **more)
        # The second turn comes at 3 s, within the only step, and so does not bring the third.
        assert found.arrival_s.tolist()[:3] == [0, 1, 3]
        assert np.isnan(found.arrival_s[3])


def test_who_never_had_its_turn_has_no_arrival() -> None:
    found = simulate(
        turns(), TOLD, cost=SECOND, sessions=True, think_s=1, horizon_s=4, compiled=False
    )
    # A's second turn is known to come at the horizon, B's is not, for its first ends at 4 s.
    assert found.arrival_s.tolist()[2] == 4
    assert np.isnan(found.arrival_s[4])
    assert found.summary()["unfinished"] == 4
    assert found.summary()["finished"] == 2


@st.composite
def traffic(draw: st.DrawFn) -> dict[str, Any]:
    """Draw what goes together."""
    found: dict[str, Any] = {"sessions": draw(st.booleans())}
    kind = draw(st.sampled_from(["times", "rate", "loop"]))
    if kind == "rate":
        found |= {
            "rate": draw(st.sampled_from([0.05, 1.0])),
            "burstiness": draw(st.sampled_from([0.5, 1.0, math.inf])),
            "seed": draw(st.integers(0, 3)),
        }
    elif kind == "loop":
        found |= {"concurrency": draw(st.integers(1, 4))}
    else:
        found |= {"speedup": draw(st.sampled_from([1.0, 7.0]))}
    if found["sessions"]:
        found |= {"think_s": draw(st.sampled_from([None, 0.0, 2.5]))}
    return found


def follows(found: Simulation, told: dict[str, Any], think_s: np.ndarray[Any, Any]) -> bool:
    """Whether every later turn arrives when the turn before has ended, and it has thought."""
    codes = found.trace.session.codes if found.trace.session is not None else None
    assert codes is not None
    last: dict[int, int] = {}
    for request, code in enumerate(codes.tolist()):
        before = last.get(code, NONE)
        if code >= 0:
            last[code] = request
        if before == NONE or not told["sessions"]:
            continue
        ended = found.finished_s[before]
        if found.rejected[before]:
            ended = found.arrival_s[before]
            if found.horizon_s is not None and ended >= found.horizon_s:
                ended = math.nan
        expected = ended + think_s[request]
        if np.isnan(expected) != np.isnan(found.arrival_s[request]):
            return False
        if not np.isnan(expected) and expected != found.arrival_s[request]:
            return False
    return True


@given_settings(max_examples=100)
@given(work(), settings(), traffic(), st.none() | st.just(40.0), st.data())
def test_no_turn_comes_before_the_answer(
    trace: Trace, told: Settings, how: dict[str, Any], horizon: float | None, data: st.DataObject
) -> None:
    count = len(trace)
    codes = data.draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count))
    talks = in_sessions(trace, codes)
    more: dict[str, Any] = {
        "cost": COST, "horizon_s": horizon, "step_log": True, "compiled": False, **how
    }  # fmt: skip
    found = simulate(talks, told, **more)
    total = found.summary()
    assert total["finished"] + total["rejected"] + total["unfinished"] == count
    if horizon is None:
        assert total["unfinished"] == 0
    done = found.finished
    assert (found.generated_tokens[done] == found.trace.output_tokens[done]).all()
    assert (found.queued_s[done] >= 0).all()
    assert (found.ttft_s[done] > found.queued_s[done]).all()
    think_s = plan(talks, Traffic(**how)).arrivals.think_s
    assert follows(found, how, think_s)
    assert same(found, simulate(talks, told, jumps=False, **more))


def hasty(state: State, rules: Rules, request: int, now: float) -> None:
    """The next turn does not think."""
    state.counts[ENDED] += 1
    follower = int(state.arrivals.follows[request])
    if follower != NONE:
        expect(state, follower, now)


def deaf(state: State, rules: Rules, request: int, now: float) -> None:
    """The next turn does not wait for the answer: it comes as soon as it can be told."""
    state.counts[ENDED] += 1
    follower = int(state.arrivals.follows[request])
    if follower != NONE:
        expect(state, follower, float(state.progress.arrival_s[request]))


@pytest.mark.parametrize("broken", [hasty, deaf])
def test_the_check_of_turns_can_fail(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = turns()
    how: dict[str, Any] = {"sessions": True}
    think_s = plan(trace, Traffic(sessions=True)).arrivals.think_s

    def found(turn: Any) -> Simulation:
        names = {**FCFS.hooks(), **SECOND.bound(), "turn": turn}
        loop = bind(run_steps, names, False)
        monkeypatch.setattr(engine, "bound_loop", lambda *_: loop)
        return simulate(trace, TOLD, cost=SECOND, compiled=False, **how)

    assert follows(found(right_turn), how, think_s)
    assert not follows(found(broken), how, think_s)


def test_compiled_is_plain() -> None:
    trace = in_sessions(
        plain([(1, 60), (2, 80), (3, 40), (1, 90)] * 5, [0, 1, 3, 1] * 5), [0, 1, 2, 3] * 5
    )
    told = Settings(num_gpu_blocks=12, max_num_seqs=8, max_num_batched_tokens=64)
    more: dict[str, Any] = {"cost": COST, "sessions": True, "step_log": True, "concurrency": 3}
    one = simulate(trace, told, compiled=True, **more)
    assert same(one, simulate(trace, told, compiled=False, **more))
    assert one.summary()["preemptions"] > 0


def late_by(found: Simulation, concurrency: int) -> list[float]:
    """How long after an end each of a closed loop's later requests came."""
    ends = np.sort(found.finished_s)
    began = np.sort(found.arrival_s)[concurrency:]
    return (began - ends[: len(began)]).tolist()


@pytest.mark.parametrize("replicas", [1, 2])
def test_clients_of_a_closed_loop_think(replicas: int) -> None:
    trace = plain([(1, 3), (2, 5), (1, 9)] * 8)
    more: dict[str, Any] = {"concurrency": 3, "data_parallel_size": replicas, "compiled": False}
    found = simulate(trace, TOLD, cost=COST, think_s=0.25, **more)
    assert late_by(found, 3) == pytest.approx([0.25] * 21)
    assert late_by(simulate(trace, TOLD, cost=COST, **more), 3) == pytest.approx([0.0] * 21)
    assert same(found, simulate(trace, TOLD, cost=COST, think_s=0.25, jumps=False, **more))
    more["compiled"] = True
    assert same(found, simulate(trace, TOLD, cost=COST, think_s=0.25, **more))
    # Between sessions nobody thinks, whatever turns do.
    talks = in_sessions(trace, list(range(24)))
    told = simulate(talks, TOLD, cost=COST, think_s=0.25, sessions=True, **more)
    assert late_by(told, 3) == pytest.approx([0.0] * 21)


def test_clients_that_send_at_once_come_one_after_another() -> None:
    # Both end in one step; an engine that is idle takes the first alone.
    trace = plain([(1, 3)] * 6)
    more: dict[str, Any] = {"concurrency": 2, "think_s": 0.25, "compiled": False}
    told = simulate(trace, TOLD, cost=SECOND, apart_s=0.125, **more)
    assert told.arrival_s.tolist() == [0, 0.125, 3.25, 4.25, 7.25, 8.25]
    together = simulate(trace, TOLD, cost=SECOND, **more)
    assert together.arrival_s.tolist() == [0, 0, 3.25, 3.25, 6.5, 6.5]
    with pytest.raises(UsageError, match="one engine alone"):
        simulate(trace, TOLD, cost=SECOND, apart_s=0.125, data_parallel_size=2, **more)


def test_what_does_not_go_together_is_said() -> None:
    for told, said in (
        ({"rate": 0.0}, "the rate must be above 0"),
        ({"rate": math.nan}, "the rate must be above 0"),
        ({"rate": 1.0, "burstiness": 0.0}, "burstiness must be above 0"),
        ({"rate": 1.0, "concurrency": 1}, "a rate or a concurrency, not both"),
        ({"burstiness": 2.0}, "burstiness needs a rate"),
        ({"think_s": 1.0}, "a think time needs sessions, or a closed loop"),
        ({"apart_s": 0.1}, "apart in a closed loop alone"),
        ({"apart_s": -0.1, "concurrency": 2}, "at least 0 s apart"),
        ({"think_s": -1.0, "sessions": True}, "think time must be at least 0"),
        ({"speedup": 2.0, "concurrency": 4}, "speedup divides the trace's times"),
        ({"speedup": 2.0, "rate": 4.0, "sessions": True, "think_s": 1.0}, "speedup divides"),
        ({"seed": -1}, "the seed must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
    ):
        with pytest.raises(UsageError, match=said):
            Traffic(**told)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="sessions need the trace's session column"):
        plan(plain([(1, 3)], session=None), Traffic(sessions=True))
