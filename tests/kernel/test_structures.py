"""The heap and the list under any sequence of moves."""

from __future__ import annotations

from heap_check import check_heap
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsched.kernel import heap
from kvsched.kernel.linked import AHEAD, BEHIND, Links, empty_links, link_behind, unlink

quick = settings(deadline=None, max_examples=150, derandomize=True)
moves = st.lists(st.integers(0, 499), max_size=150)


@quick
@given(moves=moves)
def test_heap_is_a_sorted_list(moves: list[int]) -> None:
    check_heap(heap, moves)


def test_a_push_drops_into_the_hole_of_a_root() -> None:
    """Each state of the hole: filled by a smaller, by a larger, by nobody, and by a removal."""
    for key, first in ((0, 9), (5, 1)):
        made = heap.empty_heap(10, 10)
        for node in range(4):
            heap.heap_push(made, node, node + 1, node)
        heap.heap_remove(made, 0)
        heap.heap_push(made, 9, key, 50)
        assert heap.heap_peek(made) == first
    made = heap.empty_heap(10, 10)
    heap.heap_push(made, 3, 1, 1)
    heap.heap_remove(made, 3)
    assert heap.heap_peek(made) == -1
    heap.heap_push(made, 4, 1, 2)
    heap.heap_push(made, 5, 0, 3)
    heap.heap_remove(made, 5)
    heap.heap_remove(made, 4)
    assert heap.heap_peek(made) == -1


def _walk(links: Links, side: int) -> list[int]:
    end = len(links) - 1
    found, place = [], int(links[end, side])
    while place != end:
        found.append(place)
        place = int(links[place, side])
    return found


@quick
@given(moves=moves)
def test_list_is_a_list(moves: list[int]) -> None:
    nodes = 12
    links = empty_links(nodes)
    expected: list[int] = []
    for move in moves:
        free = [node for node in range(nodes) if node not in expected]
        if free and (not expected or move % 2):
            node = free[move // 2 % len(free)]
            at = move // 7 % (len(expected) + 1)
            link_behind(links, expected[at - 1] if at else nodes, node)
            expected.insert(at, node)
        else:
            unlink(links, expected.pop(move // 2 % len(expected)))
        assert _walk(links, BEHIND) == expected
        assert _walk(links, AHEAD) == expected[::-1]
