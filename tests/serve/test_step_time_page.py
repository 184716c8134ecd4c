"""The numbers in docs/step-time.md are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from kvsched.catalog import find_accelerator, load_model
from kvsched.serve.fitted import read_fit
from kvsched.serve.roofline import ASSUMED, roofline

PAGE = (Path(__file__).parents[2] / "docs" / "step-time.md").read_text()
STEPS = (([1], [1000]), ([1] * 64, [4000] * 64), ([8192], [0]), ([512], [30_000]))
ROWS = re.findall(r"^\| (\S+), (\d) × (\S+) \|(.*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_the_table_is_what_the_roofline_gives(row):
    name, ranks, device, cells = row
    step = roofline(load_model(name), find_accelerator(device), tensor_parallel_size=int(ranks))
    found = [
        " / ".join(f"{each * 1e3:.3g}" for each in step.seconds(*case).values()) for case in STEPS
    ]
    assert [cell.strip() for cell in cells.split("|")] == found


def test_the_table_is_there():
    assert len(ROWS) == 6


@pytest.mark.parametrize("field", ASSUMED["mid"].__struct_fields__)
def test_the_assumptions_are_those_of_the_page(field):
    line = next(each for each in PAGE.splitlines() if each.startswith(f"| `{field}` |"))
    cells = [cell.strip() for cell in line.split("|")[2:5]]
    scale = {"µs": 1e-6, "ms": 1e-3}
    for band, cell in zip(("low", "mid", "high"), cells, strict=True):
        value = getattr(ASSUMED[band], field)
        if cell in ("yes", "no"):
            assert value is (cell == "yes")
            continue
        number, _, unit = cell.partition(" ")
        assert value == pytest.approx(float(number) * scale.get(unit, 1.0)), (band, cell)


def test_the_file_of_the_page_is_read(tmp_path):
    start = PAGE.index('    {\n     "kind"')
    text = PAGE[start : PAGE.index("    }\n", start) + 6]
    path = tmp_path / "h100.json"
    path.write_text(text)
    assert read_fit(path).step_time().seconds([1], [100])["mid"] == 0.006 + 101 * 5e-8
    assert msgspec.json.decode(text)["coefficients"]["knee_tokens"] == 300
