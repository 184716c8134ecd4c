"""docs/policies.md says what a replay says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvsched.policy.registry import names

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    """The script that writes the page."""
    sys.path.insert(0, str(ROOT / "bench"))
    spec = importlib.util.spec_from_file_location("policies_page", ROOT / "bench/policies_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["policies_page"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "bench"))


def without_times(table: list[str]) -> list[str]:
    return [line.rsplit("|", 2)[0] for line in table]


def written(name: str) -> list[str]:
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    part = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("|")]


def test_the_table_is_what_replays_give(page: ModuleType) -> None:
    trace = page.TRACES["preset:chat"]()
    rows = page.measure(trace, timed=False)
    assert without_times(page.table(trace, rows)) == without_times(written("preset:chat"))


def test_every_policy_is_on_it_for_every_trace(page: ModuleType) -> None:
    for name in page.TRACES:
        table = written(name)
        for policy in names():
            assert any(line.startswith((f"| {policy} ", f"| {policy}:")) for line in table), policy
