"""An experiment's file: the same study as the command line, and faults in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest

from kvsched.cli.options import CapacityOptions, TraceOptions
from kvsched.cli.study import StudyOptions, experiment_of, options_of
from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.schema import field_docstrings
from kvsched.study.experiment import (
    Experiment,
    experiment_fields,
    experiment_schema,
    read_experiment,
)
from kvsched.study.schema import schemas

ROOT = Path(__file__).parents[2]
TEXTS = {
    ".yaml": "trace: t.jsonl\npolicies: [lfu, mine.py:Mine]\ncapacity_gib: 2\nmodel: c.json\n",
    ".toml": 'trace="t.jsonl"\npolicies=["lfu", "mine.py:Mine"]\ncapacity_gib=2\nmodel="c.json"\n',
    ".json": '{"trace": "t.jsonl", "policies": ["lfu", "mine.py:Mine"], "capacity_gib": 2,'
    ' "model": "c.json"}',
}


def test_it_has_every_option_of_the_command_line_and_no_other() -> None:
    groups = (TraceOptions, CapacityOptions, StudyOptions)
    options = {field.name for group in groups for field in dataclasses.fields(group)}
    assert {field.name for field in msgspec.structs.fields(Experiment)} == options


def test_defaults_are_those_of_the_command_line() -> None:
    source, asked, how = options_of(Experiment(trace="x"))
    assert source == TraceOptions(trace="x")
    assert asked == CapacityOptions()
    assert how == StudyOptions()


def test_there_and_back() -> None:
    described = Experiment(
        trace="x", format="weka", policies=("lfu", "opt"), points=5, model="m", seed=3, against="y"
    )
    assert experiment_of(*options_of(described)) == described


@pytest.mark.parametrize("suffix", sorted(TEXTS))
def test_each_notation_says_the_same(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"e{suffix}"
    file.write_text(TEXTS[suffix])
    assert read_experiment(file) == Experiment(
        trace=str(tmp_path / "t.jsonl"),
        policies=("lfu", f"{tmp_path / 'mine.py'}:Mine"),
        capacity_gib=2.0,
        model=str(tmp_path / "c.json"),
        output_dir=str(tmp_path / "kvsched-study"),
    )


def test_a_preset_and_a_catalogue_name_are_no_paths(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("trace: preset:chat\nmodel: llama-3.1-8b\nagainst: preset:rag\n")
    found = read_experiment(file)
    assert (found.trace, found.model, found.against) == (
        "preset:chat",
        "llama-3.1-8b",
        "preset:rag",
    )


FAULTS = {
    "polices: [lru]": "there is no field polices (did you mean policies?)",
    "xylophone: red": "there is no field xylophone (kvsched run --fields lists them)",
    "points: many": "Expected `int`, got `str`: `points`",
    "points: 1": "Expected `int` >= 2: `points`",
    "trace: again": "row 2: trace is given twice",
    "policies: lru": "policies is a list: write [lru]",
    "points: [1": "not valid YAML",
    "skip_bad_rows: 3": "Expected `bool`, got `int`: `skip_bad_rows`",
    "x: !!python/object/apply:os.system ['true']": "not valid YAML",
}


@pytest.mark.parametrize("line", sorted(FAULTS))
def test_a_fault_is_said_in_one_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "e.yaml"
    file.write_text(f"trace: t\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_experiment(file)
    assert FAULTS[line] in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "fault"),
    [
        ("e.yaml", b"- a\n", "is a mapping"),
        ("e.yaml", b"", "is a mapping"),
        ("e.yaml", b"\xff\xfe\x00", "no UTF-8"),
        ("e.yaml", b"policy: lru\n", "missing required field `trace`"),
        ("e.yaml", b"a: " + b"[" * 5000, "not valid YAML"),
        ("e.json", b"{", "not valid JSON"),
        ("e.toml", b"trace = ", "not valid TOML"),
        ("e.toml", b"trace = " + b"[" * 5000, "not valid TOML"),
        ("e.yaml", b"trace: t\n? [a]\n: b\n", "row 2: a name must be plain text"),
        ("e.yaml", b'trace: "a\\0b"\n', "trace has a character that no name can have"),
        ("e.yaml", b'trace: "\\ud800"\n', "trace has a character that no name can have"),
        ("e.json", b'{"trace": "\\ud800"}', "trace has a character that no name can have"),
        ("e.json", b'{"\\ud800": 1}', "there is no field .ud800"),
        ("e.json", b'{"trace": "t", "efficiency": NaN}', "NaN is no JSON"),
        ("e.json", b'{"trace": "t", "trace": "u"}', "trace is given twice"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, data: bytes, fault: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=fault):
        read_experiment(tmp_path / name)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ends in"):
        read_experiment(tmp_path / "e.txt")
    with pytest.raises(InputError, match="cannot be read"):
        read_experiment(tmp_path / "none.yaml")


def test_what_is_embedded_names_no_folder() -> None:
    described = Experiment(trace="/a/b/t.jsonl", against="c/d.jsonl", output_dir="/o", points=5)
    assert described.embedded() == {"trace": "t.jsonl", "against": "d.jsonl", "points": 5}
    again = msgspec.convert(described.embedded(), Experiment)
    assert again.points == 5


def test_every_field_is_explained_in_help_and_schema() -> None:
    documents = field_docstrings(Experiment)["Experiment"]
    schema = experiment_schema()["$defs"]["Experiment"]["properties"]
    listed = experiment_fields()
    for field in msgspec.structs.fields(Experiment):
        assert documents[field.name]
        assert schema[field.name]["description"] == documents[field.name]
        assert f"\n{field.name}  (" in f"\n{listed}"


@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_published_schemas_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_bytes()
    assert written == msgspec.json.format(msgspec.json.encode(schemas()[name]), indent=1) + b"\n"
    jsonschema.Draft202012Validator.check_schema(json.loads(written))


def test_an_experiment_is_valid_under_its_schema() -> None:
    schema = experiment_schema()
    jsonschema.validate({"trace": "t", "policies": ["lru"], "points": 4}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"trace": "t", "colour": "red"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"trace": "t", "points": 1}, schema)
