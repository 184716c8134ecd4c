"""What a user's order, policy or routing does wrong is said in one line that names it."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from serving import plain

from kvsched.foundation.blame import Suspect, blamed_on, compile_fault
from kvsched.foundation.errors import UsageError
from kvsched.policy.registry import make
from kvsched.serve import engine
from kvsched.serve import points as points_of
from kvsched.serve.orders.registry import make_order
from kvsched.serve.points import Ask, Records, run_point, run_points
from kvsched.serve.routing.base import Routing
from kvsched.serve.served import Asking, serve
from kvsched.serve.sweep import sweep

TRACE = plain([(2, 9), (3, 30), (1, 4)] * 5, session=None)
ASKED = {"model": "llama-3.1-8b", "gpu": "h100", "band": False}
ORDER = """
from typing import Any
from kvsched.serve.orders.base import QueueOrder

class Own(QueueOrder):
    name = "own"

    @staticmethod
    def queue_key(state, own, request, now):
        return {hook}

    def prepare(self, trace):
        return {prepare}
"""


class Broken(Routing):
    """A user's routing that fails."""

    name = "broken"

    def route(self, request: int, engines: Any) -> int:
        """Fail."""
        raise RuntimeError("no")


def own(folder: Path, text: str) -> str:
    file = folder / "own.py"
    file.write_text(textwrap.dedent(text))
    return f"{file}:Own"


def order(folder: Path, hook: str = "0", prepare: str = "None") -> str:
    return own(folder, ORDER.replace("{hook}", hook).replace("{prepare}", prepare))


def said(error: pytest.ExceptionInfo[UsageError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 250
    return text


def test_an_order_that_does_not_compile_is_the_users_error(tmp_path: Path) -> None:
    asked = Asking(**ASKED, scheduling_policy=order(tmp_path, "state.work.promtp[request]"))
    with pytest.raises(UsageError) as caught:
        serve(TRACE, asked, compiled=True)
    assert said(caught) == (
        "order own does not compile: Unknown attribute 'promtp' of type Work (own.py, line 10); "
        "KVSCHED_COMPILED=0 runs it as plain Python"
    )
    with pytest.raises(UsageError) as caught:
        serve(TRACE, asked, compiled=False)
    assert said(caught).startswith("order own: its hooks fail (AttributeError:")


def test_what_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="order own: its prepare fails") as caught:
        serve(
            TRACE,
            Asking(**ASKED, scheduling_policy=order(tmp_path, prepare="1 // 0")),
            compiled=False,
        )
    said(caught)
    asked = Asking(**ASKED, data_parallel_size=2, routing=Broken)
    with pytest.raises(
        UsageError, match=r"routing broken: its route fails \(RuntimeError: no\)"
    ) as caught:
        serve(TRACE, asked, compiled=False)
    said(caught)


def test_whose_file_is_named_is_to_blame(tmp_path: Path) -> None:
    class NumbaLike(Exception):  # noqa: N818  # an error of Numba's by its module alone
        pass

    NumbaLike.__module__ = "numba.core.errors"
    fault = NumbaLike('Failed in x\nNo way\n\nFile "a/own.py", line 3:\n    x')
    assert compile_fault(fault) == ("No way (own.py, line 3)", "own.py")
    assert compile_fault(ValueError("x")) is None
    mine = Suspect("order", make_order(order(tmp_path)))
    builtin = Suspect("order", make_order("fcfs"))
    here = Suspect("policy", type("Here", (), {"__module__": __name__, "label": "here"})())

    def blamed(*suspects: Suspect) -> str:
        with pytest.raises(UsageError) as caught, blamed_on(suspects, "it fails"):
            raise fault
        return said(caught)

    assert blamed(here, mine).startswith("order own does not compile")
    assert blamed(here, builtin).startswith("policy here does not compile")
    with pytest.raises(NumbaLike), blamed_on([builtin, Suspect("policy", make("lru"))], "x"):
        raise fault


def test_a_failing_point_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = order(tmp_path, "1 // 0")
    grid = {"scheduling_policy": ("fcfs", bad)}
    fine, fault = sweep(TRACE, Asking(**ASKED), grid, compiled=False, threads=1).points
    assert fine.fault is None
    assert "order own: its hooks fail" in str(fault.fault)

    def broken(trace: Any, asking: Asking, **more: Any) -> Any:
        if asking.max_num_seqs == 2:
            raise AssertionError("never")
        return serve(trace, asking, **more)

    monkeypatch.setattr(points_of, "serve", broken)
    records = Records(tmp_path / "points.jsonl")
    grid_of: dict[str, Any] = {"max_num_seqs": (1, 2)}
    again = sweep(TRACE, Asking(**ASKED), grid_of, compiled=False, threads=1, records=records)
    assert [point.fault for point in again.points] == [
        None, "internal error: AssertionError: never",
    ]  # fmt: skip
    assert len(records.points) == 1, "what is kvsched's own fault is run again"


Told = list[tuple[str, int, int]]


def test_compiling_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Told = []

    def report(what: str, done: int, count: int) -> None:
        told.append((what, done, count))

    monkeypatch.setattr(engine, "is_compiled", lambda *_: False)
    serve(TRACE, Asking(**ASKED), compiled=True, report=report)
    assert told == [("simulating", 0, 1), ("compiling", 0, 1), ("compiling", 1, 1)]
    told.clear()
    serve(TRACE, Asking(**ASKED), compiled=False, report=report)
    assert told == [("simulating", 0, 1)]
    monkeypatch.undo()
    told.clear()
    serve(TRACE, Asking(**ASKED), compiled=True, report=report)
    assert told == [("simulating", 0, 1)], "compiled already"


def test_a_sweep_tells_which_of_its_loops_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    told: Told = []
    # No loop is kept; the first request's run, which would compile it, is not made.
    monkeypatch.setattr(points_of, "is_compiled", lambda *_: False)
    monkeypatch.setattr(
        points_of, "run_point", lambda trace, ask, _compiled=None: run_point(trace, ask, False)
    )
    asks = [
        Ask({}, Asking(**ASKED, scheduling_policy=name, max_num_seqs=seqs))
        for name in ("fcfs", "spf")
        for seqs in (1, 2)
    ]
    run_points(TRACE, asks, threads=1, compiled=True, report=lambda *each: told.append(each))
    assert [each for each in told if each[0] == "compiling"] == [
        ("compiling", 0, 2), ("compiling", 1, 2), ("compiling", 1, 2), ("compiling", 2, 2),
    ]  # fmt: skip
    assert told[-1] == ("points", 4, 4)
