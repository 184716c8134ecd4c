"""An experiment: one file that describes a whole study, with the names of the command line."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.schema import described_schema, field_docstrings

SUFFIXES = (".yaml", ".yml", ".json", ".toml")
PRESET = "preset:"
FILES = ("trace", "against", "tokenizer", "chat_template")
"""Fields that name a file."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides a study. Paths are relative to the file that names them."""

    trace: str
    """A trace file, a folder of session files, preset:NAME, or the result of an earlier study."""
    format: str | None = None
    """Name of the reader, where detection by content is not wanted."""
    time_unit: str | None = None
    """Unit of the timestamps: s, ms, us or ns."""
    block_size: int | None = None
    """Tokens in a block of the trace, where it does not say."""
    session_arrivals: str = "zero"
    """When sessions with clocks of their own begin: zero, or poisson:RATE a second."""
    seed: int = 0
    """Seed of whatever is drawn."""
    include_subagents: bool = False
    """Take the nested requests of subagents too."""
    tokenizer: str | None = None
    """A tokenizer.json, for logs of messages."""
    chat_template: str | None = None
    """The model's chat template (Jinja, or a tokenizer_config.json); needs `tokenizer`."""
    bytes_per_token: float | None = None
    """Count so many bytes as a token, for text without a tokenizer."""
    skip_bad_rows: bool = False
    """Leave bad rows out, and say how many."""
    columns: str | None = None
    """Columns of a CSV or Parquet table by role, as in time=TIMESTAMP,input=prompt_tokens."""
    capacity_blocks: int | None = None
    """Capacity in blocks of the trace."""
    capacity_tokens: int | None = None
    """Capacity in tokens, rounded down to blocks."""
    capacity_gib: float | None = None
    """Capacity in GiB over all GPUs; needs `model`."""
    model: str | None = None
    """A model of `kvsched models`, or the path of a config.json."""
    gpu: str | None = None
    """An accelerator of `kvsched gpus`; needs `model`."""
    tensor_parallel_size: int = 1
    """GPUs that share each layer."""
    gpu_memory_utilization: float = 0.9
    """Share of its memory that an engine takes."""
    kv_cache_dtype: str = "auto"
    """auto, bfloat16, float16, fp8, …"""
    weight_dtype: str = "auto"
    """auto (the model's own), bfloat16, fp8, …"""
    allowance_gib: float = 2.0
    """Taken off each GPU for activations and CUDA graphs."""
    reserve_running: str | None = None
    """Taken off for what running requests hold: TOKENS or REQUESTSxTOKENS, as in 64x2048."""
    engine: str = "generic"
    """Whose rules say what can be stored and hit: generic, vllm, …"""
    cache_generated: bool = True
    """Whether the engine stores the blocks that decoding fills."""
    policy: str | None = None
    """Your engine's policy: its misses are explained; the engine's own if left out."""
    policies: tuple[str, ...] | None = None
    """Compared beside the optima; the built-in choice if left out."""
    points: Annotated[int, msgspec.Meta(ge=2, le=1000)] = 12
    """Capacities on the curves' grid."""
    batch: Annotated[int, msgspec.Meta(ge=1)] = 64
    """Requests that decode together, for what a hit is worth."""
    efficiency: float = 1.0
    """Share of the GPU's rate that prefill reaches, from 0 to 1."""
    simulate: bool = False
    """Serve each policy in a timed simulation too; needs `model` and `gpu`."""
    sample: str | None = None
    """Rate of a sample of the trace's nodes, as 0.1 or 1/10, or auto; the whole if left out."""
    sample_budget: float = 60.0
    """Nominal seconds of one core that `sample: auto` may take."""
    against: str | None = None
    """Another trace, or an earlier study's result, to compare with."""
    output_dir: str = "kvsched-study"
    """Folder for report.html and result.json."""

    def embedded(self) -> dict[str, Any]:
        """What a result keeps of it: what differs from the defaults, without folders.

        Where files lay, and where the result went, does not decide it.
        """
        found = {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if name != "output_dir" and value != _DEFAULTS.get(name, msgspec.UNSET)
        }
        for name in FILES:
            if name in found:
                found[name] = _base_name(found[name])
        return found


_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(Experiment)
    if field.default is not msgspec.NODEFAULT
}


def _base_name(place: str) -> str:
    """A path's last name; it may be no UTF-8, a result always is."""
    shown = place if place.startswith(PRESET) else Path(place).name
    return shown.encode("utf-8", "replace").decode()


def read_experiment(path: Path) -> Experiment:
    """Read an experiment from a .yaml, .json or .toml file.

    Paths in it are made relative to its folder. Raises InputError with file and fault.
    """
    file = str(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{file}: an experiment's file ends in {', '.join(SUFFIXES)}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(file, f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(file, "is no UTF-8 text") from error
    found = _parse(file, path.suffix.lower(), text)
    if not isinstance(found, dict):
        raise InputError(file, "an experiment is a mapping of names to values, as in trace: FILE")
    try:
        experiment = msgspec.convert(found, Experiment)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InputError(file, _in_words(str(error), found)) from error
    fault = _unusable(experiment)
    if fault:
        raise InputError(file, fault)
    return _placed(experiment, path.parent)


def _parse(file: str, suffix: str, text: str) -> object:
    if suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(file, f"not valid TOML ({error})") from error
    if suffix == ".json":
        try:
            return json.loads(
                text, object_pairs_hook=lambda pairs: _once(file, pairs), parse_constant=_refuse
            )
        except (ValueError, RecursionError) as error:
            raise InputError(file, f"not valid JSON ({error})") from error
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _refuse_twice(file, node)
        return yaml.safe_load(text)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        fault = " ".join(str(error).split())
        raise InputError(file, f"not valid YAML ({fault})") from error


def _refuse_twice(file: str, node: Any) -> None:
    """Refuse a name that is given twice: YAML would take the last without a word."""
    import yaml

    if not isinstance(node, yaml.MappingNode):
        return
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(file, "a name must be plain text", key.start_mark.line + 1)
        if key.value in seen:
            raise InputError(file, f"{key.value} is given twice", key.start_mark.line + 1)
        seen.add(key.value)


def _shown(name: str) -> str:
    """A name as any terminal can print it."""
    return name.encode("utf-8", "backslashreplace").decode()


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _once(file: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no name is given twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(file, f"{_shown(name)} is given twice")
        found[name] = value
    return found


def _unusable(experiment: Experiment) -> str | None:
    """The first field whose text no path or name can have: a null, or half a surrogate pair."""
    for field in experiment.__struct_fields__:
        value = getattr(experiment, field)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text):
                return f"{field} has a character that no name can have: {ascii(text)[:80]}"
    return None


def _in_words(fault: str, found: dict[Any, Any]) -> str:
    known = {field.name for field in msgspec.structs.fields(Experiment)}
    strange = [_shown(str(name)) for name in found if name not in known]
    if strange:
        import difflib

        near = difflib.get_close_matches(strange[0], sorted(known), 1)
        hint = f" (did you mean {near[0]}?)" if near else " (kvsched run --fields lists them)"
        return f"there is no field {strange[0]}{hint}"
    if "policies" in fault and isinstance(found.get("policies"), str):
        return f"policies is a list: write [{found['policies']}]"
    return fault.replace(" - at `$.", ": `").replace("Object", "the experiment")


def _placed(experiment: Experiment, folder: Path) -> Experiment:
    """Return the experiment with its paths relative to where it was read from."""

    def place(value: str | None) -> str | None:
        if value is None or value.startswith(PRESET):
            return value
        return str(folder / value)

    def policy(value: str) -> str:
        return str(folder / value) if ".py:" in value else value

    model = experiment.model
    chosen = experiment.policies
    return msgspec.structs.replace(
        experiment,
        **{name: place(getattr(experiment, name)) for name in FILES},
        output_dir=place(experiment.output_dir),
        model=place(model) if model is not None and model.endswith(".json") else model,
        policy=None if experiment.policy is None else policy(experiment.policy),
        policies=None if chosen is None else tuple(policy(each) for each in chosen),
    )


def experiment_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an experiment's file."""
    return described_schema(Experiment)


def experiment_fields() -> str:
    """Return the fields of an experiment with their defaults and docstrings, as text."""
    documents = field_docstrings(Experiment)[Experiment.__name__]
    lines = []
    for field in msgspec.structs.fields(Experiment):
        default = _DEFAULTS.get(field.name, msgspec.UNSET)
        given = (
            "required"
            if default is msgspec.UNSET
            else f"default {msgspec.json.encode(default).decode()}"
        )
        lines.append(f"{field.name}  ({given})\n    {documents[field.name]}")
    return "\n".join(lines)
