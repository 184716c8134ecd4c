"""How a policy is named, and what is said where nothing fits."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
from factory import make_trace

from kvsched.foundation.errors import UsageError
from kvsched.policy import registry
from kvsched.policy.base import Policy
from kvsched.policy.fifo import FIFO
from kvsched.replay.run import replay
from kvsched.trace.generate import generate, preset

TEXTS = {
    "does not parse": ("def (", "SyntaxError"),
    "raises": ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "imports what is not there": ("import nothing_of_the_kind", "nothing_of_the_kind"),
    "leaves": ("raise SystemExit(0)", "SystemExit"),
    "is another thing": ("Own = 3", "no subclass of kvsched.Policy"),
    "has no name": ("from kvsched import Policy\nclass Own(Policy): pass", "has no name"),
    "has no such class": ("x = 1", "has no Own"),
}


@pytest.mark.parametrize("why", TEXTS)
@pytest.mark.parametrize("kind", ["file", "module"])
def test_what_will_not_do(
    why: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, said = TEXTS[why]
    module = f"own_{list(TEXTS).index(why)}"
    (tmp_path / f"{module}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    reference = f"{tmp_path / module}.py:Own" if kind == "file" else f"{module}:Own"
    with pytest.raises(UsageError) as caught:
        registry.make(reference)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"policy {reference}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("nothing", "unknown policy nothing (known: lru, fifo"),
        ("", "unknown policy "),
        (":Own", "unknown policy :Own"),
        ("nowhere.py:Own", "there is no file nowhere.py"),
        ("nowhere:Own", "cannot import nowhere"),
        (".nowhere:Own", "cannot import .nowhere"),
        ("lru:x", "cannot import lru"),
        ("lru:x=", "x must be a number"),
        ("decay:half_life_s=1:half_life_s=2", "half_life_s is given twice"),
        ("decay:half-life-s=1:half_life_s=1", "half_life_s is given twice"),
        (None, "policy None is no subclass"),
        (7, "policy 7 is no subclass"),
        (dict, "policy dict is no subclass"),
    ],
)
def test_what_is_not_there(reference: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.make(reference)
    assert said in str(caught.value)


def test_a_class_an_instance_and_a_module_name_will_do() -> None:
    made = FIFO()
    assert registry.make(made) is made
    assert type(registry.make(FIFO)) is FIFO
    assert type(registry.make("kvsched.policy.fifo:FIFO")) is FIFO
    assert registry.make("kvsched.policy.decay:Decay:half_life_s=5").label == "decay:half_life_s=5"


class Offered(FIFO):
    """A policy of another package."""

    name = "offered"


class Point:
    """What an installed package's metadata gives, as far as the registry looks."""

    def __init__(self, name: str, gives: object) -> None:
        self.name = name
        self.gives = gives

    def load(self) -> object:
        if isinstance(self.gives, BaseException):
            raise self.gives
        return self.gives


def offer(monkeypatch: pytest.MonkeyPatch, *offered: Point) -> None:
    def entry_points(*, group: str, name: str | None = None) -> list[Point]:
        assert group == "kvsched.policies"
        return [point for point in offered if name in (None, point.name)]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)


def test_an_installed_package_offers_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Point("offered", Offered), Point("lru", Offered))
    assert registry.names().count("lru") == 1, "a built-in name stays what it is"
    assert registry.find("lru").__name__ == "LRU"
    assert registry.names()[-1] == "offered"
    trace = make_trace([(1,), (2,), (1,), (3,), (1,)], [1] * 5, [0] * 5)
    result = replay(trace, "offered", 2, compiled=False)
    assert result.summary()["policy"] == "offered"
    assert result.request_hits.tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        (ImportError("no such module"), "ImportError: no such module"),
        (AttributeError("no such class"), "AttributeError: no such class"),
        (SyntaxError("what\nis this"), "SyntaxError: what is this"),
        (Policy, "has no name"),
        (dict, "no subclass"),
    ],
)
def test_what_a_package_offers_may_not_load(
    gives: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, Point("offered", gives))
    with pytest.raises(UsageError, match=said):
        registry.make("offered")


BODIES = {
    "parameters = None": "parameters must be a dict",
    "parameters = ['a']": "parameters must be a dict",
    "parameters = {'a': 1.0}": "parameters must be a dict",
    "name = 5": "no printable text",
    "name = 'a\\nb'": "no printable text",
    "name = '\\ud800'": "no printable text",
    "def __init__(self, x): pass": "cannot be made",
    "def __init__(self): pass": "cannot be made",
    "def prepare(self, setup): raise RuntimeError('boo\\nline 2')": "its prepare fails",
    "def prepare(self, setup): raise SystemExit('bye')": "its prepare fails",
    "def prepare(self, setup): return None": "its hooks fail",
}


@pytest.mark.parametrize("body", BODIES)
def test_a_class_that_will_not_do_is_said_in_one_line(tmp_path: Path, body: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from kvsched import RankedPolicy\n\n\nclass Odd(RankedPolicy):\n"
        f"    name = 'odd'\n    {body}\n"
    )
    trace = make_trace([(1,), (2,)], [1] * 2, [0] * 2)
    with pytest.raises(UsageError, match=BODIES[body]) as caught:
        replay(trace, f"{file}:Odd", 1, compiled=False)
    assert "\n" not in str(caught.value)


def test_the_example_with_a_state_is_what_it_says() -> None:
    trace = generate(preset("chat", requests=500), 1)
    reference = f"{Path(__file__).parents[2] / 'examples' / 'seen_again.py'}:SeenAgain"
    found = replay(trace, f"{reference}:enough=3", 600)
    assert found.policy.label == "seen-again:enough=3"
    assert (
        found.hit_blocks == replay(trace, f"{reference}:enough=3", 600, compiled=False).hit_blocks
    )
    # Where no count is ever enough, or every one is, it is LRU.
    lru = replay(trace, "lru", 600).request_hits.tolist()
    for enough in (1, 1_000_000):
        assert replay(trace, f"{reference}:enough={enough}", 600).request_hits.tolist() == lru
    assert found.request_hits.tolist() != lru
