"""Capacities from tokens, GiB and accelerators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.catalog import (
    blocks_to_gib,
    bytes_per_block,
    capacity_from_blocks,
    capacity_from_gib,
    capacity_from_gpu,
    capacity_from_tokens,
    find_accelerator,
    gib_to_blocks,
    load_model,
    model_from_config,
    parse_reserve,
)
from kvsched.catalog.capacity import Reserve
from kvsched.catalog.models import entries
from kvsched.foundation.errors import UsageError

GIB = 1 << 30
LLAMA = load_model("llama-3.1-8b")
H100 = find_accelerator("h100")


def test_tokens_become_whole_blocks():
    capacity = capacity_from_tokens(1000, 16)
    assert (capacity.blocks, capacity.tokens, capacity.gib) == (62, 992, None)
    assert capacity.derivation == ("1000 tokens are 62 whole blocks of 16 tokens.",)
    assert capacity_from_blocks(5, 512).tokens == 2560
    for wrong in (lambda: capacity_from_tokens(15, 16), lambda: capacity_from_blocks(0)):
        with pytest.raises(UsageError, match="no whole block fits"):
            wrong()
    with pytest.raises(UsageError, match="block size must be at least 1"):
        capacity_from_tokens(10, 0)


def test_gib_become_whole_blocks():
    capacity = capacity_from_gib(10, LLAMA, block_size=16)
    assert capacity.bytes_per_block == 131_072 * 16
    assert capacity.blocks == 10 * GIB // (131_072 * 16) == 5120
    assert capacity.gib == 10
    assert capacity_from_gib(10, LLAMA, block_size=16, kv_cache_dtype="fp8").blocks == 10_240
    # All accelerators together: two ranks hold half a block each.
    assert capacity_from_gib(10, LLAMA, tensor_parallel_size=2).blocks == 5120
    # MLA is copied: eight ranks of the same GiB hold an eighth.
    v3 = load_model("deepseek-v3")
    one, eight = (capacity_from_gib(80, v3, tensor_parallel_size=n).blocks for n in (1, 8))
    assert eight == one // 8


def test_gpu_by_hand():
    capacity = capacity_from_gpu(H100, LLAMA)
    left = (81_559 << 20) * 0.9 - 2 * 8_030_261_248 - 2 * GIB
    assert capacity.blocks == int(left // (131_072 * 16)) == 28_019
    assert capacity.derivation[0].startswith("H100-SXM: 79.65 GiB (81559 MiB")
    assert "Weights (as the config says) take 14.96 GiB." in capacity.derivation
    assert any("A token of a growing prefix takes 131072 bytes" in s for s in capacity.derivation)


def test_gpu_options_move_the_number_the_right_way():
    base = capacity_from_gpu(H100, LLAMA).blocks
    assert capacity_from_gpu(H100, LLAMA, gpu_memory_utilization=0.8).blocks < base
    assert capacity_from_gpu(H100, LLAMA, allowance_gib=4).blocks == base - 1024
    assert capacity_from_gpu(H100, LLAMA, weight_dtype="fp8").blocks > base
    assert capacity_from_gpu(H100, LLAMA, kv_cache_dtype="fp8").blocks in (2 * base, 2 * base + 1)
    two = capacity_from_gpu(H100, LLAMA, tensor_parallel_size=2)
    assert two.blocks > 2 * base
    assert two.bytes_per_block == 131_072 * 16 // 2


def test_weights_that_do_not_fit_say_what_would():
    with pytest.raises(UsageError) as error:
        capacity_from_gpu(H100, load_model("llama-3.1-70b"))
    said = str(error.value)
    assert "meta-llama/Llama-3.1-70B does not fit: 131.4 GiB of weights" in said
    assert said.endswith("tensor-parallel size 2 or B200 at tensor-parallel size 1 would")
    with pytest.raises(UsageError, match="nothing in the catalog would"):
        capacity_from_gpu(find_accelerator("l4"), load_model("kimi-k2"))


def test_what_is_said_to_fit_fits():
    model = load_model("llama-3.1-70b")
    assert capacity_from_gpu(H100, model, tensor_parallel_size=2).blocks > 0
    assert capacity_from_gpu(find_accelerator("b200"), model).blocks > 0


def test_running_requests_are_taken_off():
    base = capacity_from_gpu(H100, LLAMA).blocks
    reserved = capacity_from_gpu(H100, LLAMA, reserve=parse_reserve("64x2000"))
    assert reserved.blocks == base - 64 * 125
    assert "Running requests (64 × 2000 tokens) hold 8000 blocks." in reserved.derivation
    # Whole blocks a request: 64 × 2001 tokens hold 64 × 126 blocks, 128,064 tokens fewer.
    assert capacity_from_gpu(H100, LLAMA, reserve=Reserve(64, 2001)).blocks == base - 64 * 126
    assert capacity_from_gpu(H100, LLAMA, reserve=parse_reserve("128000")).blocks == base - 8000
    with pytest.raises(UsageError, match="nothing is left to keep"):
        capacity_from_gpu(H100, LLAMA, reserve=Reserve(1000, 2000))


def test_windows_and_states_count_with_running_requests_only():
    model = load_model("gpt-oss-20b")
    plain = capacity_from_gpu(H100, model)
    assert any("Sliding windows and recurrent states take at most" in s for s in plain.derivation)
    reserved = capacity_from_gpu(H100, model, reserve=Reserve(64, 4096))
    beside = 64 * model.kv_constant_bytes()
    assert plain.blocks - reserved.blocks == 64 * 256 + -(-beside // (24_576 * 16))


def test_reserve_is_read():
    assert parse_reserve("64x2048") == parse_reserve(" 64 × 2048 ") == Reserve(64, 2048)
    assert parse_reserve("1000") == Reserve(1, 1000)
    for wrong in ("", "x", "-5", "5x", "1.5", "a lot"):
        with pytest.raises(UsageError, match="neither TOKENS nor REQUESTSxTOKENS"):
            parse_reserve(wrong)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpu_memory_utilization": 0.0}, "gpu-memory-utilization must be above 0"),
        ({"gpu_memory_utilization": 1.1}, "gpu-memory-utilization must be above 0"),
        ({"tensor_parallel_size": 0}, "tensor-parallel size must be at least 1"),
        ({"tensor_parallel_size": 3}, "do not divide over 3 ranks"),
        ({"allowance_gib": -1.0}, "the allowance must be at least 0 GiB"),
        ({"allowance_gib": float("nan")}, "the allowance must be at least 0 GiB"),
        ({"kv_cache_dtype": "fp3"}, "KV cache dtype 'fp3' is not known"),
        ({"block_size": 0}, "block size must be at least 1"),
    ],
)
def test_options_out_of_range(options, said):
    with pytest.raises(UsageError, match=said):
        capacity_from_gpu(H100, LLAMA, **options)


def test_a_model_without_growing_layers_has_no_blocks():
    config = dict(entries()["meta-llama/Llama-3.1-8B"].config, sliding_window=4096)
    with pytest.raises(UsageError, match="no layer keeps every token"):
        bytes_per_block(model_from_config(config, "all sliding"))
    for size in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="is no size of a cache"):
            gib_to_blocks(size, 100)


@given(st.integers(1, 10**7), st.sampled_from([16, 64, 512]), st.sampled_from([1, 2, 8]))
def test_blocks_survive_the_way_to_gib_and_back(blocks, block_size, ranks):
    each = bytes_per_block(LLAMA, block_size, "auto", ranks)
    assert gib_to_blocks(blocks_to_gib(blocks, each, ranks), each, ranks) == blocks
    many = blocks_to_gib(np.array([blocks, 0]), each, ranks)
    assert many.tolist() == [blocks_to_gib(blocks, each, ranks), 0.0]
