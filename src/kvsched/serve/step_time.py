"""How long one engine step takes, from what it computes.

A step schedules requests: of each it computes ``tokens`` tokens, with ``context`` tokens before
them in the cache. All that its time depends on are the sums of a *batch*, float64 (BATCH,), which a
kernel keeps as it schedules; whole numbers, exact up to 2^53:

    batch[TOKENS]                Σ t
    batch[SEQUENCES]             number of requests
    batch[DECODE_TOKENS]         Σ t                    over decodes: requests with t ≤ D
    batch[DECODE_READ]           Σ c + t
    batch[DECODE_PAIRS]          Σ t·c + t·(t + 1)/2
    batch[DECODE_READ_WINDOW]    Σ min(c, W - 1) + t    the same in sliding windows
    batch[PREFILL_PAIRS]         Σ t·c + t·(t + 1)/2    over prefill: requests with t > D
    batch[PREFILL_PAIRS_WINDOW]  Σ of min(p + 1, W) for p in [c, c + t)
    batch[PREFILL_READ]          Σ c + t
    batch[PREFILL_READ_WINDOW]   Σ min(c, W - 1) + t

W is the model's window, 0 without. D, the decode threshold, is 1 but for MLA, whose kernels take
short chunks of prefill the way of decodes (vLLM 0.32: `reorder_batch_threshold`, 128 for FlashMLA,
512 for FlashAttention's MLA): on the compressed vectors, without expanding the context.

`StepTime` says how long, as three rows of coefficients (low, mid, high), and is made by
`roofline.roofline` from the catalogue or by `fitted.read_fit` from measured steps:

    step_time = roofline(model, accelerator, tensor_parallel_size=1)
    coefficients = step_time.coefficients("mid")            # float64 (COEFFICIENTS,)

Inside a kernel, plain functions that allocate nothing and take these arrays:

    clear(batch)
    add(batch, tokens, context, step_time.window, step_time.decode_threshold)
    seconds = step_seconds(coefficients, batch)

A step of one token a request, run again with one more token each, changes three sums:
``grow_decodes(batch, below)``, where ``below`` is the number of requests with context + 1 < W
(anything without a window). A loop of that and of `step_seconds` costs 8 to 30 ns a step, however
many requests run, and gives the very floats of stepping. ``decode_seconds(coefficients,
sequences, steps, read, read_window)`` gives the sum of ``steps`` such steps in O(1), exact but for
rounding (relative error below 1e-12), with ``read`` the sum of ``decode_read(context, steps, 0)``
over the requests and ``read_window`` that of ``decode_read(context, steps, window)``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Band = Literal["low", "mid", "high"]
BANDS: tuple[Band, ...] = ("low", "mid", "high")

TOKENS = 0
SEQUENCES = 1
DECODE_TOKENS = 2
DECODE_READ = 3
DECODE_PAIRS = 4
DECODE_READ_WINDOW = 5
PREFILL_PAIRS = 6
PREFILL_PAIRS_WINDOW = 7
PREFILL_READ = 8
PREFILL_READ_WINDOW = 9
BATCH = 10
"""Sums of a batch, each a float64."""

STEP_S = 0
"""Seconds of a step whatever it computes."""
TOKEN_S = 1
"""Seconds a token."""
SEQUENCE_S = 2
"""Seconds a request."""
LINEAR_TOKEN_S = 3
"""Dense matrices: seconds of arithmetic a token."""
LINEAR_READ_S = 4
"""Dense matrices: seconds to read them."""
EXPERT_TOKEN_S = 5
"""Routed experts: seconds of arithmetic a token."""
EXPERT_READ_S = 6
"""Routed experts: seconds to read all of them."""
EXPERT_MISSED = 7
"""Routed experts: share that one token is not sent to."""
HEAD_SEQUENCE_S = 8
"""Output head: seconds of arithmetic a request."""
HEAD_READ_S = 9
"""Output head: seconds to read it."""
DECODE_READ_S = 10
"""Attention of decodes: seconds to read a token."""
DECODE_READ_WINDOW_S = 11
"""Attention of decodes in sliding windows: seconds a token looked at, the longer of both."""
PREFILL_PAIR_S = 12
"""Attention of prefill: seconds of arithmetic a pair of tokens."""
PREFILL_CONTEXT_S = 13
"""Attention of prefill: seconds of arithmetic a token of context (MLA expands it)."""
PREFILL_READ_S = 14
"""Attention of prefill: seconds to read a token."""
PREFILL_PAIR_WINDOW_S = 15
"""`PREFILL_PAIR_S` in sliding windows."""
PREFILL_READ_WINDOW_S = 16
"""`PREFILL_READ_S` in sliding windows."""
RECURRENT_TOKEN_S = 17
"""Recurrent layers: seconds of arithmetic a token."""
RECURRENT_SEQUENCE_S = 18
"""Recurrent layers: seconds to read and write the states of a request."""
KNEE_TOKENS = 19
"""Fitted: tokens from which each more costs `KNEE_TOKEN_S`."""
KNEE_TOKEN_S = 20
"""Fitted: seconds a token beyond `KNEE_TOKENS`."""
DECODE_PAIR_S = 21
"""Attention of decodes: seconds of arithmetic a pair of tokens."""
COEFFICIENTS = 22
"""Coefficients of `step_seconds`, each a float64."""


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long steps take, with a band: three rows of coefficients for `step_seconds`."""

    kind: Literal["roofline", "fitted"]
    rows: tuple[tuple[float, ...], ...]
    """Low, mid and high: the coefficients in the order of this module's constants."""
    window: int = 0
    """Tokens of the model's sliding windows, 0 where it has none."""
    decode_threshold: int = 1
    """Most tokens of a request that attention computes the way of decodes."""
    assumptions: tuple[str, ...] = ()
    """What the times rest on: one sentence each."""

    def coefficients(self, band: Band = "mid") -> Floats:
        """One row of the band, float64 (COEFFICIENTS,), a copy."""
        return np.array(self.rows[BANDS.index(band)], np.float64)

    def seconds(
        self, tokens: NDArray[Any] | list[int], context: NDArray[Any] | list[int]
    ) -> dict[Band, float]:
        """Seconds of one step that computes ``tokens`` (n,) after ``context`` (n,), by band."""
        batch = batch_of(tokens, context, self.window, self.decode_threshold)
        return {band: step_seconds(self.coefficients(band), batch) for band in BANDS}


def batch_of(
    tokens: NDArray[Any] | list[int],
    context: NDArray[Any] | list[int],
    window: int = 0,
    decode_threshold: int = 1,
) -> Floats:
    """The sums of one step's requests, float64 (BATCH,). O(n)."""
    batch = np.zeros(BATCH, np.float64)
    for each, before in zip(tokens, context, strict=True):
        add(batch, int(each), int(before), window, decode_threshold)
    return batch


def clear(batch: Floats) -> None:
    """Make ``batch`` that of a step without requests."""
    for i in range(BATCH):
        batch[i] = 0.0


def add(batch: Floats, tokens: int, context: int, window: int, decode_threshold: int) -> None:
    """Add a request that computes ``tokens`` after ``context`` tokens. O(1)."""
    t, c, w = float(tokens), float(context), float(window)
    batch[TOKENS] += t
    batch[SEQUENCES] += 1.0
    pairs = t * c + t * (t + 1.0) / 2.0
    near = min(c, w - 1.0) + t
    if tokens <= decode_threshold:
        batch[DECODE_TOKENS] += t
        batch[DECODE_READ] += c + t
        batch[DECODE_PAIRS] += pairs
        if window > 0:
            batch[DECODE_READ_WINDOW] += near
        return
    batch[PREFILL_PAIRS] += pairs
    batch[PREFILL_READ] += c + t
    if window > 0:
        batch[PREFILL_PAIRS_WINDOW] += _pairs(c + t, w) - _pairs(c, w)
        batch[PREFILL_READ_WINDOW] += near


def grow_decodes(batch: Floats, below: int) -> None:
    """Turn a step of one token a request into the next one of the same requests.

    ``below`` of them look at fewer tokens than the window, and at one more from now on. O(1).
    """
    batch[DECODE_READ] += batch[DECODE_TOKENS]
    batch[DECODE_PAIRS] += batch[DECODE_TOKENS]
    batch[DECODE_READ_WINDOW] += float(below)


def decode_read(context: int, steps: int, window: int) -> float:
    """Tokens that one request looks at in ``steps`` decode steps from ``context`` on. O(1).

    The sum of min(context + j, window) for j = 1 … steps; window 0 sets no bound.
    """
    w = float(window)
    return _pairs(float(context + steps), w) - _pairs(float(context), w)


def _pairs(tokens: float, window: float) -> float:
    """Pairs of `attended_pairs` in floats; window 0 is none. Exact below 9e7 tokens."""
    near = tokens if window <= 0.0 else min(tokens, window)
    return near * (near + 1.0) / 2.0 + (tokens - near) * window


def step_seconds(coefficients: Floats, batch: Floats) -> float:
    """Seconds of one step with the sums ``batch`` (BATCH,) at ``coefficients`` (COEFFICIENTS,).

    Parts run one after another, and of each part arithmetic and reading overlap:

        overheads    STEP_S + TOKEN_S·tokens + SEQUENCE_S·sequences
        linear       max(LINEAR_TOKEN_S·tokens, LINEAR_READ_S)
        experts      max(EXPERT_TOKEN_S·tokens, EXPERT_READ_S·(1 - EXPERT_MISSED^tokens))
        head         max(HEAD_SEQUENCE_S·sequences, HEAD_READ_S)
        decodes      max(DECODE_PAIR_S·pairs, DECODE_READ_S·read), DECODE_READ_WINDOW_S·read
        prefill      max(PREFILL_PAIR_S·pairs + PREFILL_CONTEXT_S·context, PREFILL_READ_S·read),
                     and the same in windows
        recurrent    max(RECURRENT_TOKEN_S·tokens, RECURRENT_SEQUENCE_S·sequences)
        knee         KNEE_TOKEN_S·max(0, tokens - KNEE_TOKENS)

    A step without tokens takes no time. O(log tokens) with experts, else O(1).
    """
    tokens = float(batch[TOKENS])
    if tokens <= 0.0:
        return 0.0
    context = batch[PREFILL_READ] - (tokens - batch[DECODE_TOKENS])
    seconds = fixed_seconds(coefficients, tokens, float(batch[SEQUENCES]))
    seconds += max(
        coefficients[DECODE_PAIR_S] * batch[DECODE_PAIRS],
        coefficients[DECODE_READ_S] * batch[DECODE_READ],
    )
    seconds += coefficients[DECODE_READ_WINDOW_S] * batch[DECODE_READ_WINDOW]
    seconds += max(
        coefficients[PREFILL_PAIR_S] * batch[PREFILL_PAIRS]
        + coefficients[PREFILL_CONTEXT_S] * context,
        coefficients[PREFILL_READ_S] * batch[PREFILL_READ],
    )
    seconds += max(
        coefficients[PREFILL_PAIR_WINDOW_S] * batch[PREFILL_PAIRS_WINDOW],
        coefficients[PREFILL_READ_WINDOW_S] * batch[PREFILL_READ_WINDOW],
    )
    return float(seconds)


def fixed_seconds(coefficients: Floats, tokens: float, sequences: float) -> float:
    """The part of `step_seconds` that does not depend on contexts."""
    seconds = coefficients[STEP_S]
    seconds += coefficients[TOKEN_S] * tokens + coefficients[SEQUENCE_S] * sequences
    seconds += max(coefficients[LINEAR_TOKEN_S] * tokens, coefficients[LINEAR_READ_S])
    if coefficients[EXPERT_READ_S] > 0.0:
        touched = 1.0 - _power(float(coefficients[EXPERT_MISSED]), int(tokens))
        seconds += max(coefficients[EXPERT_TOKEN_S] * tokens, coefficients[EXPERT_READ_S] * touched)
    seconds += max(coefficients[HEAD_SEQUENCE_S] * sequences, coefficients[HEAD_READ_S])
    seconds += max(
        coefficients[RECURRENT_TOKEN_S] * tokens, coefficients[RECURRENT_SEQUENCE_S] * sequences
    )
    seconds += coefficients[KNEE_TOKEN_S] * max(0.0, tokens - coefficients[KNEE_TOKENS])
    return float(seconds)


def _power(base: float, exponent: int) -> float:
    """``base`` to a whole power by squaring: the same bits compiled and plain, as pow is not."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def decode_seconds(
    coefficients: Floats, sequences: int, steps: int, read: float, read_window: float
) -> float:
    """Seconds of ``steps`` steps in a row, each of one token of the same ``sequences`` requests.

    ``read`` and ``read_window`` are the tokens looked at in all of them (`decode_read`). With one
    token a request pairs equal what is read, and a step is a constant plus a multiple of it, so
    that the sum has this closed form; it equals stepping but for the rounding of a sum. O(1), with
    experts O(log sequences).
    """
    if sequences <= 0 or steps <= 0:
        return 0.0
    each = fixed_seconds(coefficients, float(sequences), float(sequences))
    return float(
        steps * each
        + max(coefficients[DECODE_PAIR_S], coefficients[DECODE_READ_S]) * read
        + coefficients[DECODE_READ_WINDOW_S] * read_window
    )
