"""Coefficients and predictions are recovered where the truth is known, and a wrong run shows."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from synthetic import (
    OVERHEAD_S,
    SETTINGS,
    TRUTH,
    fit_of,
    made,
    measured,
    run_of,
    shared_prefixes,
)

from kvsched.evidence.calibrate.aligned import align
from kvsched.evidence.calibrate.observed import Observed
from kvsched.evidence.calibrate.rows import rows_of
from kvsched.evidence.calibrate.run import calibrate
from kvsched.foundation.errors import UsageError
from kvsched.serve.fitted import Fit
from kvsched.serve.step_time import step_seconds

RUNS = [made(1), made(4), made(16)]
FOUND = calibrate(RUNS)


def off(fit: Fit, runs: list[Observed]) -> np.ndarray:
    """Seconds of the runs' own steps by the fit over the true ones, less 1."""
    batches = np.concatenate([rows_of(run, align(run)).batches for run in runs])
    true, found = (each.step_time().coefficients("mid") for each in (fit_of(TRUTH), fit))
    return np.array(
        [step_seconds(found, batch) / step_seconds(true, batch) - 1 for batch in batches]
    )


def test_coefficients_are_recovered() -> None:
    wrong = np.abs(off(FOUND.result.fit, RUNS))
    assert np.quantile(wrong, 0.9) < 0.03
    assert FOUND.result.fit.residuals.error_p50 < 0.05
    for run in FOUND.result.runs:
        assert run.request_overhead_s == pytest.approx(OVERHEAD_S, abs=2e-3)
    # The check can fail: half the time a token is another engine.
    other = msgspec.structs.replace(TRUTH, token_s=TRUTH.token_s / 2)
    assert np.quantile(np.abs(off(fit_of(other), RUNS)), 0.9) > 0.03


def test_what_was_kept_back_is_predicted() -> None:
    result = FOUND.result
    assert result.goal_met
    assert result.sentences[0].startswith("The goal of 15% at p50 is met")
    for run in result.runs:
        assert run.fit_requests == run.judged_requests == 60
        assert run.ttft is not None
        assert run.tpot is not None
        for error in (run.ttft, run.tpot):
            assert abs(error.error_p50) < 0.05
            assert error.measured.count == error.predicted.count == 60
            assert error.band_p50[0] <= error.predicted.p50 <= error.band_p50[1]
        assert run.cached.different == 0
        assert run.cached.compared == 120
        assert run.cached.measured_tokens > 0
    assert len(FOUND.pairs) == 180


def test_another_engine_misses_the_goal_and_says_so() -> None:
    # The part kept back was served by an engine half as fast.
    trace = shared_prefixes(120, seed=1)
    slow = msgspec.structs.replace(
        TRUTH, **{name: 2 * getattr(TRUTH, name) for name in ("step_s", "token_s", "decode_read_s")}
    )
    fast, late = (measured(trace, concurrency=1, coefficients=each) for each in (TRUTH, slow))
    moved = (fast[59].finished_s or 0.0) - (late[59].finished_s or 0.0)
    mixed = fast[:60] + [later(each, moved) for each in late[60:]]
    result = calibrate([run_of(trace, mixed, concurrency=1)]).result
    assert not result.goal_met
    assert result.sentences[0].startswith("The goal of 15% at p50 is missed")
    assert result.runs[0].ttft is not None
    assert result.runs[0].ttft.error_p50 < -0.3
    assert result.runs[0].drift == pytest.approx(2, rel=0.05)
    assert any("% longer than steps alike" in each for each in result.sentences)
    for run in FOUND.result.runs[:2]:
        assert run.drift == pytest.approx(1, abs=0.05)
    assert not any("steps alike" in each for each in FOUND.result.sentences)


def later(outcome, seconds):  # type: ignore[no-untyped-def]
    moved = {
        name: getattr(outcome, name) + seconds
        for name in ("due_s", "sent_s", "first_token_s", "finished_s")
    }
    return msgspec.structs.replace(
        outcome, **moved, token_s=tuple(each + seconds for each in outcome.token_s)
    )


def test_times_that_belong_to_other_steps_explain_nothing() -> None:
    run = RUNS[0]
    random = np.random.default_rng(5)
    gaps = np.diff(run.token_s, prepend=run.sent_s[0])
    moments = run.sent_s[0] + np.cumsum(random.permutation(np.abs(gaps)))
    # Sent and received in the same order, with the gaps of other tokens between.
    sent = np.concatenate([[run.sent_s[0]], moments[run.starts[1:-1] - 1] + 1e-4])
    result = calibrate([dataclasses.replace(run, token_s=moments, sent_s=sent)]).result
    assert any("hardly explains" in sentence for sentence in result.sentences)
    assert not any("hardly explains" in sentence for sentence in FOUND.result.sentences)


def test_another_cache_is_noticed_request_by_request() -> None:
    # The engine had room for a tenth of the blocks that are simulated.
    trace = shared_prefixes(120, seed=1, groups=12)
    small = dataclasses.replace(SETTINGS, num_gpu_blocks=60)
    outcomes = measured(trace, small, concurrency=1)
    right = calibrate([run_of(trace, outcomes, small, concurrency=1)]).result.runs[0].cached
    assert (right.compared, right.different) == (120, 0)
    result = calibrate([run_of(trace, outcomes, concurrency=1)]).result
    wrong = result.runs[0].cached
    assert wrong.different > 10
    assert len(wrong.first) == 10
    first = wrong.first[0]
    assert first.measured == outcomes[first.index].cached_tokens != first.predicted
    assert any("nothing to chance" in sentence for sentence in result.sentences)


def said(runs: list[Observed]) -> str:
    return " ".join(calibrate(runs).result.sentences)


def test_settings_that_are_not_the_engines_are_named() -> None:
    trace = shared_prefixes(120, seed=16)
    outcomes = measured(trace, concurrency=16, seed=16)

    def told(**wrong: object) -> str:
        settings = dataclasses.replace(SETTINGS, **wrong)  # type: ignore[arg-type]
        return said([run_of(trace, outcomes, settings, concurrency=16)])

    # Not laid on chance, though requests run together.
    assert "prefix caching was on, and off is what was simulated" in told(
        enable_prefix_caching=False
    )
    assert "16 requests got a token in one step, and max_num_seqs is said to be 4" in told(
        max_num_seqs=4
    )
    short = told(max_model_len=400)
    assert "46 of 60 requests kept back were served, and are too long" in short
    assert "too far apart for chance" in short
    right = told()
    for each in ("prefix caching was", "got a token in one step", "too long", "for chance"):
        assert each not in right
    off = dataclasses.replace(SETTINGS, enable_prefix_caching=False)
    cold = measured(trace, off, concurrency=16, seed=16)
    assert "caching was off, and on" in said([run_of(trace, cold, concurrency=16)])


def test_a_goal_is_not_met_by_leaving_requests_out() -> None:
    trace = shared_prefixes(120, seed=1)
    told = dataclasses.replace(SETTINGS, max_model_len=400)
    run = run_of(trace, measured(trace, concurrency=1, seed=1), told, concurrency=1)
    result = calibrate([run]).result
    (one,) = result.runs
    assert one.ttft is not None
    assert one.ttft.measured.count == one.judged_requests - one.unpredicted == 15
    assert abs(one.ttft.error_p50) < 0.15
    assert not result.goal_met
    assert "not all requests kept back have a prediction" in result.sentences[0]


def test_runs_of_different_engines_or_machines_are_said_to_be() -> None:
    one = dataclasses.replace(RUNS[1], engine_name="vllm 1, a")
    other = dataclasses.replace(RUNS[2], engine_name="vllm 1, b", environment={"cpu": "x"})
    both = said([one, other])
    assert "different engines or models (vllm 1, a; vllm 1, b)" in both
    assert "different machines" in both
    assert "different" not in " ".join(FOUND.result.sentences)


def test_what_is_kept_back_has_no_say_in_the_fit() -> None:
    run = RUNS[1]
    split = len(run) // 2
    kept = int(run.starts[split])

    def fit(
        factor: float, since: int = kept, cut: float = float(run.sent_s[split])
    ) -> tuple[object, ...]:
        """With an engine so many times as slow for tokens from ``since`` on."""
        moments, sent = run.token_s.copy(), run.sent_s.copy()
        for values, low in ((moments, since), (sent, split)):
            part = values[low:]
            values[low:] = np.where(part > cut, cut + factor * (part - cut), part)
        found = calibrate([dataclasses.replace(run, token_s=moments, sent_s=sent)]).result
        (one,) = found.runs
        return found.fit.coefficients, one.request_overhead_s, one.steps_left_out

    found = fit(1.0)
    assert fit(3.0) == fit(0.05) == found
    # The check can fail: tokens before the part kept back have a say.
    assert fit(3.0, since=kept // 2, cut=run.token_s[kept // 2]) != found


def test_another_workload_is_refused() -> None:
    trace = shared_prefixes(60, seed=1)
    outcomes = measured(trace, concurrency=1)
    with pytest.raises(UsageError, match="another workload"):
        run_of(shared_prefixes(60, seed=2), outcomes)
    with pytest.raises(UsageError, match="60 outcomes of 59 requests"):
        run_of(shared_prefixes(59, seed=1), outcomes)
    told = [msgspec.structs.replace(outcomes[0], token_counts=()), *outcomes[1:]]
    assert run_of(trace, told).outputs[0] == trace.output_tokens[0]
    pieces = [msgspec.structs.replace(told[0], token_s=told[0].token_s[:-1]), *outcomes[1:]]
    with pytest.raises(UsageError, match="how many tokens each piece has"):
        run_of(trace, pieces)
    counts = (2, 0, *outcomes[0].token_counts[2:])
    with pytest.raises(UsageError, match="how many tokens each piece has"):
        run_of(trace, [msgspec.structs.replace(outcomes[0], token_counts=counts), *outcomes[1:]])
    failed = [msgspec.structs.replace(each, error="reset") for each in outcomes[:7]]
    with pytest.raises(UsageError, match="7 of 60 requests failed"):
        run_of(trace, failed + outcomes[7:])
    left = run_of(trace, failed[:2] + outcomes[2:])
    assert len(left) == 58
    assert left.notes == ("2 requests failed and are left out",)


def test_a_share_that_leaves_nothing_is_refused() -> None:
    for share in (0.0, 1.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="--fit-share"):
            calibrate(RUNS, fit_share=share)
    with pytest.raises(UsageError, match="leaves nothing to judge"):
        calibrate(RUNS, fit_share=0.9999)
    with pytest.raises(UsageError, match="no run"):
        calibrate([])
    few = shared_prefixes(6, seed=1)
    with pytest.raises(UsageError, match="are needed"):
        calibrate([run_of(few, measured(few, concurrency=1), concurrency=1)], fit_share=0.2)


def test_steps_are_found_and_tokens_held_up_are_left_out() -> None:
    run = RUNS[1]
    found = align(run)
    assert found.irregular == 0
    tokens = sum(len(step.decodes) + len(step.joined) for step in found.steps)
    assert tokens == len(run.token_s)
    # All tokens of a while come at its end.
    low, high = np.quantile(run.token_s, [0.5, 0.52])
    held = np.where((run.token_s > low) & (run.token_s < high), high, run.token_s)
    late = align(dataclasses.replace(run, token_s=held))
    assert late.irregular > 0
    placed = sum(len(step.decodes) + len(step.joined) for step in late.steps)
    assert placed == pytest.approx(tokens, rel=0.01)
    assert len(late.steps) == pytest.approx(len(found.steps), abs=3)


def test_pieces_of_several_tokens() -> None:
    trace = shared_prefixes(120, seed=4)
    outcomes = measured(trace, concurrency=4, seed=4)
    merged = [
        msgspec.structs.replace(
            each,
            token_s=(each.token_s[0], *each.token_s[2:]),
            token_counts=(1, 2, *each.token_counts[3:]),
        )
        if len(each.token_s) > 2 and each.index % 3 == 0
        else each
        for each in outcomes
    ]
    run = run_of(trace, merged)
    assert np.isnan(run.token_s).any()
    result = calibrate([run]).result
    assert result.goal_met
    assert result.fit.residuals.error_p50 < 0.06


def test_an_engine_that_sends_every_third_token_is_fitted_a_token() -> None:
    trace = shared_prefixes(120, seed=1)
    plain = measured(trace, concurrency=1, seed=1)

    def thirds(each):  # type: ignore[no-untyped-def]
        ends = [*range(2, len(each.token_s), 3)]
        if not ends or ends[-1] != len(each.token_s) - 1:
            ends.append(len(each.token_s) - 1)
        return msgspec.structs.replace(
            each,
            token_s=tuple(each.token_s[end] for end in ends),
            token_counts=tuple(np.diff([-1, *ends]).tolist()),
        )

    run = run_of(trace, [thirds(each) for each in plain], concurrency=1)
    result = calibrate([run]).result
    single = calibrate([run_of(trace, plain, concurrency=1)]).result
    step, true = (each.fit.coefficients.step_s for each in (result, single))
    assert step == pytest.approx(true, rel=0.15)
    assert result.runs[0].tpot is not None
    assert abs(result.runs[0].tpot.error_p50) < 0.15


def test_without_cached_tokens_the_simulation_says_who_hit() -> None:
    trace = shared_prefixes(120, seed=1)
    outcomes = measured(trace, concurrency=1)
    silent = [msgspec.structs.replace(each, cached_tokens=None) for each in outcomes]
    result = calibrate([run_of(trace, silent, concurrency=1)]).result
    assert result.goal_met
    assert result.runs[0].cached.compared == 0
    assert "does not say" in result.sentences[1]


def test_open_loop_and_a_small_budget() -> None:
    trace = shared_prefixes(160, seed=3)
    trace = dataclasses.replace(trace, time_s=np.cumsum(np.full(160, 0.22)))
    tight = dataclasses.replace(SETTINGS, max_num_batched_tokens=256, max_num_seqs=8)
    outcomes = measured(trace, tight, concurrency=None, seed=3)
    result = calibrate([run_of(trace, outcomes, tight, concurrency=None, name="open")]).result
    run = result.runs[0]
    assert run.arrivals == "as they were sent"
    assert run.ttft is not None
    assert run.ttft.request_error_p50 < 0.1
    assert result.goal_met
