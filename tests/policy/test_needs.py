"""A policy says what it needs of a request; what a trace lacks is said before anything runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import pytest
from factory import make_trace
from typer.testing import CliRunner

from kvsched.cli.app import app
from kvsched.foundation.errors import UsageError
from kvsched.policy import registry
from kvsched.policy.base import Setup
from kvsched.policy.fifo import FIFO
from kvsched.policy.needs import HOW_TO_GIVE
from kvsched.replay import engine as engine_module
from kvsched.replay.run import replay
from kvsched.replay.sweep import sweep
from kvsched.study import curves
from kvsched.study import run as study_module
from kvsched.study.run import Options, study
from kvsched.trace.model import Labels, Trace

TRACE = make_trace([(1, 2), (3,), (1, 2), (4,)], [1] * 4, [0] * 4)
BARE = dataclasses.replace(TRACE, session=None, type=None, turn=None, priority=None)


class Needy(FIFO):
    """Needs two columns."""

    name = "needy"
    needs = ("type", "turn")

    def prepare(self, setup: Setup) -> Any:
        for name in self.needs:
            setup.column(name, self.label)
        return super().prepare(setup)


def test_a_trace_that_has_them_will_do() -> None:
    needy, fifo = replay(TRACE, Needy, 2), replay(TRACE, "fifo", 2)
    assert needy.request_hits.tolist() == fifo.request_hits.tolist()


@pytest.mark.parametrize("name", ["type", "turn"])
def test_a_column_that_is_missing_is_named_with_its_trace(name: str) -> None:
    trace = dataclasses.replace(TRACE, **{name: None})
    with pytest.raises(UsageError) as caught:
        replay(trace, Needy, 2)
    assert "\n" not in str(caught.value)
    said = f"policy needy needs `{name}` of every request, which the trace made does not have ("
    assert str(caught.value).startswith(said)
    assert f"`{name}`" in HOW_TO_GIVE[name]
    assert HOW_TO_GIVE[name] in str(caught.value)


def test_a_sweep_says_so_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[sweep.__module__]
    monkeypatch.setattr(module, "replay", lambda *_: pytest.fail("it ran"))
    with pytest.raises(UsageError, match="needs `type`"):
        sweep(BARE, ["lru", Needy], [2])


def test_a_default_comparison_leaves_it_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(study_module, "DEFAULT_POLICIES", ("fifo", f"{__name__}:Needy"))
    monkeypatch.setattr(engine_module, "make", made_here)
    bare, full = study(BARE, 2), study(TRACE, 2)
    assert [row.policy for row in full.policies] == ["lru", "fifo", "needy", "opt-fit", "opt"]
    assert [row.policy for row in bare.policies] == ["lru", "fifo", "opt-fit", "opt"]
    assert bare.config["policies"] == ["lru", "fifo", "opt-fit", "opt"]
    assert bare.warnings == ("needy was left out: the trace does not have `type`, `turn`.",)
    assert full.warnings == ()


@pytest.mark.parametrize(
    "options", [Options(policies=("needy",)), Options(policy="needy")], ids=["compared", "own"]
)
def test_a_comparison_by_name_is_an_error(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "make", made_here)
    monkeypatch.setattr(curves, "exact_curve", lambda _: pytest.fail("it ran"))
    with pytest.raises(UsageError, match="policy needy needs `type`"):
        study(BARE, 2, options=options)


def made_here(policy: Any) -> Any:
    return Needy() if "needy" in str(policy).lower() else registry.make(policy)


def test_a_live_cache_gives_columns_of_its_own() -> None:
    turns, names = np.array([7, 8]), Labels(np.array([1, 0], np.int32), ("a", "b"))
    live = Setup(3, 2, 16, None, {"turn": turns, "type": names})
    assert live.column("turn", "needy") is turns
    assert live.column("type", "needy").tolist() == [1, 0]
    assert live.labels("type", "needy").names == ("a", "b")
    with pytest.raises(UsageError, match="needs `session` of every request, which this cache"):
        live.column("session", "needy")
    with pytest.raises(UsageError, match="`turn` is no column of names"):
        live.labels("turn", "needy")
    assert Setup(3, 2, 16, TRACE, {"turn": turns}).column("turn", "needy") is turns


def test_every_column_of_requests_is_known() -> None:
    fields = {field.name for field in dataclasses.fields(Trace)}
    assert set(HOW_TO_GIVE) < fields
    others = {"starts", "chains", "parent", "depth", "tokens", "key", "block_size", "origin"}
    assert fields - set(HOW_TO_GIVE) == others


@pytest.mark.parametrize("needs", ["type", ("kind",), ["type"]])
def test_needs_are_a_tuple_of_columns(needs: Any) -> None:
    with pytest.raises(UsageError, match="needs must be a tuple of columns"):
        registry.make(type("Odd", (FIFO,), {"name": "odd", "needs": needs}))


def test_the_list_of_policies_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find", lambda name: Needy)
    told = CliRunner().invoke(app, ["policies", "needy"])
    assert "needs of every request: type, turn" in told.output
    told = CliRunner().invoke(app, ["policies", "needy", "--format", "json"])
    assert json.loads(told.output)[0]["needs"] == ["type", "turn"]
