"""The heap and the list under random use."""

from __future__ import annotations

import numpy as np
import pytest
from heap_check import check_heap

from kvsched.kernel import heap
from kvsched.kernel.linked import AHEAD, BEHIND, empty_links, link_behind, unlink


@pytest.mark.parametrize("seed", range(20))
def test_heap_is_a_sorted_list(seed: int) -> None:
    check_heap(heap, seed)


@pytest.mark.parametrize("seed", range(5))
def test_list_is_a_list(seed: int) -> None:
    random = np.random.default_rng(seed)
    nodes = 30
    links = empty_links(nodes)
    expected: list[int] = []
    for _ in range(500):
        free = [node for node in range(nodes) if node not in expected]
        if free and (not expected or random.integers(0, 2)):
            node = int(random.choice(free))
            at = int(random.integers(0, len(expected) + 1))
            link_behind(links, expected[at - 1] if at else nodes, node)
            expected.insert(at, node)
        else:
            node = int(random.choice(expected))
            unlink(links, node)
            expected.remove(node)
        forward, place = [], int(links[nodes, BEHIND])
        while place != nodes:
            forward.append(place)
            place = int(links[place, BEHIND])
        backward, place = [], int(links[nodes, AHEAD])
        while place != nodes:
            backward.append(place)
            place = int(links[place, AHEAD])
        assert forward == expected
        assert backward == expected[::-1]
