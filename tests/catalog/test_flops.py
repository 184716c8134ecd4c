"""FLOPs: hand computations, additivity, and the same numbers counted token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.catalog import attended_pairs, load_model, model_names
from kvsched.foundation.errors import UsageError

MODELS = [load_model(name) for name in model_names()]
tokens = st.integers(0, 300_000)


def test_llama_by_hand():
    model = load_model("llama-3.1-8b")
    attention = 4096 * 4096 * 2 + 4096 * 1024 * 2
    feed_forward = 3 * 4096 * 14336
    weights = 32 * (attention + feed_forward)
    assert model.token_flops == 2 * weights
    assert model.head_flops == 2 * 128_256 * 4096
    # Scores and weighted sum: 2 · 2 · 32 heads · 128, in each of 32 layers; 1 + 2 + … + 1000 pairs.
    pair = 4 * 32 * 128 * 32
    assert model.prefill_flops(0, 1000) == 1000 * 2 * weights + 500_500 * pair
    assert model.decode_flops(1000) == 2 * weights + model.head_flops + 1000 * pair


def test_windows_cap_attention():
    model = load_model("gpt-oss-20b")
    pair = 4 * 64 * 64 * 12
    grown = model.prefill_flops(5000, 5001) - model.prefill_flops(4999, 5000)
    assert grown == pair
    assert model.decode_flops(5001) - model.decode_flops(5000) == pair


def test_mla_decodes_on_compressed_vectors():
    model = load_model("deepseek-v3")
    assert model.pair_flops() == {None: 61 * 2 * 128 * (128 + 64 + 128)}
    assert model.pair_flops(decode=True) == {None: 61 * 2 * 128 * (512 + 64 + 512)}


def test_experts_not_chosen_cost_nothing():
    model = load_model("mixtral-8x7b")
    layer = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 4096 * 8 + 2 * 3 * 4096 * 14336
    assert model.token_flops == 2 * 32 * layer


@given(st.sampled_from(MODELS), st.lists(tokens, min_size=3, max_size=3).map(sorted))
def test_prefill_is_additive_and_monotone(model, cuts):
    a, b, c = cuts
    whole = model.prefill_flops(a, c)
    assert model.prefill_flops(a, b) + model.prefill_flops(b, c) == whole
    assert whole >= model.prefill_flops(b, c) >= 0
    # Later tokens look at more: the same number of them costs no less.
    assert model.prefill_flops(c - a, 2 * (c - a)) >= model.prefill_flops(0, c - a)


@given(st.sampled_from(MODELS), st.integers(1, 200_000))
def test_decode_grows_with_the_context(model, context):
    assert model.decode_flops(context + 1) >= model.decode_flops(context)


@given(st.sampled_from(MODELS), st.integers(0, 100_000), st.sampled_from([1, 2, 4, 8]))
def test_kv_bytes_are_bounded_by_both_parts(model, count, ranks):
    exact = model.kv_bytes(count, "auto", ranks)
    grown = count * model.kv_bytes_per_token("auto", ranks)
    assert grown <= exact <= grown + model.kv_constant_bytes("auto", ranks)


@given(st.integers(0, 200), st.one_of(st.none(), st.integers(1, 50)))
def test_pairs_counted_one_by_one(count, window):
    expected = sum(p + 1 if window is None else min(p + 1, window) for p in range(count))
    assert attended_pairs(count, window) == expected
    assert attended_pairs(np.array([count, 0]), window).tolist() == [expected, 0]


def test_ranges_that_make_no_sense():
    model = MODELS[0]
    for start, stop in ((-1, 3), (5, 4)):
        with pytest.raises(UsageError, match="makes no sense"):
            model.prefill_flops(start, stop)
    with pytest.raises(UsageError, match="makes no sense"):
        model.decode_flops(0)
