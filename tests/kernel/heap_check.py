"""The indexed heap beside a sorted list, under pushes, peeks and removals in any order."""

from __future__ import annotations

from typing import Any

KEYS = 6


def check_heap(module: Any, moves: list[int], nodes: int = 24) -> None:
    """Raise AssertionError where the heap and the list differ.

    Each move is a number that says what to do and to whom. A peek follows only some of them, so
    that a push or a removal also meets the hole that the root's removal leaves. Keys repeat;
    ties, as ranks are, do not.
    """
    heap = module.empty_heap(nodes, nodes)
    held: list[tuple[int, int, int]] = []

    def check_peek() -> None:
        assert module.heap_peek(heap) == (held[0][2] if held else -1), "the smallest"

    for step, move in enumerate(moves):
        what, whom = move % 5, move // 5
        inside = {node for _, _, node in held}
        if what <= 1 and len(held) < nodes:
            free = [node for node in range(nodes) if node not in inside]
            node = free[whom % len(free)]
            entry = (whom % KEYS, step, node)
            module.heap_push(heap, node, entry[0], entry[1])
            held = sorted([*held, entry])
        elif what == 2 and held:
            module.heap_remove(heap, held.pop(whom % len(held))[2])
        elif what == 3 and held:
            module.heap_remove(heap, held.pop(0)[2])
        else:
            check_peek()
        inside = {node for _, _, node in held}
        assert {node for node in range(nodes) if heap.place[node] >= 0} == inside, "who is in it"
        assert int(heap.counts[0] - heap.counts[1]) == len(held), "how many are in it"
    while held:
        check_peek()
        module.heap_remove(heap, held.pop(0)[2])
    check_peek()
