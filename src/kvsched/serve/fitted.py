"""Coefficients of step time in a file: what a fit to measured steps gives, and a user may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from kvsched.foundation.errors import InputError
from kvsched.foundation.files import write_whole
from kvsched.foundation.schema import described_schema
from kvsched.serve import step_time as at
from kvsched.serve.step_time import StepTime
from kvsched.trace.source import Source

WINDOWED = ("decode_read_window_s", "prefill_pair_window_s")


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds for each thing that a step computes or reads; what is left out costs nothing.

    A step takes the sum. t are the tokens that it computes of a request, c those before them.
    """

    step_s: float = 0.0
    """Seconds of a step whatever it computes."""
    token_s: float = 0.0
    """Seconds a token computed."""
    sequence_s: float = 0.0
    """Seconds a request in the step."""
    knee_tokens: float = 0.0
    """Tokens of a step from which each more costs `knee_token_s` beside `token_s`: where linear
    layers turn from reading weights to arithmetic."""
    knee_token_s: float = 0.0
    """Seconds a token beyond `knee_tokens`."""
    decode_read_s: float = 0.0
    """Seconds a token looked at by requests of which one token is computed: c + 1 of each."""
    decode_read_window_s: float = 0.0
    """The same where only the last tokens are looked at: min(c + 1, window) of each."""
    prefill_pair_s: float = 0.0
    """Seconds a pair of tokens, of requests with more tokens computed: t·c + t·(t + 1)/2."""
    prefill_pair_window_s: float = 0.0
    """The same where each token looks at the last ``window`` tokens."""
    prefill_context_s: float = 0.0
    """Seconds a token before those computed, of requests of which more tokens are computed."""


class FittedFrom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the coefficients were fitted from."""

    steps: int
    """Measured steps."""
    source: str = ""
    """Model, accelerator, engine and version, in words."""
    most_tokens: int | None = None
    """Most tokens of one measured step; beyond it times are extrapolated."""
    most_sequences: int | None = None
    """Most requests of one measured step."""


CLOSE = 0.15
"""Relative error of a step's time that is taken for noise."""


class Residuals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far measured steps lie from the fit; the band. From steps held out of the fit."""

    ratio_p10: float
    """Measured over fitted seconds, 10th percentile: low is the fit times this, at most 1."""
    ratio_p50: float
    """The median of the same."""
    ratio_p90: float
    """90th percentile: high is the fit times this, at least 1."""
    error_p50: float
    """|measured - fitted| over measured, median."""
    error_p90: float
    """90th percentile of the same."""
    explained: float | None = None
    """Share of the variance of the seconds' logarithms that the fit explains beyond a constant,
    below 0 where a constant does better; None where all steps take the same time."""

    @property
    def hardly_explains(self) -> bool:
        """Whether steps differ, and not as the fit says.

        Where nine in ten lie within `CLOSE` of the fit, nothing is left to explain.
        """
        return self.explained is not None and self.explained < 0.5 and self.error_p90 > CLOSE


class Fit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Step time fitted to measured steps, as it is kept in a file."""

    kind: Literal["fitted"]
    """Says that this is a file of step time."""
    unit: Literal["seconds"]
    """Of every coefficient, for each thing that it counts."""
    coefficients: Coefficients
    """The fit itself: mid."""
    residuals: Residuals
    """The band."""
    fitted_from: FittedFrom
    """Where it comes from."""
    window: int = 0
    """Tokens of the model's sliding windows, 0 without."""

    def step_time(self) -> StepTime:
        """The step time that these coefficients give, with the residuals as its band."""
        ratios = (min(1.0, self.residuals.ratio_p10), 1.0, max(1.0, self.residuals.ratio_p90))
        rows = tuple(_row(self.coefficients, ratio) for ratio in ratios)
        return StepTime(kind="fitted", rows=rows, window=self.window, assumptions=_said(self))


_PLACES = {
    "step_s": at.STEP_S,
    "token_s": at.TOKEN_S,
    "sequence_s": at.SEQUENCE_S,
    "knee_token_s": at.KNEE_TOKEN_S,
    "decode_read_s": at.DECODE_READ_S,
    "decode_read_window_s": at.DECODE_READ_WINDOW_S,
    "prefill_pair_s": at.PREFILL_PAIR_S,
    "prefill_pair_window_s": at.PREFILL_PAIR_WINDOW_S,
    "prefill_context_s": at.PREFILL_CONTEXT_S,
}


def _row(coefficients: Coefficients, ratio: float) -> tuple[float, ...]:
    row = [0.0] * at.COEFFICIENTS
    for name, place in _PLACES.items():
        row[place] = getattr(coefficients, name) * ratio
    row[at.KNEE_TOKENS] = coefficients.knee_tokens
    return tuple(row)


def _said(fit: Fit) -> tuple[str, ...]:
    origin, residuals = fit.fitted_from, fit.residuals
    of = f" ({origin.source})" if origin.source else ""
    said = [
        f"Step time is fitted to {origin.steps} measured steps{of}: half of them lie within "
        f"{residuals.error_p50:.1%} of the fit, nine in ten within {residuals.error_p90:.1%}; low "
        "and high are the 10th and 90th percentile."
    ]
    if origin.most_tokens is not None:
        said.append(f"Steps of more than {origin.most_tokens} tokens are extrapolated.")
    if residuals.hardly_explains:
        said.append(
            "The fit hardly explains the measured seconds: check that they belong to their rows."
        )
    return tuple(said)


def read_fit(path: str | Path) -> Fit:
    """Read a file of coefficients. Raises InputError, which names the file, field and fault."""
    with Source(Path(path)) as source:
        data = source.read_all()
    try:
        fit = msgspec.json.decode(data, type=Fit)
    except msgspec.ValidationError as error:
        raise InputError(str(path), _in_words(str(error))) from error
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"not valid JSON ({error})") from error
    fault = _fault(fit)
    if fault:
        raise InputError(str(path), fault)
    return fit


def write_fit(fit: Fit, path: str | Path) -> None:
    """Write a file of coefficients, whole or not at all. Raises UsageError."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(fit), indent=1) + b"\n")


def fit_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file."""
    return described_schema(Fit)


def _in_words(error: str) -> str:
    """Msgspec's message, with the place first as a field's name."""
    text, _, place = error.partition(" - at `$")
    text = text[:1].lower() + text[1:]
    return f"{place.rstrip('`').removeprefix('.')}: {text}" if place else text


def _fault(fit: Fit) -> str:
    """What is wrong with the numbers, or nothing."""
    if fit.window < 0:
        return f"window: must be at least 0, not {fit.window}"
    if fit.fitted_from.steps < 0:
        return f"fitted_from.steps: must be at least 0, not {fit.fitted_from.steps}"
    residuals = fit.residuals
    ratios = (residuals.ratio_p10, residuals.ratio_p50, residuals.ratio_p90)
    if not 0 < ratios[0] <= ratios[1] <= ratios[2]:
        return "residuals: ratio_p10, ratio_p50 and ratio_p90 must be above 0 and in this order"
    if not 0 <= residuals.error_p50 <= residuals.error_p90:
        return "residuals: error_p50 and error_p90 must be at least 0 and in this order"
    return _coefficient_fault(fit)


def _coefficient_fault(fit: Fit) -> str:
    values = msgspec.structs.asdict(fit.coefficients)
    for name, value in values.items():
        if value < 0:
            return f"coefficients.{name}: must be at least 0, not {value:g}"
        if name.endswith("_s") and value > 1e3:
            return f"coefficients.{name}: {value:g} seconds for each cannot be; the unit is seconds"
    if not any(value for name, value in values.items() if name.endswith("_s")):
        return "coefficients: all are 0, so that every step would take no time"
    named = [name for name in WINDOWED if values[name]]
    if named and not fit.window:
        return f"coefficients.{named[0]}: needs a window, which is 0"
    return ""
