from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from fake_engine import MODEL, fake_engine

from kvsched.engine.openai_answer import Fault
from kvsched.evidence.bench.load_settings import LoadSettings
from kvsched.evidence.bench.measured import ErrorKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"


@pytest.fixture(scope="module")
def section() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text.partition("## The client\n")[2].partition("\n## ")[0]


def test_the_example_runs(section: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    told: dict[str, Any] = {}
    with fake_engine() as engine:
        code = code.replace("http://127.0.0.1:8000", engine.url).replace("my-model", MODEL)
        exec(code, told)  # noqa: S102  # as a reader would
    assert [outcome.error for outcome in told["outcomes"]] == [None] * 20
    assert capsys.readouterr().out.startswith("LagFacts(p50_ms=")


def test_every_kind_of_error_is_on_the_page(section: str) -> None:
    kinds = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert tuple(kinds) == get_args(ErrorKind)
    assert get_args(Fault) == get_args(ErrorKind)


def test_settings_on_the_page_exist(section: str) -> None:
    named = {"ttft_timeout_s", "timeout_s", "retries", "longest_retry_wait_s", "workers"}
    named |= {"stop_after_refusals", "concurrency", "low_priority_first", "extra_body"}
    assert named == set(LoadSettings.__dataclass_fields__)
    assert not {name for name in named if f"`{name}`" not in section and name not in section}
