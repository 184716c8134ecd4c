"""The page on trace formats: it knows every format, and its example is a reader like any other."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Sample, json_lines
from test_every_format import test_a_fault_in_one_field as check_a_fault
from test_every_format import test_cut_anywhere as check_cuts
from test_fuzz import QUICK, attempt, changed_rows

from kvsched.foundation.errors import InputError
from kvsched.trace import formats
from kvsched.trace.load import load_trace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trace-formats.md"
ROWS = [{"at": 3.5 + i, "prompt": 100, "blocks": [7, 8 + i]} for i in range(3)]
SAMPLE = Sample("ours", ROWS, {"at": "time", "prompt": "tokens", "blocks": "ids"}, clock="at")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module, registered."""
    (text,) = re.findall(r"^```python\n# ours.py\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    module = ModuleType("ours")
    exec(compile(text, "ours.py", "exec"), module.__dict__)  # noqa: S102  # it is what is tested
    monkeypatch.setattr(formats, "FORMATS", (module.FORMAT, *formats.FORMATS))
    return module


def test_every_format_has_its_heading() -> None:
    headings = set(re.findall(r"^## (\S+)$", PAGE.read_text(), re.MULTILINE))
    assert headings == {known.name for known in formats.FORMATS}


@pytest.mark.usefixtures("ours")
def test_the_example_reads(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(json_lines(ROWS))
    trace = load_trace(path)
    assert trace.origin.format == "ours"
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.chains.tolist() == [0, 1, 0, 2, 0, 3]
    assert trace.tokens.tolist() == [64, 36, 36, 36]
    path.write_bytes(SAMPLE.changed(1, "prompt", 129))
    with pytest.raises(InputError, match="row 2: 2 blocks of 64 tokens do not make 129"):
        load_trace(path)
    assert len(load_trace(path, skip_bad_rows=True)) == 2


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("value", [None, ..., "x", -1, float("nan"), 10**40])
def test_the_example_takes_the_shared_checks(value: object, tmp_path: Path) -> None:
    check_a_fault(SAMPLE, "prompt", value, tmp_path)
    check_cuts(SAMPLE, tmp_path)


@pytest.mark.usefixtures("ours")
@QUICK
@given(draw=st.data(), skip=st.booleans())
def test_the_example_is_fuzzed(
    draw: st.DataObject, skip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    attempt(path, draw.draw(changed_rows(SAMPLE)), format="ours", skip_bad_rows=skip)
