"""The file of coefficients: written, read back, and refused where it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from kvsched.foundation.errors import InputError
from kvsched.serve import step_time as at
from kvsched.serve.fitted import (
    Coefficients,
    Fit,
    FittedFrom,
    Residuals,
    fit_schema,
    read_fit,
    write_fit,
)
from kvsched.serve.step_time import COEFFICIENTS, batch_of, step_seconds

ROOT = Path(__file__).parents[2]
FIT = Fit(
    kind="fitted",
    unit="seconds",
    coefficients=Coefficients(
        step_s=1.0,
        token_s=2.0,
        sequence_s=3.0,
        knee_tokens=4.0,
        knee_token_s=5.0,
        decode_read_s=6.0,
        decode_read_window_s=7.0,
        prefill_pair_s=8.0,
        prefill_pair_window_s=9.0,
        prefill_context_s=10.0,
    ),
    residuals=Residuals(
        ratio_p10=0.5, ratio_p50=1.0, ratio_p90=2.0, error_p50=0.1, error_p90=0.3, explained=0.9
    ),
    fitted_from=FittedFrom(steps=100, source="an engine", most_tokens=2048, most_sequences=64),
    window=4,
)


def test_the_file_comes_back(tmp_path):
    path = tmp_path / "steps.json"
    write_fit(FIT, path)
    assert read_fit(path) == FIT
    first = path.read_bytes()
    write_fit(read_fit(path), path)
    assert path.read_bytes() == first


def test_it_follows_the_published_schema(tmp_path):
    text = (ROOT / "docs" / "step-time.schema.json").read_bytes()
    assert text == msgspec.json.format(msgspec.json.encode(fit_schema()), indent=1) + b"\n"
    data = json.loads(msgspec.json.encode(FIT))
    jsonschema.validate(data, json.loads(text))
    data["coefficients"]["seconds"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, json.loads(text))


def test_every_coefficient_has_its_place():
    """Two requests, t·c after c: by hand, one decode after 9 and a chunk of 3 after 5, window 4."""
    step = FIT.step_time()
    batch = batch_of([1, 3], [9, 5], step.window)
    tokens, pairs, near = 4, 3 * 5 + 6, 3 * 4
    by_hand = 1 + 2 * tokens + 3 * 2 + 5 * (tokens - 4) + 6 * 10 + 7 * 4 + 8 * pairs
    by_hand += 9 * near + 10 * 5
    assert step_seconds(step.coefficients("mid"), batch) == by_hand
    batch = batch_of([1, 4], [9, 5], step.window)
    more = 2 + 5 + 8 * 9 + 9 * 4
    assert step_seconds(step.coefficients("mid"), batch) == by_hand + more


def test_the_band_is_that_of_the_residuals():
    step = FIT.step_time()
    batch = batch_of([1, 30], [9, 5], 4)
    low, mid, high = (step_seconds(step.coefficients(band), batch) for band in at.BANDS)
    assert (low, high) == (mid * 0.5, mid * 2.0)
    # A fit that is too low on the whole has a band that still holds the fit itself.
    high_only = msgspec.structs.replace(FIT.residuals, ratio_p10=1.2, ratio_p50=1.3)
    step = msgspec.structs.replace(FIT, residuals=high_only).step_time()
    assert step_seconds(step.coefficients("low"), batch) == mid
    assert all(len(row) == COEFFICIENTS for row in step.rows)


def test_it_says_where_it_comes_from():
    said = " ".join(FIT.step_time().assumptions)
    assert "100 measured steps (an engine)" in said
    assert "10.0%" in said
    assert "more than 2048 tokens are extrapolated" in said


BAD = {
    "not valid JSON": ("whole", "{"),
    "kind: ": ("kind", "roofline"),
    "unit: ": ("unit", "ms"),
    "object missing required field `residuals`": ("residuals", None),
    "coefficients: object contains unknown field `tokens`": ("coefficients.tokens", 1),
    "coefficients.token_s: expected `float`, got `str`": ("coefficients.token_s", "1"),
    "coefficients.token_s: must be at least 0, not -1": ("coefficients.token_s", -1),
    "coefficients.token_s: 2000 seconds for each cannot be": ("coefficients.token_s", 2000),
    "coefficients: all are 0": ("coefficients", {"knee_tokens": 5.0}),
    "coefficients.decode_read_window_s: needs a window, which is 0": ("window", 0),
    "window: must be at least 0, not -1": ("window", -1),
    "residuals: ratio_p10, ratio_p50 and ratio_p90": ("residuals.ratio_p10", 1.5),
    "residuals: error_p50 and error_p90": ("residuals.error_p50", 0.9),
    "fitted_from.steps: must be at least 0, not -3": ("fitted_from.steps", -3),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, fault):
    place, value = BAD[fault]
    data = json.loads(msgspec.json.encode(FIT))
    *parents, name = place.split(".")
    inner = data
    for parent in parents:
        inner = inner[parent]
    if value is None:
        del inner[name]
    else:
        inner[name] = value
    path = tmp_path / "steps.json"
    path.write_text(value if place == "whole" else json.dumps(data))
    with pytest.raises(InputError) as caught:
        read_fit(path)
    assert caught.value.file == str(path)
    assert caught.value.fault.startswith(fault), caught.value.fault
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_fit(tmp_path / "none.json")
