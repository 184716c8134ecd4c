"""A study's curves: which capacities, which policies are swept, what each curve says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from kvsched.replay.curve import LRUCurve, lru_curve
from kvsched.replay.engine import GENERIC, Rules
from kvsched.replay.sweep import Point, capacity_grid
from kvsched.study.result import Curve, Knee, Target
from kvsched.study.targets import Gib, exact_targets, grid_targets, knee
from kvsched.trace.model import Trace

DRAWN_POINTS = 240
"""Points of the exact LRU curve that the result keeps."""


def exact_curve(rules: Rules) -> LRUCurve | None:
    """LRU at every capacity from one pass; None where no pass gives it. O(B).

    An engine's rules forbid it too: what a running request holds and cannot hit takes room.
    """
    exact = rules.name == GENERIC and not rules.trace.unequal
    return lru_curve(rules.trace) if exact else None


def choose_grid(
    rules: Rules, curve: LRUCurve | None, points: int, include: Iterable[int]
) -> list[int]:
    """Choose capacities where the trace's hits change, ascending. O(B).

    Under an engine's rules those where reuse of what requests hold would change; where blocks
    are unequal, those of a cache that holds as many nodes of the mean size.
    """
    trace = rules.trace
    if curve is not None:
        return capacity_grid(curve, points, include)
    if not trace.unequal:
        held = rules.held_trace
        whole = dataclasses.replace(held, input_tokens=held.chain_blocks * held.block_size)
        return capacity_grid(lru_curve(whole), points, include)
    mean = max(1, int(trace.tokens.mean()))
    alike = dataclasses.replace(trace, block_size=mean)
    blocks = capacity_grid(lru_curve(alike), points)
    asked = set(include)
    return sorted({size * mean for size in blocks} | asked)


def swept(labels: Iterable[str], curve: LRUCurve | None) -> list[str]:
    """Those of the policies that need a replay a capacity."""
    return [label for label in labels if label != "lru" or curve is None]


def drawn(
    trace: Trace, curve: LRUCurve | None, grid: Sequence[int], points: dict[str, list[Point]]
) -> tuple[Curve, ...]:
    """Return every policy's curve, LRU's first. The exact one is thinned for drawing."""
    found = [_lru_drawn(trace, curve, grid)] if curve is not None else []
    return (*found, *(_drawn(label, points[label]) for label in points))


def _lru_drawn(trace: Trace, curve: LRUCurve, grid: Sequence[int]) -> Curve:
    """Choose points of the exact curve: evenly spaced in capacity's logarithm, the grid's too."""
    spaced = np.rint(np.geomspace(1, max(trace.total_nodes, 1), DRAWN_POINTS)).astype(np.int64)
    blocks = sorted({int(b) for b in spaced} | set(grid))
    hits = [curve.at(block) for block in blocks]
    return Curve(
        policy="lru",
        exact_everywhere=curve.exact,
        capacity_blocks=tuple(blocks),
        hit_blocks=tuple(blocks for blocks, _ in hits),
        hit_tokens=tuple(tokens for _, tokens in hits),
        evictions=tuple(curve.evictions(block) for block in blocks),
    )


def _drawn(label: str, points: list[Point]) -> Curve:
    return Curve(
        policy=label,
        exact_everywhere=False,
        capacity_blocks=tuple(point.capacity_blocks for point in points),
        hit_blocks=tuple(point.hit_blocks for point in points),
        hit_tokens=tuple(point.hit_tokens for point in points),
        evictions=tuple(point.evictions for point in points),
    )


def targets(
    curve: LRUCurve | None, points: dict[str, list[Point]], ceiling_tokens: int, gib: Gib
) -> list[Target]:
    """Return the capacities that reach shares of the ceiling, policy by policy, LRU first."""
    found = exact_targets(curve, gib) if curve is not None else []
    for label, swept_points in points.items():
        found += grid_targets(label, swept_points, ceiling_tokens, gib)
    return found


def knees(
    curve: LRUCurve | None, points: dict[str, list[Point]], prompt_tokens: int, gib: Gib
) -> list[Knee]:
    """Return where each policy's curve bends, LRU first."""
    found = []
    if curve is not None:
        found.append(knee("lru", curve.capacities, curve.hit_tokens, prompt_tokens, gib))
    for label, swept_points in points.items():
        blocks = np.array([point.capacity_blocks for point in swept_points])
        hits = np.array([point.hit_tokens for point in swept_points])
        found.append(knee(label, blocks, hits, prompt_tokens, gib))
    return found
