"""docs/simulate.md: it names every option of the command and no other, and its code runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from kvsched.cli.app import app
from kvsched.serve.summary import DEFINITIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_every_option_is_on_the_page() -> None:
    from kvsched.cli.simulate import (
        AdmissionOptions,
        EngineOptions,
        LoadOptions,
        OutputOptions,
        SearchOptions,
    )

    command = get_command(app).commands["simulate"]  # type: ignore[attr-defined]
    given = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    on_page = set(re.findall(r"`(--[a-z-]+)", TEXT))
    assert on_page <= given
    groups = (AdmissionOptions, EngineOptions, LoadOptions, SearchOptions, OutputOptions)
    fields = {name for group in groups for name in group.__dataclass_fields__}
    own = {
        name
        for parameter in command.params
        if parameter.name in fields
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("--")
    }
    assert len(own) > 40
    assert own <= on_page


def test_every_definition_is_on_the_page() -> None:
    words = TEXT.lower()
    for term in DEFINITIONS:
        assert term.lower() in words


def test_the_code_runs(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 900, "output_length": 5, "hash_ids": [1, %d]}\n'
    (tmp_path / "traffic.jsonl").write_text("".join(row % (at * 100, at + 2) for at in range(5)))
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "All 5 requests finished" in ended.stdout
    assert "Goodput(ttft_s=0.5" in ended.stdout
