"""Lanes beside sorted lists, under pushes, looks and removals in any order."""

from __future__ import annotations

from typing import Any

LANES = 3
KEYS = 6


def check_lanes(module: Any, moves: list[int], nodes: int = 24) -> None:
    """Raise AssertionError where the lanes and the lists differ. Ties do not repeat."""
    lanes = module.empty_lanes(nodes, LANES)
    held: list[list[tuple[int, int, int]]] = [[] for _ in range(LANES)]
    for step, move in enumerate(moves):
        what, whom = move % 5, move // 5
        inside = {node for lane in held for _, _, node in lane}
        if what <= 2 and len(inside) < nodes:
            free = [node for node in range(nodes) if node not in inside]
            node, lane = free[whom % len(free)], whom % LANES
            entry = (whom % KEYS, step * 7 % 1009 if whom % 2 else -step, node)
            module.lane_push(lanes, lane, node, entry[0], entry[1])
            held[lane] = sorted([*held[lane], entry])
        elif inside:
            lane = next(at % LANES for at in range(whom, whom + LANES) if held[at % LANES])
            at = 0 if what == 3 else whom % len(held[lane])
            module.lane_remove(lanes, held[lane].pop(at)[2])
        inside = {node for lane in held for _, _, node in lane}
        for lane in range(LANES):
            assert module.lane_first(lanes, lane) == (held[lane][0][2] if held[lane] else -1)
        assert {node for node in range(nodes) if module.lane_holds(lanes, node)} == inside
        check_shape(module, lanes, inside)


def check_shape(module: Any, lanes: Any, inside: set[int]) -> None:
    """A level is one more than the right's, which is no higher than the left's."""
    tree = lanes.tree

    def level(node: int) -> int:
        return 0 if node < 0 else int(tree[node, module.LEVEL])

    for node in inside:
        left, right = int(tree[node, module.LEFT]), int(tree[node, module.RIGHT])
        assert level(node) == level(right) + 1, "the level says how short the right side is"
        assert level(left) >= level(right), "the right side is the shorter"
        for below in (left, right):
            if below >= 0:
                assert tree[below, module.UP] == node, "what is below knows it"
                assert tuple(lanes.order[node]) < tuple(lanes.order[below]), "the smaller above"
