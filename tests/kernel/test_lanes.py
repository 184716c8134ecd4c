"""Lanes under any sequence of moves."""

from __future__ import annotations

import inspect
import random
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes_check import check_lanes

from kvsched.kernel import lanes

DRAWN = random.Random(3)  # noqa: S311  # not for secrets
MOVES = [DRAWN.randrange(500) for _ in range(600)]


@settings(deadline=None, max_examples=150, derandomize=True)
@given(moves=st.lists(st.integers(0, 499), max_size=150))
def test_lanes_are_sorted_lists(moves: list[int]) -> None:
    check_lanes(lanes, moves)


BROKEN = {
    "a merge that looks at one side only": ("if _before(lanes, two, below):", "if False:"),
    "a tie that nobody breaks": (
        "lanes.order[one, TIE] < lanes.order[two, TIE]",
        "lanes.order[one, TIE] < 0",
    ),
    "a right side that grows": ("if on_left < on_right:", "if on_left < 0:"),
    "a removal that does not say what is above": (
        "        tree[below, UP] = above\n",
        "        tree[below, UP] = tree[below, UP]\n",
    ),
    "a removal that settles nothing": ("while above >= 0:", "while above >= 1000:"),
    "a node that stays": ("    tree[node, UP] = NONE\n    if below", "    if below"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_lanes_are_caught(what: str) -> None:
    before, after = BROKEN[what]
    source = inspect.getsource(lanes)
    assert source.count(before) == 1
    broken = types.ModuleType("broken")
    exec(compile(source.replace(before, after), "broken", "exec"), vars(broken))  # noqa: S102  # ours
    with pytest.raises(AssertionError):
        check_lanes(broken, MOVES)


def test_the_real_ones_pass_the_same_moves() -> None:
    check_lanes(lanes, MOVES)


def test_a_row_of_growing_keys_stays_shallow() -> None:
    """Ten thousand in order, taken from the front: no path to the right is long."""
    many = 10_000
    made = lanes.empty_lanes(many, 1)
    for node in range(many):
        lanes.lane_push(made, 0, node, node, 0)
    assert int(made.tree[:, lanes.LEVEL].max()) <= many.bit_length()
    for node in range(many):
        assert lanes.lane_first(made, 0) == node
        lanes.lane_remove(made, node)
