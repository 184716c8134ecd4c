"""The indexed heap beside a sorted list, under random pushes, peeks and removals."""

from __future__ import annotations

from typing import Any

import numpy as np


def check_heap(module: Any, seed: int, steps: int = 600, nodes: int = 40) -> None:
    """Raise AssertionError where the heap and the list differ. Keys repeat; ties are unique."""
    random = np.random.default_rng(seed)
    heap = module.empty_heap(nodes, nodes)
    held: dict[int, tuple[int, int]] = {}
    for step in range(steps):
        expected = min(held, key=lambda node: held[node]) if held else -1
        choice = random.integers(0, 4)
        if choice <= 1 and len(held) < nodes:
            free = [node for node in range(nodes) if node not in held]
            node = int(random.choice(free))
            held[node] = (int(random.integers(0, 6)), step)
            module.heap_push(heap, node, *held[node])
        elif choice == 2 and held:
            node = int(random.choice(list(held)))
            module.heap_remove(heap, node)
            del held[node]
        elif held:
            assert module.heap_peek(heap) == expected
            module.heap_remove(heap, expected)
            del held[expected]
        if random.integers(0, 2):
            expected = min(held, key=lambda node: held[node]) if held else -1
            assert module.heap_peek(heap) == expected
    while held:
        expected = min(held, key=lambda node: held[node])
        assert module.heap_peek(heap) == expected
        module.heap_remove(heap, expected)
        del held[expected]
    assert module.heap_peek(heap) == -1
