"""Every catalog model's numbers, derived from its published fields, against hand computation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsched.catalog import load_model, model_from_config, model_names
from kvsched.catalog.models import entries
from kvsched.foundation.errors import UsageError

# Bytes a token in 16 bits, worked out by hand from the published fields:
# 2 (key, value) · layers that grow · KV heads · head dim · 2 bytes;
# MLA: (rank + rope) · layers · 2 bytes.
KV_BYTES = {
    "llama-3.1-8b": 2 * 32 * 8 * 128 * 2,
    "llama-3.1-70b": 2 * 80 * 8 * 128 * 2,
    "llama-3.3-70b": 327_680,
    "qwen3-0.6b": 2 * 28 * 8 * 128 * 2,
    "qwen3-8b": 2 * 36 * 8 * 128 * 2,
    "qwen3-32b": 2 * 64 * 8 * 128 * 2,
    "qwen3-30b-a3b": 2 * 48 * 4 * 128 * 2,
    "mixtral-8x7b": 131_072,
    "falcon-7b": 2 * 32 * 1 * 64 * 2,
    "gemma-2-2b-it": 2 * 13 * 4 * 256 * 2,
    "gemma-3-27b-it": 2 * 10 * 16 * 128 * 2,
    "gpt-oss-20b": 2 * 12 * 8 * 64 * 2,
    "gpt-oss-120b": 2 * 18 * 8 * 64 * 2,
    "deepseek-v2-lite": (512 + 64) * 27 * 2,
    "deepseek-v3": 70_272,
    "deepseek-r1": 70_272,
    "kimi-k2": 70_272,
    "qwen3-next": 2 * 12 * 2 * 256 * 2,
    "qwen3.5-35b-a3b": 2 * 10 * 2 * 256 * 2,
    "nemotron-h-56b": 2 * 10 * 8 * 128 * 2,
    "nemotron-3-nano": 2 * 6 * 2 * 128 * 2,
}

# Exact totals as the checkpoints' own indices count them.
EXACT_PARAMETERS = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mixtral-8x7b": 46_702_792_704,
    "gemma-2-2b-it": 2_614_341_888,
    "falcon-7b": 6_921_720_704,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
}


def test_the_table_covers_the_catalog():
    assert {load_model(alias).name for alias in KV_BYTES} == set(model_names())
    assert len(model_names()) >= 12


def test_the_catalog_covers_every_kind_of_layer():
    kinds = {layer.kind for name in model_names() for layer in load_model(name).layers}
    assert kinds == {"full", "sliding", "latent", "recurrent", "feed-forward"}


@pytest.mark.parametrize(("alias", "expected"), KV_BYTES.items())
def test_kv_bytes_per_token(alias, expected):
    model = load_model(alias)
    assert model.kv_bytes_per_token() == expected
    assert model.kv_bytes_per_token("fp8") == expected // 2


@pytest.mark.parametrize(("alias", "expected"), EXACT_PARAMETERS.items())
def test_parameters_exactly(alias, expected):
    assert load_model(alias).parameters == expected


@pytest.mark.parametrize("name", model_names())
def test_parameters_near_the_published_count(name):
    published = entries()[name].published
    model = load_model(name)
    assert model.parameters == pytest.approx(published.parameters, rel=0.03)
    if published.active_parameters is None:
        assert model.active_parameters == model.parameters
    else:
        # Makers count the embedding and the head, the head only, or neither.
        table = model.vocab_size * model.hidden_size
        counts = [model.active_parameters - leave * table for leave in (0, 1, 2)]
        error = min(abs(count / published.active_parameters - 1) for count in counts)
        assert error < 0.1


@pytest.mark.parametrize("name", model_names())
def test_layers_add_up(name):
    entry = entries()[name]
    config = {**entry.config, **entry.config.get("text_config", {})}
    assert load_model(name).layer_count == config["num_hidden_layers"]


@pytest.mark.parametrize("name", model_names())
def test_source_is_named(name):
    assert name in load_model(name).source


def test_kv_heads_are_divided_then_repeated_over_ranks():
    model = load_model("llama-3.1-8b")
    assert [model.kv_bytes_per_token("auto", ranks) for ranks in (1, 2, 8, 16)] == [
        131_072,
        65_536,
        16_384,
        16_384,
    ]
    with pytest.raises(UsageError, match="8 KV heads do not divide over 3 ranks"):
        model.kv_bytes_per_token("auto", 3)


def test_mla_is_the_same_on_every_rank():
    model = load_model("deepseek-v3")
    assert model.kv_bytes_per_token("auto", 8) == model.kv_bytes_per_token() == 576 * 61 * 2


def test_sliding_layers_stop_growing():
    model = load_model("gpt-oss-20b")
    one_layer = 2 * 8 * 64 * 2
    assert model.kv_constant_bytes() == 12 * 128 * one_layer
    assert model.kv_bytes(100) == 24 * 100 * one_layer
    assert model.kv_bytes(10_000) == 12 * (10_000 + 128) * one_layer


def test_recurrent_state_is_constant():
    model = load_model("qwen3-next")
    state = 32 * 128 * 128 * 2 + (2 * 16 * 128 + 32 * 128) * 3 * 2
    assert model.state_bytes == model.kv_constant_bytes() == 36 * state
    assert model.kv_bytes(1000) - model.kv_bytes(999) == model.kv_bytes_per_token()
    # Nemotron-3-Nano states 32-bit states: 64 heads of 64 × 128, convolution over 6,144 channels.
    nano = load_model("nemotron-3-nano")
    assert nano.state_bytes == 23 * (64 * 64 * 128 * 4 + 6144 * 3 * 2)


def test_weight_bytes_follow_the_quantization():
    llama = load_model("llama-3.1-8b")
    assert llama.weight_bytes() == 2 * 8_030_261_248
    tables = 2 * 128_256 * 4096
    norms = (2 * 32 + 1) * 4096
    assert llama.weight_bytes("fp8") == 8_030_261_248 + tables + norms
    # gpt-oss-20b in MXFP4 is published as 13.8 GB.
    assert load_model("gpt-oss-20b").weight_bytes() == pytest.approx(13.76e9, rel=0.01)
    # DeepSeek-V3 in FP8 without the extra prediction layer.
    assert load_model("deepseek-v3").weight_bytes() == pytest.approx(673e9, rel=0.01)
    with pytest.raises(UsageError, match="weight dtype 'int3' is not known"):
        llama.weight_bytes("int3")


def test_quantization_not_understood_must_be_named():
    config = dict(entries()["meta-llama/Llama-3.1-8B"].config)
    config["quantization_config"] = {"quant_method": "secret"}
    model = model_from_config(config, "mine")
    assert any("'secret' is not understood" in note for note in model.notes)
    with pytest.raises(UsageError, match="quantization_config is not understood"):
        model.weight_bytes()
    assert model.weight_bytes("bf16") == 2 * 8_030_261_248
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128}
    assert model_from_config(config, "mine").linear_bits == 4.25


def test_a_local_config_gives_the_same_model(tmp_path: Path):
    for name in model_names():
        folder = tmp_path / name.replace("/", "--")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(entries()[name].config))
        ours, theirs = load_model(name), load_model(str(folder))
        assert theirs.layers == ours.layers
        assert theirs.parameters == ours.parameters
        assert theirs.name == folder.name
    assert load_model(str(folder / "config.json")) == theirs


def test_names_and_aliases_in_any_case():
    wanted = load_model("meta-llama/Llama-3.1-8B")
    for name in (
        "LLAMA-3.1-8b",
        "llama_3.1_8B",
        "Meta-Llama/llama-3.1-8b-instruct",
        " llama3.1-8b",
    ):
        assert load_model(name) == wanted


def test_unknown_name_gives_the_nearest():
    with pytest.raises(UsageError) as error:
        load_model("lama-3.1-8b")
    assert str(error.value).startswith(
        "model 'lama-3.1-8b' is not in the catalog (nearest: meta-llama/Llama-3.1-8B"
    )
    with pytest.raises(UsageError, match="none is near"):
        load_model("@@@@")


JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65536,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 256,
    "torch_dtype": "bfloat16",
}


def test_families_outside_the_catalog():
    jamba = model_from_config(JAMBA, "jamba")
    assert jamba.parameters == pytest.approx(52e9, rel=0.02)
    assert jamba.active_parameters == pytest.approx(12e9, rel=0.02)
    assert jamba.kv_bytes_per_token() == 2 * 4 * 8 * 128 * 2
    starcoder = model_from_config(
        {
            "model_type": "gpt_bigcode",
            "n_embd": 6144,
            "n_head": 48,
            "n_inner": 24576,
            "n_layer": 40,
            "n_positions": 8192,
            "vocab_size": 49152,
            "multi_query": True,
            "torch_dtype": "float16",
        },
        "starcoder",
    )
    assert starcoder.parameters == pytest.approx(15.5e9, rel=0.01)
    assert starcoder.kv_bytes_per_token() == 2 * 40 * 128 * 2


def test_windows_where_the_config_leaves_them_to_the_class():
    gemma2 = load_model("gemma-2-2b-it")
    assert {layer.window: layer.count for layer in gemma2.layers} == {4096: 13, None: 13}
    gemma3 = load_model("gemma-3-27b-it")
    assert {layer.window: layer.count for layer in gemma3.layers} == {1024: 52, None: 10}
    config = dict(entries()["Qwen/Qwen3-8B"].config, sliding_window=1000, max_window_layers=20)
    plain = model_from_config(config, "qwen")
    assert [layer.window for layer in plain.layers] == [None]
    windowed = model_from_config({**config, "use_sliding_window": True}, "qwen")
    assert {layer.window: layer.count for layer in windowed.layers} == {None: 20, 1000: 16}


def test_multimodal_config_reads_its_text_part():
    model = load_model("qwen3.5-35b-a3b")
    assert model.model_type == "qwen3_5_moe_text"
    assert not model.tied
    assert any("Only the text model" in note for note in model.notes)
