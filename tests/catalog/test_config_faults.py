"""A broken `config.json` is named by file and fault, in one line."""

from __future__ import annotations

import json

import pytest

from kvsched.catalog import load_model
from kvsched.catalog.models import entries
from kvsched.foundation.errors import InputError

LLAMA = entries()["meta-llama/Llama-3.1-8B"].config
MOE = entries()["Qwen/Qwen3-30B-A3B"].config
MAMBA = entries()["nvidia/Nemotron-H-56B-Base-8K"].config
OSS = entries()["openai/gpt-oss-20b"].config


def fault(tmp_path, content) -> str:
    path = tmp_path / "config.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(json.dumps(content))
    with pytest.raises(InputError) as error:
        load_model(str(path))
    assert error.value.exit_code == 2
    assert error.value.file == str(path)
    assert "\n" not in str(error.value)
    return error.value.fault


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read \(No such file or directory\)"):
        load_model(str(tmp_path / "nothing.json"))


@pytest.mark.parametrize("content", [b"", b"{", b"hello", b"\xff\xfe\x00", b"[" * 100_000])
def test_not_json(tmp_path, content):
    assert fault(tmp_path, content).startswith("is not JSON (")


def test_no_object(tmp_path):
    assert fault(tmp_path, [1, 2]) == "is JSON, but no object"


def test_missing_fields_are_all_named(tmp_path):
    broken = without(LLAMA, "num_hidden_layers", "intermediate_size", "vocab_size")
    assert fault(tmp_path, broken) == (
        "lacks the fields vocab_size, num_hidden_layers or n_layer, intermediate_size"
    )
    assert fault(tmp_path, without(LLAMA, "vocab_size")) == "lacks the field vocab_size"


def test_missing_or_unknown_model_type(tmp_path):
    assert fault(tmp_path, without(LLAMA, "model_type")) == "lacks the field model_type"
    said = fault(tmp_path, {**LLAMA, "model_type": "hyena"})
    assert said.startswith("model_type 'hyena' is not known (llama, mistral, ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": -3}, "num_hidden_layers must be at least 1, not -3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1, not 0"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number, not 'many'"),
        ({"hidden_size": 4096.5}, "hidden_size must be a whole number, not 4096.5"),
        ({"hidden_size": True}, "hidden_size must be a whole number, not True"),
        ({"hidden_size": 4097}, "hidden_size 4097 does not divide into 32 num_attention_heads"),
        (
            {"num_key_value_heads": 5},
            "num_attention_heads 32 is no multiple of the 5 KV heads",
        ),
        (
            {"torch_dtype": "float7"},
            "torch_dtype 'float7' is not known (float32, bfloat16, float16)",
        ),
        ({"torch_dtype": 16}, "torch_dtype must be text, not 16"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, not 'no'"),
    ],
)
def test_wrong_values(tmp_path, change, said):
    assert fault(tmp_path, {**LLAMA, **change}) == said


@pytest.mark.parametrize(
    ("config", "change", "said"),
    [
        (MOE, {"num_experts_per_tok": 200}, "num_experts_per_tok 200 is more than the 128 experts"),
        (MOE, {"mlp_only_layers": "none"}, "mlp_only_layers must be a list of whole numbers"),
        (OSS, {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 24 layers"),
        (OSS, {"layer_types": 3}, "layer_types must be a list of names"),
        (
            OSS,
            {"layer_types": ["odd"] * 24},
            "layer_types has 'odd', which is not known for this model_type",
        ),
        (
            OSS,
            {"sliding_window": None},
            "layer_types has sliding_attention, but sliding_window is missing",
        ),
        (
            MAMBA,
            {"hybrid_override_pattern": "M*"},
            "hybrid_override_pattern has 2 letters for 118 layers",
        ),
        (
            MAMBA,
            {"hybrid_override_pattern": "Q" * 118},
            "hybrid_override_pattern has the unknown letter 'Q'",
        ),
    ],
)
def test_wrong_structure(tmp_path, config, change, said):
    assert fault(tmp_path, {**config, **change}) == said


def test_infinity_in_a_published_config_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**MAMBA, "time_step_limit": [0.0, float("inf")]}))
    assert load_model(str(path)).layer_count == 118
