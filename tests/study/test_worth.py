"""What hits are worth: hand computations, sums over requests, bounds, warnings."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.catalog import find_accelerator, load_model
from kvsched.foundation.errors import UsageError
from kvsched.study.worth import Worth, worth

LLAMA = load_model("llama-3.1-8b")
H100 = find_accelerator("h100")
NAMES = ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "qwen3-next", "nemotron-3-nano"]
request_rows = st.lists(
    st.tuples(st.integers(1, 100_000), st.floats(0, 1), st.integers(0, 3000)),
    min_size=1,
    max_size=6,
)


def columns(rows):
    n = np.array([row[0] for row in rows], dtype=np.int64)
    h = np.array([int(row[0] * row[1]) for row in rows], dtype=np.int64)
    o = np.array([row[2] for row in rows], dtype=np.int64)
    return n, h, o


def one(n, h, o, **options) -> Worth:
    return worth(np.array([n]), np.array([h]), np.array([o]), **options)


@given(st.sampled_from(NAMES), request_rows)
def test_sums_are_the_models_own_flops(name, rows):
    model = load_model(name)
    n, h, o = columns(rows)
    found = worth(n, h, o, model=model)
    hits = np.minimum(h, n - 1)
    whole = sum(model.prefill_flops(0, int(each)) for each in n)
    saved = sum(model.prefill_flops(0, int(each)) for each in hits)
    assert found.prefill_flops == float(whole)
    assert found.prefill_flops_saved == float(saved)
    assert found.hit_tokens == int(hits.sum())


@given(st.sampled_from(NAMES), st.integers(1, 500), st.integers(0, 40))
def test_decode_counted_step_by_step(name, n, o):
    model = load_model(name)
    # The prompt's last token gives the first output token, at the price of the head alone.
    steps = sum(model.decode_flops(n + step) for step in range(1, o))
    expected = steps + (model.head_flops if o else 0)
    assert one(n, 0, o, model=model).decode_flops == float(expected)


def test_seconds_by_hand():
    found = one(1000, 400, 1, model=LLAMA, accelerator=H100)
    whole = LLAMA.prefill_flops(0, 1000)
    assert found.prefill_seconds == whole / 989.5e12
    assert found.prefill_seconds_saved == pytest.approx(LLAMA.prefill_flops(0, 400) / 989.5e12)
    assert found.decode_seconds == LLAMA.head_flops / 989.5e12
    # Two output tokens are one step: weights (without the embedding) for one of 64, and its cache.
    found = one(1000, 400, 2, model=LLAMA, accelerator=H100)
    weights = 2 * (32 * (4096 * 5120 * 2 + 3 * 4096 * 14336) + 128_256 * 4096)
    read = weights / 64 + 1001 * 131_072
    assert found.decode_seconds == pytest.approx(read / 3350e9)
    seconds = found.prefill_seconds + found.decode_seconds
    assert found.gain_bound == pytest.approx(seconds / (seconds - found.prefill_seconds_saved))
    assert found.decode_share == pytest.approx(found.decode_seconds / seconds)


def test_experts_read_by_a_batch():
    mixtral = load_model("mixtral-8x7b")
    expert = 3 * 4096 * 14336
    rest = mixtral.step_weight_bytes(1) - 2 * 32 * 2 * expert
    assert rest == pytest.approx(2 * (32 * (4096 * 5120 * 2 + 4096 * 8) + 32_000 * 4096))
    assert mixtral.step_weight_bytes(1000) == pytest.approx(rest + 2 * 32 * 8 * expert)


def test_hits_at_the_head_save_less_than_their_share():
    found = one(100_000, 50_000, 10, model=LLAMA)
    assert found.hit_share == 0.5
    assert 0.3 < found.prefill_share_saved < 0.5


def test_a_full_hit_still_computes_one_token():
    full, nearly = (one(1000, h, 5, model=LLAMA) for h in (1000, 999))
    assert full == nearly
    assert full.hit_tokens == 999


@given(st.sampled_from(NAMES), request_rows, st.sampled_from([None, "h100", "l4"]))
def test_bounds_hold(name, rows, gpu):
    n, h, o = columns(rows)
    model = load_model(name)
    device = None if gpu is None else find_accelerator(gpu)
    options = {"model": model, "accelerator": device}
    found = worth(n, h, o, ceiling_hit_tokens=n, **options)
    gain = found.gain_bound if device else found.flops_gain_bound
    assert 1 <= gain <= found.ceiling_gain_bound * (1 + 1e-12)
    assert 0 <= found.prefill_flops_saved <= found.prefill_flops
    if device:
        # Memory can only make decode dearer: FLOPs alone bound the gain from above.
        assert found.gain_bound <= found.flops_gain_bound * (1 + 1e-12)
        half = worth(n, h, o, efficiency=0.5, **options)
        assert half.prefill_seconds == pytest.approx(2 * found.prefill_seconds)
        assert half.gain_bound == pytest.approx(found.gain_bound)
        crowded = worth(n, h, o, batch=1024, **options)
        assert crowded.decode_seconds <= found.decode_seconds


@given(request_rows)
def test_more_hits_never_cost(rows):
    n, h, o = columns(rows)
    fewer = worth(n, h // 2, o, model=LLAMA, accelerator=H100)
    more = worth(n, h, o, model=LLAMA, accelerator=H100)
    assert more.prefill_flops_saved >= fewer.prefill_flops_saved
    assert more.gain_bound >= fewer.gain_bound


def test_unknown_is_none_and_never_zero():
    tokens_only = one(1000, 400, 10)
    assert tokens_only.prefill_flops is tokens_only.gain_bound is tokens_only.decode_share is None
    assert tokens_only.flops_gain_bound is tokens_only.prefill_seconds is None
    no_device = one(1000, 400, 10, model=LLAMA)
    assert no_device.prefill_seconds is no_device.prefill_seconds_saved is None
    assert no_device.decode_seconds is no_device.gain_bound is no_device.accelerator is None
    assert no_device.flops_gain_bound > 1
    assert no_device.ceiling_gain_bound is None
    empty = np.array([], dtype=np.int64)
    nothing = worth(empty, empty, empty, model=LLAMA, accelerator=H100)
    assert nothing.requests == 0
    assert nothing.gain_bound is nothing.decode_share is nothing.hit_share is None
    assert nothing.warnings == ()


def test_warning_where_decode_dominates():
    found = one(100, 90, 2000, model=LLAMA, accelerator=H100)
    assert found.warnings == (
        "Even a cache that hit every token would raise throughput by at most 0.6% "
        "at 64 requests a decode step: "
        "decode is 99% of the least time, and no hit shortens it.",
    )
    ceiling = np.array([99])
    found = one(100, 0, 2000, model=LLAMA, accelerator=H100, ceiling_hit_tokens=ceiling)
    assert found.warnings[0].startswith("Even an unlimited cache would raise throughput by at most")


def test_no_warning_because_hits_are_few():
    assert one(10_000, 0, 10, model=LLAMA, accelerator=H100).warnings == ()


def test_warning_where_little_is_left():
    options = {"model": LLAMA, "accelerator": H100}
    ceiling = np.array([9000])
    close = one(10_000, 8900, 10, ceiling_hit_tokens=ceiling, **options)
    assert close.warnings[0].startswith("A higher hit rate than this one can raise throughput by")
    assert "already have most" in close.warnings[0]
    assert one(10_000, 1000, 10, ceiling_hit_tokens=ceiling, **options).warnings == ()


def test_warning_without_an_accelerator_counts_flops():
    found = one(100, 10, 2000, model=LLAMA)
    assert "counting FLOPs alone" in found.warnings[0]


def test_sums_beyond_int64_stay_exact():
    rows = 40_000
    n = np.full(rows, 30_000_000, dtype=np.int64)
    nothing = np.zeros(rows, dtype=np.int64)
    found = worth(n, nothing, nothing, model=LLAMA)
    assert found.prefill_flops == float(rows * LLAMA.prefill_flops(0, 30_000_000))


def test_survives_json():
    found = one(1000, 400, 10, model=LLAMA, accelerator=H100, ceiling_hit_tokens=np.array([900]))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Worth) == found
    assert any("989.5 TFLOP/s" in said for said in found.assumptions)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([10], [11], [1]), "request 1 hits more tokens than its prompt has"),
        (([10, 5], [1], [1]), "columns of one length"),
        (([10], [-1], [1]), "must not be negative"),
        (([10.5], [1], [1]), "must be whole numbers"),
    ],
)
def test_columns_that_make_no_sense(arguments, said):
    with pytest.raises(UsageError, match=said):
        worth(*(np.array(each) for each in arguments), model=LLAMA)


def test_options_out_of_range():
    for efficiency in (0.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="efficiency must be above 0"):
            one(10, 1, 1, model=LLAMA, efficiency=efficiency)
    with pytest.raises(UsageError, match="batch must be at least 1"):
        one(10, 1, 1, model=LLAMA, batch=0)
