"""Step time from the catalogue, against sums by hand from published figures."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from kvsched.catalog import (
    accelerators,
    find_accelerator,
    load_model,
    model_from_config,
    model_names,
)
from kvsched.foundation.errors import UsageError
from kvsched.serve import step_time as at
from kvsched.serve.roofline import ASSUMED, HIGH, LOW, MID, Assumptions, roofline

H100 = find_accelerator("h100")
LLAMA = load_model("llama-3.1-8b")
PEAK = 989.5e12  # FLOP/s and bytes/s of NVIDIA's sheet of the H100 SXM
BANDWIDTH = 3.35e12
# Llama 3.1 8B, config.json: 32 layers of width 4096, 32 heads and 8 KV heads of 128, 14336 inner
# channels, a vocabulary of 128256. Matrices of one layer: query and output, key and value, three
# of the feed-forward part.
LAYER = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
LINEAR = 32 * LAYER
HEAD = 128256 * 4096
KV_BYTES = 2 * 32 * 8 * 128 * 2


def low(model, tokens, context, device=H100, **options):
    return roofline(model, device, **options).seconds(tokens, context)["low"]


def test_a_single_decode_is_the_reading_of_the_weights():
    """15.0 GB at 3.35 TB/s: 4.48 ms; with the embedding, which no step reads whole, 4.79 ms."""
    seconds = low(LLAMA, [1], [0])
    kv = 2 * KV_BYTES / BANDWIDTH  # one token written, and read
    assert seconds == pytest.approx(2 * (LINEAR + HEAD) / BANDWIDTH + kv, rel=1e-9)
    assert seconds == pytest.approx(4.48e-3, rel=2e-3)
    assert seconds < LLAMA.weight_bytes() / BANDWIDTH == pytest.approx(4.794e-3, rel=1e-3)


def test_prefill_is_two_flops_a_parameter_and_token():
    tokens = 8192
    pairs = tokens * (tokens + 1) / 2
    flops = 2 * LINEAR * tokens + pairs * 4 * 32 * 128 * 32
    head = 2 * HEAD / BANDWIDTH
    writes = tokens * KV_BYTES / BANDWIDTH
    assert low(LLAMA, [tokens], [0]) == pytest.approx(flops / PEAK + head + writes, rel=1e-9)
    # The rule of thumb 2·P·T / F leaves out attention, 14% here.
    assert low(LLAMA, [tokens], [0]) == pytest.approx(2 * 8.03e9 * tokens / PEAK, rel=0.1)


def test_the_cache_outweighs_the_weights_at_long_context():
    """64 requests of 8,192 tokens: 68.7 GB of cache beside 15.0 GB of weights."""
    seconds = low(LLAMA, [1] * 64, [8191] * 64)
    cache = 64 * 8192 * KV_BYTES / BANDWIDTH
    assert cache == pytest.approx(20.5e-3, rel=2e-3)
    weights = 2 * (LINEAR + HEAD) / BANDWIDTH
    assert seconds == pytest.approx(cache + weights + 64 * KV_BYTES / BANDWIDTH, rel=1e-9)
    assert cache > 4 * weights


def test_the_batch_turns_to_arithmetic_where_the_sheet_says():
    """A matrix of 2 bytes a parameter turns at F / B tokens: 295 on the H100."""
    row = roofline(LLAMA, H100).coefficients("low")
    turn = row[at.LINEAR_READ_S] / row[at.LINEAR_TOKEN_S]
    assert turn == pytest.approx(PEAK / BANDWIDTH) == pytest.approx(295.4, rel=1e-3)


def test_prefill_over_a_cached_prefix_costs_its_pairs():
    tokens, context = 512, 30_000
    alone, behind = (low(LLAMA, [tokens], [c]) for c in (0, context))
    pairs = tokens * context * 4 * 32 * 128 * 32 / PEAK
    assert behind - alone == pytest.approx(pairs, rel=1e-9)


def test_mla_decodes_on_compressed_vectors_and_expands_context_in_prefill():
    """DeepSeek-V3: 61 layers, 128 heads, rank 512, 64 rotated, 128 of keys and of values."""
    model, device = load_model("deepseek-v3"), find_accelerator("h200")
    row = roofline(model, device, tensor_parallel_size=8).coefficients("low")
    kv = 61 * (512 + 64) * 2
    assert row[at.PREFILL_READ_S] == pytest.approx(kv / 4.8e12)
    decode = 61 * 2 * 128 * (512 + 64 + 512) / 8
    assert row[at.DECODE_READ_S] == pytest.approx(kv / 4.8e12)
    assert row[at.DECODE_PAIR_S] == pytest.approx(decode / PEAK)
    assert row[at.DECODE_PAIR_S] < row[at.DECODE_READ_S]
    expand = 61 * 2 * 512 * 128 * (128 + 128) / 8
    assert row[at.PREFILL_CONTEXT_S] == pytest.approx(expand / PEAK)
    # Many ranks read the same vectors: on one, arithmetic is the longer.
    single = roofline(model, device).coefficients("low")
    assert single[at.DECODE_PAIR_S] == pytest.approx(decode * 8 / PEAK)
    assert single[at.DECODE_PAIR_S] > single[at.DECODE_READ_S]


def test_mla_takes_short_chunks_the_way_of_decodes():
    """Up to 2·512·128·256 / (2·128·(1088 - 320)) = 170 tokens for DeepSeek-V3, on any rank."""
    model, device = load_model("deepseek-v3"), find_accelerator("h200")
    for ranks in (1, 8):
        step = roofline(model, device, tensor_parallel_size=ranks)
        assert step.decode_threshold == 170
        # The two ways cost the same at the threshold: no jump of more than a token's share.
        short, long = (step.seconds([t], [60_000])["low"] for t in (170, 171))
        assert short < long < short * 1.02
    assert roofline(LLAMA, H100).decode_threshold == 1


def test_sliding_windows_stop_growing():
    model = load_model("gpt-oss-20b")
    step = roofline(model, H100)
    assert step.window == 128
    row = step.coefficients("low")
    near, far = (step.seconds([1], [c])["low"] for c in (1000, 2000))
    assert far - near == pytest.approx(1000 * row[at.DECODE_READ_S])
    near, far = (step.seconds([1], [c])["low"] for c in (50, 51))
    assert far - near == pytest.approx(row[at.DECODE_READ_S] + row[at.DECODE_READ_WINDOW_S])


def test_a_recurrent_state_costs_the_same_at_any_context():
    model = load_model("qwen3-next")
    row = roofline(model, H100, tensor_parallel_size=4).coefficients("low")
    assert row[at.RECURRENT_SEQUENCE_S] == pytest.approx(2 * model.state_bytes / 4 / BANDWIDTH)
    assert row[at.RECURRENT_TOKEN_S] > 0
    full = sum(layer.count for layer in model.layers if layer.kind == "full")
    assert row[at.DECODE_READ_S] == pytest.approx(full * 2 * 1 * 256 * 2 / BANDWIDTH)


def test_experts_are_read_as_tokens_touch_them():
    """Mixtral: one token reads 2 of 8 experts, many read all; 32 layers of 8 × 3·4096·14336."""
    model, device = load_model("mixtral-8x7b"), find_accelerator("mi300x")
    row = roofline(model, device).coefficients("low")
    every = 32 * 8 * 3 * 4096 * 14336 * 2 / 5.3e12
    assert row[at.EXPERT_READ_S] == pytest.approx(every)
    step = roofline(model, device)
    one, two = (step.seconds([1] * n, [0] * n)["low"] for n in (1, 2))
    rest = row[at.DECODE_READ_S] + row[at.TOKEN_S]
    assert two - one == pytest.approx(every * (0.75 - 0.75**2) + rest, rel=1e-6)
    assert one == pytest.approx((model.step_weight_bytes(1) / 5.3e12) + rest, rel=1e-6)


@pytest.mark.parametrize("batch", [1, 7, 64])
@pytest.mark.parametrize("name", model_names())
def test_a_decode_step_reads_what_the_catalogue_says(name, batch):
    """Where reading is the longer: the weights of `step_weight_bytes`, the cache, the states."""
    model = load_model(name)
    # No arithmetic, so that reading alone is left.
    free = msgspec.structs.replace(H100, bf16_flops=10**24)
    seconds = low(model, [1] * batch, [5000] * batch, free)
    read = sum(
        each * (5001 if window is None else min(5001, window))
        for window, each in model.pair_bytes().items()
    )
    written = sum(model.pair_bytes().values())
    total = model.step_weight_bytes(batch) + batch * (read + written + 2 * model.state_bytes)
    assert seconds == pytest.approx(total / BANDWIDTH, rel=1e-9)


@pytest.mark.parametrize("name", model_names())
def test_a_step_computes_the_flops_that_the_catalogue_says(name):
    """Where arithmetic is the longer: `prefill_flops`, the head, and MLA's expansion."""
    model = load_model(name)
    free = msgspec.structs.replace(H100, bandwidth_bytes_s=10**24)
    seconds = low(model, [700], [4000], free, linear_rate=1.0)
    assert roofline(model, free).decode_threshold < 700
    expand = 4000 * sum(layer.count * layer.expand_flops for layer in model.layers)
    flops = model.prefill_flops(4000, 4700) + model.head_flops + expand
    assert seconds == pytest.approx(flops / PEAK, rel=1e-9)
    decode = low(model, [1], [4000], free, linear_rate=1.0)
    assert decode == pytest.approx(model.decode_flops(4001) / PEAK, rel=1e-9)


@pytest.mark.parametrize("name", model_names())
def test_more_work_takes_longer_and_the_band_is_a_band(name):
    model = load_model(name)
    for device in (H100, find_accelerator("l4"), find_accelerator("b200")):
        step = roofline(model, device)
        steps = [([1], [c]) for c in (0, 1, 5, 1000, 100_000)]
        steps += [([1] * n, [100_000] * n) for n in (2, 8, 300)]
        steps += [([t], [200_000]) for t in (40_000, 80_000)]
        found = [step.seconds(*each) for each in steps]
        for before, after in itertools.pairwise(found):
            assert all(before[band] <= after[band] for band in ("low", "mid", "high"))
        assert all(0 < each["low"] < each["mid"] < each["high"] for each in found)
        tokens = [step.seconds([t], [1000])["mid"] for t in (2, 16, 128, 1024, 8192)]
        assert tokens == sorted(tokens)
        assert len(set(tokens)) == len(tokens)


def test_the_order_of_the_band_fails_where_assumptions_are_swapped():
    swapped = {"low": HIGH, "mid": MID, "high": LOW}
    found = roofline(LLAMA, H100, assumed=swapped).seconds([1], [1000])
    assert not found["low"] <= found["mid"] <= found["high"]


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b"])
def test_ranks_share_the_work_and_pay_for_it(name):
    model = load_model(name)
    for tokens, context in (([1] * 64, [4000] * 64), ([4096], [0])):
        one, two, four = (
            roofline(model, H100, tensor_parallel_size=r).seconds(tokens, context)
            for r in (1, 2, 4)
        )
        for band in ("low", "mid", "high"):
            assert one[band] > two[band] > four[band]
            assert two[band] > one[band] / 2, "communication takes time"


def test_all_reduces_are_counted():
    """Llama 3.1 8B over 2 ranks: 65 all-reduces of 8 KiB a token over 450 GB/s."""
    none = Assumptions(linear_flops=1, attention_flops=1, bandwidth=1, interconnect=1)
    late = msgspec.structs.replace(none, allreduce_s=1e-3)
    for assumed, ranks, share in ((none, 2, 1.0), (late, 2, 1.0), (none, 8, 1.75)):
        row = roofline(
            LLAMA, H100, tensor_parallel_size=ranks, assumed=dict.fromkeys(ASSUMED, assumed)
        ).coefficients("low")
        kv = KV_BYTES / ranks / BANDWIDTH
        assert row[at.TOKEN_S] - kv == pytest.approx(65 * 4096 * 2 * share / 450e9)
        assert row[at.STEP_S] == pytest.approx(66 * assumed.allreduce_s)
    # Nemotron-H has one part a layer, so one all-reduce: 52 layers and the embedding.
    nemotron = load_model("nemotron-3-nano")
    row = roofline(
        nemotron, H100, tensor_parallel_size=2, assumed=dict.fromkeys(ASSUMED, late)
    ).coefficients("low")
    assert row[at.STEP_S] == pytest.approx((nemotron.layer_count + 2) * 1e-3)


def test_weights_of_eight_bits():
    """Half the bytes, twice the rate where the accelerator has units for it."""
    row = roofline(LLAMA, H100, weight_dtype="fp8").coefficients("low")
    plain = roofline(LLAMA, H100).coefficients("low")
    assert row[at.LINEAR_READ_S] == pytest.approx(plain[at.LINEAR_READ_S] / 2)
    assert row[at.LINEAR_TOKEN_S] == pytest.approx(plain[at.LINEAR_TOKEN_S] / 2)
    assert row[at.HEAD_READ_S] == plain[at.HEAD_READ_S]
    a100 = find_accelerator("a100")
    fp8, int8, bf16 = (
        roofline(LLAMA, a100, weight_dtype=each).coefficients("low")[at.LINEAR_TOKEN_S]
        for each in ("fp8", "int8", "bf16")
    )
    assert fp8 == bf16 == pytest.approx(2 * int8)
    given = roofline(LLAMA, H100, weight_dtype="nvfp4", linear_rate=4).coefficients("low")
    assert given[at.LINEAR_TOKEN_S] == pytest.approx(plain[at.LINEAR_TOKEN_S] / 4)


def test_fp8_cache_halves_what_attention_reads():
    row, plain = (
        roofline(LLAMA, H100, kv_cache_dtype=each).coefficients("low") for each in ("fp8", "auto")
    )
    assert row[at.DECODE_READ_S] == pytest.approx(plain[at.DECODE_READ_S] / 2)


@pytest.mark.parametrize("name", model_names())
def test_every_model_and_accelerator_has_a_step_time(name):
    for device in accelerators():
        step = roofline(load_model(name), device)
        assert step.kind == "roofline"
        assert step.assumptions


def test_what_is_not_known_is_refused():
    with pytest.raises(UsageError, match="pipeline_parallel_size must be 1"):
        roofline(LLAMA, H100, pipeline_parallel_size=2)
    with pytest.raises(UsageError, match="RTX-4090: the catalogue does not know its interconnect"):
        roofline(LLAMA, find_accelerator("rtx-4090"), tensor_parallel_size=2)
    assert roofline(
        LLAMA, find_accelerator("rtx-4090"), tensor_parallel_size=2, interconnect_bytes_s=64e9
    )
    with pytest.raises(UsageError, match="KV heads do not divide"):
        roofline(LLAMA, H100, tensor_parallel_size=3)
    for field, value in (("bandwidth", 0.0), ("linear_flops", 1.5), ("step_s", -1.0)):
        assumed = {**ASSUMED, "mid": msgspec.structs.replace(MID, **{field: value})}
        with pytest.raises(UsageError, match=f"mid: {field} must be"):
            roofline(LLAMA, H100, assumed=assumed)
    with pytest.raises(UsageError, match="linear_rate must be above 0"):
        roofline(LLAMA, H100, linear_rate=0)
    with pytest.raises(UsageError, match="interconnect must be above 0"):
        roofline(LLAMA, H100, tensor_parallel_size=2, interconnect_bytes_s=-1)


def test_a_config_with_windows_of_two_sizes_is_refused():
    layers = tuple(
        msgspec.structs.replace(LLAMA.layers[0], kind="sliding", window=window, count=16)
        for window in (128, 4096)
    )
    with pytest.raises(UsageError, match=r"one size of sliding windows, not \[128, 4096\]"):
        roofline(msgspec.structs.replace(LLAMA, layers=layers), H100)


def test_published_measurements_lie_in_the_band():
    """What others measured on an H100, as published.

    Hazy Research, "Look Ma, No Bubbles" (2025), Llama 3.2 1B, one sequence, short context: vLLM
    and SGLang use at most half of the bandwidth, a single kernel 78% of it.
    """
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 131072,
    }
    model = model_from_config(config, "llama-3.2-1b")
    found = roofline(model, H100).seconds([1], [100])
    ideal = model.weight_bytes() / BANDWIDTH
    assert found["low"] == pytest.approx(ideal, rel=0.01)
    assert found["low"] < ideal / 0.78 < found["mid"]
    assert ideal / 0.5 < found["high"]
    assert found["mid"] == pytest.approx(ideal / 0.5, rel=0.2)
