"""The index of block names: open addressing that forgets, against a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import edited

from kvsched.cache import names as index
from kvsched.cache.state import FRESH, NAMES, RANK, Live, new_live, new_names, new_table
from kvsched.kernel.linked import AHEAD, BEHIND
from kvsched.kernel.table import NONE

ROOMY = {"slots": False}
SPACE = np.zeros(2, np.int64)


def new(numbers: int, words: int = 1) -> Live:
    names = new_names(numbers, words)
    if ROOMY["slots"]:
        # A broken index fills up; a look-up in a full one never ends.
        names = names._replace(slots=np.full(1 << 12, NONE, np.int64))
    live = new_live(new_table(numbers), names, numbers, numbers)
    # Nothing of it left in a call that is going on.
    live.counts[RANK] = 1
    return live


def path_of(live: Live, parent: int, key: int, space: Any = SPACE) -> int:
    above = index.path_of_space(space) if parent == NONE else int(live.names.path[parent])
    return index.path_below(above, key)


def name(live: Live, parent: int, key: int, space: Any = SPACE, rested: bool = True) -> int:
    keys = np.array([[key]], np.int64)
    path = path_of(live, parent, key, space)
    node = index.name(live, None, parent, keys, 0, space, path, 1, 1)
    if rested:
        index.rest(live, node)
    return node


def find(live: Live, parent: int, key: int, space: Any = SPACE) -> int:
    keys = np.array([[key]], np.int64)
    return index.find(live, parent, keys, 0, space, path_of(live, parent, key, space))


class Model:
    """What is known, in a dictionary; numbers are reused a child before its parent."""

    def __init__(self, numbers: int) -> None:
        self.live = new(numbers)
        self.numbers = numbers
        self.known: dict[tuple[int, int], int] = {}
        self.held: set[int] = set()

    def named(self, node: int) -> list[tuple[int, int]]:
        return [entry for entry, number in self.known.items() if number == node]

    def add(self, parent: int, key: int) -> None:
        if parent in self.held or parent == NONE:
            found = find(self.live, parent, key)
            assert found == self.known.get((parent, key), NONE)
            if found == NONE:
                idle = self.idle()
                full = int(self.live.names.counts[FRESH]) == int(self.live.names.counts[NAMES])
                if full and not idle:
                    return
                node = name(self.live, parent, key)
                if full:
                    assert node == idle[0]
                    (entry,) = self.named(node)
                    assert not any(above == node for above, _ in self.known)
                    del self.known[entry]
                self.known[parent, key] = node

    def hold(self, which: int) -> None:
        if self.known:
            node = list(self.known.values())[which % len(self.known)]
            if index.is_idle(self.live, node):
                index.wake(self.live, node)
                self.live.table.resident[node] = 1
                self.held.add(node)

    def let_go(self, which: int) -> None:
        if self.held:
            node = sorted(self.held)[which % len(self.held)]
            self.live.table.resident[node] = 0
            self.held.remove(node)
            if index.is_idle(self.live, node):
                index.rest(self.live, node)

    def idle(self) -> list[int]:
        links = self.live.names.idle
        ends = len(links) - 1
        found = []
        node = int(links[ends, BEHIND])
        while node != ends:
            assert links[links[node, BEHIND], AHEAD] == node
            found.append(node)
            node = int(links[node, BEHIND])
        return found

    def check(self) -> None:
        parents = {above for above, _ in self.known}
        resting = {node for node in self.known.values()
                   if node not in self.held and node not in parents}  # fmt: skip
        assert set(self.idle()) == resting
        for (parent, key), node in self.known.items():
            assert find(self.live, parent, key) == node
            assert find(self.live, parent, key + 1_000) == NONE


operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "hold", "let_go"]), st.integers(-1, 12),
              st.integers(0, 5)),
    max_size=60,
)  # fmt: skip


def play(numbers: int, steps: list[tuple[str, int, int]]) -> None:
    model = Model(numbers)
    for what, which, key in steps:
        if what == "add":
            parents = [NONE, *sorted(model.held)]
            model.add(parents[which % len(parents)], key)
        elif what == "hold":
            model.hold(which)
        else:
            model.let_go(which)
        model.check()


@given(numbers=st.integers(1, 9), steps=operations)
def test_it_is_a_dictionary(numbers: int, steps: list[tuple[str, int, int]]) -> None:
    play(numbers, steps)


@pytest.mark.parametrize("home", [0, 15, 2**31 - 1])
@given(numbers=st.integers(1, 9), steps=operations)
def test_it_is_a_dictionary_where_all_names_collide(
    home: int, numbers: int, steps: list[tuple[str, int, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "home_of", lambda *_: home)
        play(numbers, steps)


@given(numbers=st.integers(4, 9), steps=operations, spread=st.integers(1, 3))
def test_it_is_a_dictionary_where_names_crowd_at_the_end(
    numbers: int, steps: list[tuple[str, int, int]], spread: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Runs of taken slots go round the end of the table.
        patch.setattr(index, "home_of", lambda path: 2**31 - 1 - path % spread)
        play(numbers, steps)


def _crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "home_of", lambda path: 2**31 - 1 - path % 3)


def _fails(monkeypatch: pytest.MonkeyPatch) -> bool:
    generator = np.random.default_rng(5)
    monkeypatch.setitem(ROOMY, "slots", True)
    kinds = ["add", "add", "hold", "let_go"]
    for _ in range(100):
        steps = [
            (kinds[int(generator.integers(4))], int(generator.integers(-1, 12)),
             int(generator.integers(6)))
            for _ in range(60)
        ]  # fmt: skip
        try:
            play(int(generator.integers(1, 9)), steps)
        except (AssertionError, IndexError, ValueError):
            return True
    return False


def test_the_check_passes_for_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _fails(monkeypatch)
    _crowd(monkeypatch)
    assert not _fails(monkeypatch)


@pytest.mark.parametrize(
    ("function", "before", "after"),
    [
        ("hide", "((at - wanted) & mask) >= ((at - gap) & mask)", "False"),
        ("hide", "((at - wanted) & mask) >= ((at - gap) & mask)", "True"),
        ("_is", "live.table.parent[node] != parent", "False"),
        ("_is", "names.keys[node, word] != keys[row, word]", "False"),
        ("find", "at = (at + 1) & mask", "return NONE"),
        ("unname", "names.kin[above] -= 1", "pass"),
        ("name", "names.kin[parent] += 1", "pass"),
        ("is_idle", " and live.names.kin[node] == 0", ""),
    ],
)
def test_a_broken_one_is_noticed(
    function: str, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _crowd(monkeypatch)
    broken = edited(getattr(index, function), index, before, after)
    monkeypatch.setattr(index, function, broken)
    assert _fails(monkeypatch)


def test_what_left_first_is_reused_first() -> None:
    """A parent left with its child, before what left later."""
    live = new(4)
    root = name(live, NONE, 1, rested=False)
    live.table.resident[root] = 1
    child = name(live, root, 2)
    live.table.resident[root] = 0
    later, latest = name(live, NONE, 3), name(live, NONE, 4)
    assert [name(live, NONE, key) for key in (5, 6, 7, 8)] == [child, root, later, latest]
    assert [find(live, NONE, key) for key in (1, 3, 4)] == [NONE] * 3


def test_namespaces_have_roots_of_their_own() -> None:
    live = new(4)
    other = np.array([1, 2], np.int64)
    first, second = name(live, NONE, 7), name(live, NONE, 7, other)
    assert first != second
    assert (find(live, NONE, 7), find(live, NONE, 7, other)) == (first, second)


def test_homes_are_31_bits_and_spread() -> None:
    for above in (0, 1, 2**61 - 2):
        paths = [index.path_below(above, word) for word in range(-2_000, 2_000)]
        homes = [index.home_of(path) for path in paths]
        assert all(0 <= path < 2**61 for path in paths)
        assert all(0 <= home < 2**31 for home in homes)
        assert len({home & 0xFFFF for home in homes}) > 0.9 * len(homes)
    for word in (-(2**63), 2**63 - 1, 0, -1):
        assert 0 <= index.path_below(2**61 - 2, word) < 2**61


@pytest.mark.parametrize("place", range(4))
def test_every_word_of_a_key_counts(place: int) -> None:
    keys = np.zeros((2_000, 4), np.int64)
    keys[:, place] = np.arange(2_000) << 8
    homes = {index.home_of(index.path_of_key(5, keys, row)) for row in range(len(keys))}
    assert len(homes) > 1_900
    keys[:] = (np.arange(2_000) << 8)[:, None]
    homes = {index.home_of(index.path_of_key(5, keys, row)) for row in range(len(keys))}
    assert len(homes) > 1_900
