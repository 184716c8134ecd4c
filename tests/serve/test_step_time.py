"""The sums of a batch, seconds from them, and jumps over decode steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.catalog import attended_pairs
from kvsched.foundation.jit import bind
from kvsched.serve import step_time as at
from kvsched.serve.step_time import (
    BATCH,
    COEFFICIENTS,
    add,
    batch_of,
    clear,
    decode_read,
    decode_seconds,
    grow_decodes,
    step_seconds,
)

REQUESTS = st.lists(
    st.tuples(st.integers(1, 3000), st.integers(0, 200_000)), min_size=1, max_size=12
)
WINDOWS = st.sampled_from([0, 1, 2, 128, 1024])


def random_coefficients(seed: int) -> np.ndarray:
    """Coefficients of every part, of such sizes that each side of each maximum comes up."""
    rng = np.random.default_rng(seed)
    found = 10.0 ** rng.uniform(-9, -4, COEFFICIENTS)
    found[at.EXPERT_MISSED] = rng.uniform(0, 1)
    found[at.KNEE_TOKENS] = rng.integers(0, 1000)
    return found


def window_pairs(tokens: int, context: int, window: int) -> int:
    """One by one: what each token of a chunk looks at."""
    return sum(min(p + 1, window or p + 1) for p in range(context, context + tokens))


@given(REQUESTS, WINDOWS)
def test_the_sums_are_those_of_the_definition(requests, window):
    tokens, context = zip(*requests, strict=True)
    batch = batch_of(list(tokens), list(context), window)
    decodes = [c for t, c in requests if t == 1]
    prefill = [(t, c) for t, c in requests if t > 1]
    assert batch[at.TOKENS] == sum(tokens)
    assert batch[at.SEQUENCES] == len(requests)
    assert batch[at.DECODE_TOKENS] == len(decodes)
    assert batch[at.DECODE_PAIRS] == batch[at.DECODE_READ]
    assert batch[at.DECODE_READ] == sum(c + 1 for c in decodes)
    pairs = sum(attended_pairs(c + t, None) - attended_pairs(c, None) for t, c in prefill)
    assert batch[at.PREFILL_PAIRS] == pairs == sum(t * c + t * (t + 1) // 2 for t, c in prefill)
    assert batch[at.PREFILL_READ] == sum(c + t for t, c in prefill)
    if window:
        assert batch[at.DECODE_READ_WINDOW] == sum(min(c + 1, window) for c in decodes)
        near = sum(attended_pairs(c + t, window) - attended_pairs(c, window) for t, c in prefill)
        assert batch[at.PREFILL_PAIRS_WINDOW] == near
        read = sum(min(c, window - 1) + t for t, c in prefill)
        assert batch[at.PREFILL_READ_WINDOW] == read
    else:
        assert not batch[[at.DECODE_READ_WINDOW, at.PREFILL_PAIRS_WINDOW]].any()
        assert not batch[at.PREFILL_READ_WINDOW]


@pytest.mark.parametrize(("tokens", "context", "window"), [(7, 3, 0), (7, 3, 5), (9, 90, 16)])
def test_pairs_are_those_counted_one_by_one(tokens, context, window):
    batch = batch_of([tokens], [context], window)
    assert batch[at.PREFILL_PAIRS] == window_pairs(tokens, context, 0)
    if window:
        assert batch[at.PREFILL_PAIRS_WINDOW] == window_pairs(tokens, context, window)
        looked_at = {
            q
            for p in range(context, context + tokens)
            for q in range(max(0, p - window + 1), p + 1)
        }
        assert batch[at.PREFILL_READ_WINDOW] == len(looked_at)


def test_short_chunks_go_with_decodes_up_to_the_threshold():
    batch = batch_of([1, 16, 17], [100, 1000, 500], 0, decode_threshold=16)
    assert batch[at.DECODE_TOKENS] == 1 + 16
    assert batch[at.DECODE_READ] == 101 + 1016
    assert batch[at.DECODE_PAIRS] == 101 + window_pairs(16, 1000, 0)
    assert batch[at.PREFILL_READ] == 517
    assert batch[at.PREFILL_PAIRS] == window_pairs(17, 500, 0)
    coefficients = np.zeros(COEFFICIENTS)
    coefficients[at.PREFILL_CONTEXT_S] = 1.0
    assert step_seconds(coefficients, batch) == 500.0


def drive(coefficients, tokens, context, window, batch, out):
    """What a kernel does: the sums of a step, its seconds, and a jump from it."""
    clear(batch)
    for i in range(len(tokens)):
        add(batch, tokens[i], context[i], window, 1)
    out[0] = step_seconds(coefficients, batch)
    read = 0.0
    near = 0.0
    for i in range(len(tokens)):
        read += decode_read(context[i], 100, 0)
        if window > 0:
            near += decode_read(context[i], 100, window)
    out[1] = decode_seconds(coefficients, len(tokens), 100, read, near)
    grow_decodes(batch, 1)
    out[2] = step_seconds(coefficients, batch)


def test_plain_and_compiled_give_the_same_bits():
    compiled, plain = bind(drive, compiled=True), bind(drive, compiled=False)
    rng = np.random.default_rng(5)
    for seed in range(300):
        n = int(rng.integers(1, 20))
        tokens = np.where(rng.random(n) < 0.5, 1, rng.integers(1, 9000, n))
        context = rng.integers(0, 1_000_000, n)
        coefficients = random_coefficients(seed)
        window = int(rng.choice([0, 128, 4096]))
        results = []
        for run in (compiled, plain):
            out = np.zeros(3)
            run(coefficients, tokens, context, window, np.ones(BATCH), out)
            results.append(out.tobytes())
        assert results[0] == results[1]


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.integers(1, 400), WINDOWS)
def test_a_jump_takes_as_long_as_its_steps(contexts, steps, window):
    coefficients = random_coefficients(len(contexts))
    stepped = 0.0
    for step in range(steps):
        ones = [1] * len(contexts)
        stepped += step_seconds(coefficients, batch_of(ones, [c + step for c in contexts], window))
    read = sum(decode_read(c, steps, 0) for c in contexts)
    near = sum(decode_read(c, steps, window) for c in contexts) if window else 0.0
    jumped = decode_seconds(coefficients, len(contexts), steps, read, near)
    assert jumped == pytest.approx(stepped, rel=1e-12)
    # The check fails where contexts are taken not to grow.
    if steps > 2 and window != 1:
        still = sum(c + 1 for c in contexts) * steps
        wrong = decode_seconds(coefficients, len(contexts), steps, still, near)
        assert wrong != pytest.approx(stepped, rel=1e-12)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=10), st.integers(1, 200), WINDOWS)
def test_growing_a_batch_of_decodes_equals_making_it_anew(contexts, steps, window):
    batch = batch_of([1] * len(contexts), contexts, window)
    for step in range(1, steps):
        below = sum(c + step < window for c in contexts)
        grow_decodes(batch, below)
        anew = batch_of([1] * len(contexts), [c + step for c in contexts], window)
        assert batch.tobytes() == anew.tobytes()


def test_an_empty_step_takes_no_time():
    assert step_seconds(random_coefficients(1), np.zeros(BATCH)) == 0.0
    assert decode_seconds(random_coefficients(1), 0, 10, 0.0, 0.0) == 0.0
    assert decode_seconds(random_coefficients(1), 3, 0, 0.0, 0.0) == 0.0


@pytest.mark.parametrize("part", range(COEFFICIENTS))
def test_every_coefficient_counts(part):
    """Each has its place: a batch exists whose time it changes."""
    coefficients = np.zeros(COEFFICIENTS)
    coefficients[part] = 0.5
    if part in (at.EXPERT_MISSED, at.EXPERT_TOKEN_S):
        coefficients[at.EXPERT_READ_S] = 0.1
    if part == at.KNEE_TOKENS:
        coefficients[at.KNEE_TOKEN_S] = 1.0
    batch = batch_of([1, 7], [50, 9], 4)
    changed = coefficients.copy()
    changed[part] = 0.25
    assert step_seconds(coefficients, batch) != step_seconds(changed, batch)


def test_parts_overlap_within_themselves_alone():
    """A step bound by arithmetic in one part and by reading in another takes their sum."""
    coefficients = np.zeros(COEFFICIENTS)
    coefficients[at.LINEAR_TOKEN_S], coefficients[at.LINEAR_READ_S] = 1.0, 5.0
    coefficients[at.HEAD_SEQUENCE_S], coefficients[at.HEAD_READ_S] = 3.0, 2.0
    assert step_seconds(coefficients, batch_of([4], [0])) == max(4, 5) + max(3, 2)
    assert step_seconds(coefficients, batch_of([9], [0])) == max(9, 5) + max(3, 2)
