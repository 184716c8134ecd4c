"""Coefficients fitted to measured steps: known ones come back, shuffled seconds give none."""

from __future__ import annotations

import gzip
import json

import msgspec
import numpy as np
import pytest

from kvsched.catalog import find_accelerator, load_model
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve import step_time as at
from kvsched.serve.fitted import Coefficients
from kvsched.serve.measured import LEAST_STEPS, Steps, fit_steps, read_steps
from kvsched.serve.roofline import roofline
from kvsched.serve.step_time import batch_of, step_seconds

TRUE = Coefficients(
    step_s=3e-3,
    token_s=2e-6,
    sequence_s=15e-6,
    knee_tokens=300.0,
    knee_token_s=18e-6,
    decode_read_s=4e-8,
    prefill_pair_s=1e-9,
)


def batches(count: int, seed: int, window: int = 0) -> np.ndarray:
    """Steps as a scheduler makes them: decodes alone, and with one or two chunks of prefill."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        decodes = int(rng.integers(0, 128))
        chunks = int(rng.integers(0 if decodes else 1, 3))
        tokens = [1] * decodes + rng.integers(16, 4000, chunks).tolist()
        longest = int(10 ** rng.uniform(2, 4.5))
        context = rng.integers(0, longest, len(tokens)).tolist()
        found.append(batch_of(tokens, context, window))
    return np.array(found)


def seconds_of(coefficients: Coefficients, sums: np.ndarray, window: int = 0) -> np.ndarray:
    """Seconds by the function that the kernel runs."""
    plain = fit_steps(Steps(sums, np.ones(len(sums)), window))
    row = msgspec.structs.replace(plain, coefficients=coefficients).step_time().coefficients("mid")
    return np.array([step_seconds(row, each) for each in sums])


def noisy(values: np.ndarray, share: float, seed: int) -> np.ndarray:
    return values * np.random.default_rng(seed).lognormal(0.0, share, len(values))


def marginal(found: Coefficients) -> dict[str, float]:
    """What such steps can tell apart: a decode is a token and a request at once."""
    return {
        "step": found.step_s,
        "decode": found.token_s + found.sequence_s,
        "token beyond the knee": found.token_s + found.knee_token_s,
        "knee": found.knee_tokens,
        "read": found.decode_read_s,
        "pair": found.prefill_pair_s,
    }


def assert_recovered(found: Coefficients, within: float) -> None:
    for name, true in marginal(TRUE).items():
        assert marginal(found)[name] == pytest.approx(true, rel=within), name


def test_known_coefficients_come_back_from_noisy_steps():
    sums = batches(3000, 1)
    fit = fit_steps(Steps(sums, noisy(seconds_of(TRUE, sums), 0.02, 2)), "made up")
    assert_recovered(fit.coefficients, 0.08)
    assert fit.coefficients.prefill_context_s < 1e-8
    residuals = fit.residuals
    # The quantiles of a log-normal of 2%: exp(±1.2816·0.02), and |error| by its normal.
    assert residuals.ratio_p10 == pytest.approx(np.exp(-1.2816 * 0.02), rel=0.005)
    assert residuals.ratio_p90 == pytest.approx(np.exp(1.2816 * 0.02), rel=0.005)
    assert residuals.error_p50 == pytest.approx(0.6745 * 0.02, rel=0.1)
    assert residuals.explained > 0.95
    assert fit.fitted_from.steps == 3000
    assert fit.fitted_from.most_tokens == sums[:, at.TOKENS].max()


def test_noise_does_not_draw_the_fit_to_one_side():
    sums = batches(1000, 15)
    true = seconds_of(TRUE, sums)
    fit = fit_steps(Steps(sums, noisy(true, 0.3, 16)))
    row = fit.step_time().coefficients("mid")
    fitted = np.array([step_seconds(row, each) for each in sums])
    # Relative to the measured time it would be 12% below: exp(-1.5·0.3²).
    assert np.median(fitted / true) == pytest.approx(1, abs=0.03)
    assert fit.residuals.ratio_p50 == pytest.approx(1, abs=0.03)


def test_shuffled_seconds_give_nothing():
    sums = batches(3000, 1)
    shuffled = np.random.default_rng(3).permutation(noisy(seconds_of(TRUE, sums), 0.02, 2))
    fit = fit_steps(Steps(sums, shuffled))
    with pytest.raises(AssertionError):
        assert_recovered(fit.coefficients, 0.08)
    assert fit.residuals.explained < 0.1
    assert fit.residuals.error_p90 > 0.5
    assert any("hardly explains" in each for each in fit.step_time().assumptions)


def test_without_noise_the_fit_is_exact():
    sums = batches(400, 4)
    plain = msgspec.structs.replace(TRUE, knee_tokens=0.0, knee_token_s=0.0)
    seconds = seconds_of(plain, sums)
    fit = fit_steps(Steps(sums, seconds))
    for name, true in msgspec.structs.asdict(plain).items():
        assert getattr(fit.coefficients, name) == pytest.approx(true, rel=1e-5, abs=1e-14), name
    assert fit.residuals.error_p90 < 1e-6
    step = fit.step_time()
    found = [step_seconds(step.coefficients("mid"), each) for each in sums]
    np.testing.assert_allclose(found, seconds, rtol=1e-6)


def test_sliding_windows_are_fitted():
    sums = batches(3000, 5, window=128)
    true = msgspec.structs.replace(
        TRUE, decode_read_window_s=2e-6, prefill_pair_window_s=2e-8, knee_token_s=0.0
    )
    fit = fit_steps(Steps(sums, noisy(seconds_of(true, sums, 128), 0.01, 6), 128))
    assert fit.window == fit.step_time().window == 128
    found = fit.coefficients
    assert found.decode_read_window_s == pytest.approx(2e-6, rel=0.2)
    assert fit.residuals.error_p90 < 0.02


def test_a_fit_follows_a_roofline():
    """Steps that a roofline makes, other steps of it predicted: no worse than 5% in nine of ten."""
    model, device = load_model("llama-3.1-8b"), find_accelerator("h100")
    row = roofline(model, device).coefficients("mid")
    seen, unseen = batches(2000, 7), batches(500, 8)
    fit = fit_steps(Steps(seen, np.array([step_seconds(row, each) for each in seen])))
    fitted = fit.step_time().coefficients("mid")
    true = np.array([step_seconds(row, each) for each in unseen])
    found = np.array([step_seconds(fitted, each) for each in unseen])
    assert np.quantile(np.abs(found / true - 1), 0.9) < 0.05
    assert fit.coefficients.knee_tokens > 0


def test_the_band_holds_its_share_of_new_steps():
    sums, later = batches(3000, 9), batches(3000, 10)
    fit = fit_steps(Steps(sums, noisy(seconds_of(TRUE, sums), 0.2, 11))).step_time()
    taken = noisy(seconds_of(TRUE, later), 0.2, 12)
    low, mid, high = (
        np.array([step_seconds(fit.coefficients(band), each) for each in later])
        for band in at.BANDS
    )
    assert ((low < mid) & (mid < high)).all()
    assert np.mean((low <= taken) & (taken <= high)) == pytest.approx(0.8, abs=0.03)


def test_steps_that_all_take_the_same_time():
    fit = fit_steps(Steps(batches(100, 13), np.full(100, 0.02)))
    assert fit.coefficients.step_s == pytest.approx(0.02)
    assert fit.residuals.explained is None


def test_steps_that_hardly_differ_leave_nothing_to_explain():
    sums = batches(200, 17)
    fit = fit_steps(Steps(sums, noisy(np.full(200, 0.004), 0.03, 18)))
    assert fit.residuals.explained < 0.1
    assert not fit.residuals.hardly_explains
    wild = fit_steps(Steps(sums, noisy(np.full(200, 0.004), 0.5, 18)))
    assert wild.residuals.hardly_explains


def test_what_cannot_be_fitted_is_refused():
    sums = batches(LEAST_STEPS, 14)
    with pytest.raises(UsageError, match="39 measured steps are too few to fit: 40 at least"):
        fit_steps(Steps(sums[1:], np.ones(LEAST_STEPS - 1)))
    for bad in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(UsageError, match="a finite time above 0 s"):
            fit_steps(Steps(sums, np.full(LEAST_STEPS, bad)))
    with pytest.raises(UsageError, match="finite, and at least 0"):
        fit_steps(Steps(-sums, np.ones(LEAST_STEPS)))
    with pytest.raises(UsageError, match=r"of shape \(R, 10\)"):
        fit_steps(Steps(sums[:, :4], np.ones(LEAST_STEPS)))


def row(**fields) -> str:
    return json.dumps({"seconds": 0.01, "tokens": [1, 512], "context": [900, 0], **fields})


@pytest.mark.parametrize("packed", [False, True])
def test_steps_are_read(tmp_path, packed):
    text = "\n".join([row(), "", row(seconds=2, tokens=[3], context=[5])]).encode()
    path = tmp_path / "steps.jsonl"
    path.write_bytes(gzip.compress(text) if packed else text)
    steps = read_steps(path, 128)
    assert steps.seconds.tolist() == [0.01, 2.0]
    assert steps.batches[0].tolist() == batch_of([1, 512], [900, 0], 128).tolist()
    assert steps.batches[1].tolist() == batch_of([3], [5], 128).tolist()
    assert steps.window == 128
    assert steps.notes == ()


BAD = {
    '"seconds" is missing': '{"tokens": [1], "context": [1]}',
    '"seconds" must be above 0': row(seconds=0),
    '"seconds" must be a number, not a string': row(seconds="1"),
    '"tokens" is missing': '{"seconds": 1, "context": [1]}',
    '"tokens" must be a list of integers, one a request': row(tokens=[]),
    '"context" must be a list of integers': row(context=[True, 1]),
    '"tokens" must hold integers from 1 on: 0': row(tokens=[1, 0]),
    '"context" must hold integers from 0 on: -1': row(context=[1, -1]),
    '"tokens" has 2 requests, "context" 1': row(context=[1]),
    "must be a JSON object, not a list": "[1]",
    "not valid JSON": "{",
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_row_is_named(tmp_path, fault):
    path = tmp_path / "steps.jsonl"
    path.write_text(f"{row()}\n{BAD[fault]}\n{row()}\n")
    with pytest.raises(InputError) as caught:
        read_steps(path)
    assert (caught.value.row, fault in caught.value.fault) == (2, True), caught.value.fault
    steps = read_steps(path, skip_bad_rows=True)
    assert len(steps.seconds) == 2
    assert steps.notes[0].startswith("1 bad row was left out; the first: steps.jsonl, row 2")


def test_a_file_without_steps_is_refused(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("\n")
    with pytest.raises(InputError, match="no step in it"):
        read_steps(path)
    with pytest.raises(InputError, match="no such file"):
        read_steps(tmp_path / "none.jsonl")
