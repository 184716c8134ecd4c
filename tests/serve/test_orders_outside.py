"""Orders by name, with parameters, and a user's own."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from serving import plain
from test_orders import order_of

from kvsched.foundation.errors import UsageError
from kvsched.serve.orders import tenant_fair
from kvsched.serve.orders.base import HOOKS, QueueOrder
from kvsched.serve.orders.registry import find_order, make_order, order_names
from kvsched.serve.orders.tenant_fair import TenantFair
from kvsched.serve.state import Progress, Work
from kvsched.trace.model import Labels

EXAMPLE = Path(__file__).parents[2] / "examples" / "patient_shortest.py"
PAGE = Path(__file__).parents[2] / "docs" / "orders.md"


def test_every_order_says_what_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in order_names():
        order = find_order(name)
        assert order.name == name
        assert order.source != "user"
        assert order.summary().endswith(".")
        assert f"| `{name}` |" in page
        assert set(order.hooks()) == set(HOOKS)


def test_the_page_says_what_hooks_see() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for kind, found in (("work", Work), ("progress", Progress)):
        table = page.split(f"| `state.{kind}` |")[1].split("\n\n")[0]
        assert set(re.findall(r"`(\w+)(?:\[[^`]*\])?`", table)) - {"chains"} == set(
            found._fields
        ) - {"chains"}
    assert "--scheduling-policy my_order.py:Mine" in page


def test_the_example_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    monkeypatch.chdir(PAGE.parents[1])
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    asks = plain([(1, 5), (9, 5), (2, 5)], session=None)
    monkeypatch.setattr("kvsched.trace.load.load_trace", lambda _: asks)
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102  # the page's own example
    assert names["found"].finished.all()
    assert names["served"].result.config["scheduling_policy"].startswith("patient-shortest")


def test_labels_are_what_makes_the_same() -> None:
    for label in (
        "fcfs",
        "edf:ttft_s=2.5",
        "lpm:longest=3:same_prefix=0",
        "tenant-fair:generated_cost=1:weight.b-1=2",
    ):
        assert make_order(label).label == label
        assert make_order(make_order(label).label).label == label
    assert make_order("edf:ttft-s=2.5").label == "edf:ttft_s=2.5"
    assert make_order(TenantFair(weights={"a": 1, "b": 3})).label == "tenant-fair:weight.b=3"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("lifo", r"unknown order lifo \(known: fcfs, priority, lpm, spf, edf, "),
        ("edf:slo=1", r"order edf has no parameter slo \(known: ttft_s\)"),
        ("edf:ttft_s=-1", "order edf: ttft_s must be ≥ 0, not -1"),
        ("edf:ttft_s=soon", "order edf:ttft_s=soon: ttft_s must be a number, not 'soon'"),
        ("edf:ttft_s=1:ttft-s=2", "ttft_s is given twice"),
        ("edf=1", "parameters are joined to their order by colons, as in edf:ttft_s=2"),
        ("fcfs:ttft_s=1", r"order fcfs has no parameter ttft_s \(known: none\)"),
        ("none.such:Order", "order none.such:Order: cannot import none.such"),
        ("kvsched.serve.orders.base:Nobody", "has no Nobody"),
        ("kvsched.policy.lru:LRU", "is no subclass of kvsched.serve.orders.base.QueueOrder"),
        ("none.py", "order none.py: name its class too, as in none.py:MyOrder"),
        ("none.py:Order", "order none.py:Order: there is no file none.py"),
        ("tenant-fair:weight.a=0", "weight.a must be from 0.01 to 100, not 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(reference: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as told:
        make_order(reference)
    assert "\n" not in str(told.value)


def test_columns_that_a_trace_lacks() -> None:
    asks = plain([(1, 5)] * 3)
    with pytest.raises(UsageError, match=r"order tenant-fair needs `tenant` .* made does not have"):
        order_of(asks, "tenant-fair")
    named = dataclasses.replace(asks, tenant=Labels(np.zeros(3, np.int32), ("a",)))
    with pytest.raises(UsageError, match="the trace has no tenant 'b'"):
        order_of(named, "tenant-fair:weight.b=2")


def test_an_order_from_a_file() -> None:
    asks = plain([(1, 5), (9, 5), (2, 5), (1, 5)], [0, 1, 0, 1])
    # 144 tokens at 1 s, 32 at 1 s, 16 at 2 s; a second is worth 1,000, 10 or nothing.
    assert order_of(asks, f"{EXAMPLE}:PatientShortest") == [0, 2, 1, 3]
    assert order_of(asks, f"{EXAMPLE}:PatientShortest:tokens-per-s=10") == [0, 3, 2, 1]
    label = make_order(f"{EXAMPLE}:PatientShortest:tokens_per_s=10").label
    assert label == "patient-shortest:tokens_per_s=10"


def test_a_file_that_is_no_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from kvsched.serve.orders.base import QueueOrder\n"
        "class Unnamed(QueueOrder): pass\n"
        "class Needy(QueueOrder):\n    name = 'needy'\n    needs = ('mood',)\n"
        "class Odd(QueueOrder):\n    name = 'odd'\n    parameters = {'a': 1}\n"
        "class Raises(QueueOrder):\n    name = 'raises'\n"
        "    def __init__(self): raise ValueError('not\\ntoday')\n"
    )
    for name, said in (
        ("Unnamed", "has no name: set the class attribute `name`"),
        ("Needy", r"needs must be a tuple of columns \(time_s, "),
        ("Odd", "parameters must be a dict of name to Parameter"),
        ("Raises", r"cannot be made \(ValueError: not today\)"),
        ("Nobody", "has no Nobody"),
    ):
        with pytest.raises(UsageError, match=said):
            make_order(f"{path}:{name}")


@pytest.mark.parametrize("gone", range(4))
def test_who_is_turned_away_leaves_the_queue(gone: int) -> None:
    codes = Labels(np.array([0, 0, 1, 0], np.int32), ("a", "b"))
    asks = dataclasses.replace(plain([(1, 5)] * 4), tenant=codes)
    nothing = np.zeros(4, np.int64)
    progress = SimpleNamespace(
        preemptions=nothing, tie=np.arange(4), computed=nothing, tokens=np.full(4, 16)
    )
    state: Any = SimpleNamespace(progress=progress, work=SimpleNamespace(prompt=np.full(4, 16)))
    for name, expected in (("tenant-fair", [0, 2, 1, 3]), ("lpm", [0, 1, 2, 3])):
        order = find_order(name)
        own = order().prepare(asks)
        for request in range(4):
            order.on_queued(state, own, request, 0.0)
        order.on_left(state, own, gone, 0.0)
        served = []
        for _ in range(3):
            head = int(own.queue[own.counts[0]]) if name == "lpm" else -1
            head = order.next_waiting(state, own, 0.0) if name == "tenant-fair" else head
            served.append(head)
            order.on_admitted(state, own, head, 0.0)
        assert sorted(served) == [request for request in range(4) if request != gone]
        if gone == 3:
            assert served == expected[:3]
        if name == "tenant-fair":
            assert order.next_waiting(state, own, 0.0) == -1
            assert own.counter.sum() == 3 * 16 * tenant_fair.UNIT, "who left is not charged"


class Astray(QueueOrder):
    """It names a request that does not wait."""

    name = "astray"
    picks = True

    @staticmethod
    def next_waiting(state: Any, own: Any, now: float) -> int:
        return int(own[0])

    def prepare(self, trace: Any) -> Any:
        return np.array([self.which])

    def __init__(self, which: int = 0) -> None:
        super().__init__()
        self.which = which


@pytest.mark.parametrize("which", [1, 7, -2])
def test_an_order_that_names_one_who_does_not_wait(which: int) -> None:
    asks = plain([(1, 5)] * 3, [0, 9, 9])
    with pytest.raises(UsageError, match="the order named a request that does not wait"):
        order_of(asks, Astray(which))
