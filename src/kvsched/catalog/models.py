"""Models by name or by a local `config.json`: both go through one reading of the same fields."""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvsched.catalog import names
from kvsched.catalog.attention import DTYPE_BYTES, hidden
from kvsched.catalog.families import FAMILIES
from kvsched.catalog.fields import Fields, read_config
from kvsched.catalog.layers import merged
from kvsched.catalog.model import WEIGHT_BITS, Model


class Published(msgspec.Struct, frozen=True):
    """What the model's makers state, rounded as they do; only tests compare with it."""

    parameters: float
    active_parameters: float | None = None


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the catalog: published fields, kept as they are."""

    name: str
    aliases: tuple[str, ...]
    source: str
    published: Published
    config: dict[str, Any]


@functools.cache
def entries() -> dict[str, Entry]:
    """Every model of the catalog by name, in the order of the names."""
    folder = importlib.resources.files("kvsched.catalog") / "data" / "models"
    read = [
        msgspec.json.decode(file.read_bytes(), type=Entry)
        for file in folder.iterdir()
        if file.name.endswith(".json")
    ]
    return {entry.name: entry for entry in sorted(read, key=lambda each: each.name.lower())}


def model_names() -> tuple[str, ...]:
    """Names of the catalog's models."""
    return tuple(entries())


@functools.cache
def _known() -> dict[str, str]:
    return names.index((entry.name, entry.aliases) for entry in entries().values())


def load_model(name_or_path: str) -> Model:
    """The model of that name or alias (any case), or of a local `config.json` or its folder.

    An argument that exists as a file or a folder, ends in `.json` or starts with `.` or `/` is
    a path. Raises UsageError for an unknown name with the nearest ones, InputError for a config
    that cannot be read.
    """
    path = Path(name_or_path)
    if name_or_path.startswith("~"):
        path = path.expanduser()
    if path.is_dir() and (path / "config.json").exists():
        path = path / "config.json"
    looks_like_a_path = name_or_path.endswith(".json") or name_or_path.startswith((".", "/", "~"))
    if path.is_file() or looks_like_a_path:
        label = path.parent.name if path.name == "config.json" else path.stem
        return model_from_config(
            read_config(path), label or path.name, source=path.name, file=str(path)
        )
    hint = "; or give the path of its config.json"
    entry = entries()[names.look_up(name_or_path, _known(), "model", hint)]
    return model_from_config(entry.config, entry.name, source=entry.source, file=entry.name)


def model_from_config(
    config: Mapping[str, Any], name: str, *, source: str = "config.json", file: str | None = None
) -> Model:
    """Derive a `Model` from the fields of a `config.json`, or of its `text_config`.

    Raises InputError, which names ``file``, where fields are missing, wrong or not known.
    """
    file = name if file is None else file
    notes: list[str] = []
    config, model_type = _text_part(config, file, notes)
    family = FAMILIES[model_type]
    fields = Fields({**family.defaults, **_stated(config)}, file)
    dtype = _dtype(fields, notes)
    width, vocabulary = hidden(fields), fields.count("vocab_size")
    layers = family.build(fields, dtype)
    extra = _extra_parameters(fields, model_type, width)
    linear, expert = _quantised(fields, dtype, notes)
    limit = fields.count("max_position_embeddings", "n_positions", default=0)
    if fields.get("num_nextn_predict_layers", "mtp_num_hidden_layers"):
        notes.append("The extra layers that predict several tokens are left out.")
    tied = fields.flag("tie_word_embeddings", family.ties)
    fields.check()
    return Model(
        name=name,
        source=source,
        model_type=model_type,
        layers=merged(layers),
        hidden_size=width,
        vocab_size=vocabulary,
        tied=tied,
        extra_parameters=extra,
        dtype=dtype,
        linear_bits=linear,
        expert_bits=expert,
        max_context=limit or None,
        notes=tuple(notes),
    )


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def _text_part(
    config: Mapping[str, Any], file: str, notes: list[str]
) -> tuple[Mapping[str, Any], str]:
    """The language model's fields, and its type."""
    types = [config.get("model_type")]
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        types.insert(0, inner.get("model_type"))
        config = {**_stated(config), **_stated(inner)}
        notes.append("Only the text model is counted, no vision or audio part.")
    for model_type in types:
        if isinstance(model_type, str) and model_type in FAMILIES:
            return config, model_type
    fields = Fields(config, file)
    stated = next((each for each in types if each is not None), None)
    if stated is None:
        fields.fault("lacks the field model_type")
    return fields.fault(f"model_type {stated!r} is not known ({', '.join(FAMILIES)})")


def _extra_parameters(fields: Fields, model_type: str, width: int) -> int:
    if model_type == "gpt_bigcode":
        return 2 * width + fields.count("n_positions") * width
    return 2 * width if model_type == "falcon" else width


def _dtype(fields: Fields, notes: list[str]) -> str:
    stated = fields.text("torch_dtype", "dtype")
    if stated is None:
        notes.append("The config states no dtype: bfloat16 is assumed.")
        return "bfloat16"
    if stated not in DTYPE_BYTES:
        fields.fault(f"torch_dtype {stated!r} is not known ({', '.join(DTYPE_BYTES)})")
    if stated == "float32":
        notes.append("Stored in float32, counted in 16 bits, as engines serve it.")
        return "bfloat16"
    return stated


def _quantised(fields: Fields, dtype: str, notes: list[str]) -> tuple[float | None, float | None]:
    """Bits of a parameter in matrices and in experts, or None where not understood."""
    plain = float(8 * DTYPE_BYTES[dtype])
    stated = fields.get("quantization_config")
    if stated is None:
        return plain, plain
    method = stated.get("quant_method") if isinstance(stated, Mapping) else None
    if method == "fp8":
        return 8.0, 8.0
    if method == "mxfp4":
        return plain, WEIGHT_BITS["mxfp4"]
    if method in ("awq", "gptq") and isinstance(stated.get("bits"), int):
        group = stated.get("group_size")
        scale = 32.0 / group if isinstance(group, int) and group > 0 else 0.0
        return stated["bits"] + scale, stated["bits"] + scale
    notes.append(f"The quantization method {method!r} is not understood.")
    return None, None
