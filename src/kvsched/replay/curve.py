"""The exact LRU curve: every capacity from one pass."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.foundation.notebook import facts
from kvsched.trace.model import Trace
from kvsched.trace.sample import SampledTrace

MOST_ENTRIES = 1 << 22
"""Entries of a curve from a sample; more capacities than that are told in steps."""


@dataclass(frozen=True, eq=False, repr=False)
class LRUCurve:
    """What LRU hits at every capacity from 0 to the number of nodes, N.

    From a sample of very many nodes, what it hits at every ``step``-th capacity.
    """

    trace: Trace
    hit_blocks: NDArray[np.int64]
    """(N+1,) hit blocks at each capacity in blocks."""
    hit_tokens: NDArray[np.int64]
    """(N+1,) hit tokens."""
    step: int = 1
    """Blocks of capacity from one entry to the next."""

    @property
    def exact(self) -> bool:
        """Whether it is no estimate from a sample."""
        return self.trace.references == self.trace.total_references

    @property
    def capacities(self) -> NDArray[np.int64]:
        """(N+1,) the capacity in blocks that each entry is for."""
        return np.arange(len(self.hit_blocks), dtype=np.int64) * self.step

    def at(self, capacity_blocks: int) -> tuple[int, int]:
        """Return hit blocks and hit tokens at a capacity; between two entries, in line. O(1)."""
        last = len(self.hit_blocks) - 1
        entry, over = divmod(min(capacity_blocks, last * self.step), self.step)
        blocks, tokens = int(self.hit_blocks[entry]), int(self.hit_tokens[entry])
        if over:
            blocks += (int(self.hit_blocks[entry + 1]) - blocks) * over // self.step
            tokens += (int(self.hit_tokens[entry + 1]) - tokens) * over // self.step
        return blocks, tokens

    @property
    def total_blocks(self) -> int:
        """All block references."""
        return self.trace.total_references

    @property
    def total_tokens(self) -> int:
        """Tokens that the chains cover."""
        return int(self.trace.chain_tokens.sum())

    @property
    def ceiling_blocks(self) -> int:
        """Hit blocks of an unlimited cache."""
        return int(self.hit_blocks[-1])

    @property
    def ceiling_tokens(self) -> int:
        """Hit tokens of an unlimited cache."""
        return int(self.hit_tokens[-1])

    def __repr__(self) -> str:
        return (
            f"<LRUCurve of {self.trace.origin.source}: ceiling {self.ceiling_blocks:,} of "
            f"{self.total_blocks:,} blocks>"
        )

    def _repr_html_(self) -> str:
        shares = {
            f"blocks for {share:.0%} of the ceiling": self.capacity_for(share * self.ceiling_tokens)
            for share in (0.5, 0.8, 0.9, 0.95, 1.0)
        }
        return facts("LRU curve", {"ceiling, hit blocks": self.ceiling_blocks, **shares})

    @functools.cached_property
    def _longest_first(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = np.sort(self.trace.prefix_blocks(self.trace.chain_blocks))
        return lengths, np.concatenate([[0], np.cumsum(lengths)])

    def evictions(self, capacity_blocks: int) -> int:
        """Evictions at a capacity: blocks stored minus blocks left at the end. O(log R).

        A chain longer than the cache stores only its first ``capacity_blocks``.
        """
        lengths, sums = self._longest_first
        fit = int(np.searchsorted(lengths, capacity_blocks, side="right"))
        touched = int(sums[fit]) + (len(lengths) - fit) * capacity_blocks
        hits, _ = self.at(capacity_blocks)
        return max(touched - hits - min(capacity_blocks, self.trace.total_nodes), 0)

    def capacity_for(self, hit_tokens: float) -> int | None:
        """Smallest capacity in blocks that hits at least ``hit_tokens``, or None. O(log N)."""
        if hit_tokens > self.ceiling_tokens:
            return None
        return int(np.searchsorted(self.hit_tokens, hit_tokens)) * self.step


@hot
def _distances(
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    last_tokens: NDArray[np.int64],
    block_size: int,
    last: NDArray[np.int32],
    held: NDArray[np.int32],
    steps: NDArray[np.int64],
    missing: NDArray[np.int64],
) -> None:
    """Fill the histogram of LRU positions, as differences, and the tokens it lacks.

    Under LRU the cache of C blocks holds the first C nodes in the order (last access, shallow
    first). Along a chain the last access never rises, so it falls into runs of one request
    each, and a run's positions are consecutive: one look-up in a Fenwick tree over requests
    places them all. ``last`` (N,) starts at -1, ``held`` (R+1,) at 0, ``steps`` (N+2,) at 0.
    """
    requests = len(starts) - 1
    total = 0
    for request in range(requests):
        low = starts[request]
        high = starts[request + 1]
        length = high - low
        at = low
        while at < high:
            owner = last[chains[at]]
            if owner < 0:
                break
            begin = at
            while at < high and last[chains[at]] == owner:
                last[chains[at]] = request
                at += 1
            # Nodes used later than `owner`: those in the tree, and this chain's own, already out.
            position = begin - low
            if owner != request - 1:
                position += total
                row = owner + 1
                while row > 0:
                    position -= held[row]
                    row -= row & -row
            run = at - begin
            steps[position] += 1
            steps[position + run] -= 1
            if at == high:
                missing[position + run - 1] += block_size - last_tokens[request]
            row = owner + 1
            while row <= requests:
                held[row] -= run
                row += row & -row
            total -= run
        while at < high:
            last[chains[at]] = request
            at += 1
        row = request + 1
        while row <= requests:
            held[row] += length
            row += row & -row
        total += length


@hot
def _accumulate(steps: NDArray[np.int64], missing: NDArray[np.int64], block_size: int) -> None:
    """Turn differences into hits at each capacity, in place: blocks and tokens."""
    here = 0
    blocks = 0
    short = 0
    for position in range(len(missing)):
        step = steps[position]
        lacking = missing[position]
        steps[position] = blocks
        missing[position] = blocks * block_size - short
        here += step
        blocks += here
        short += lacking


@hot
def _weighted_distances(
    starts: NDArray[np.int64],
    chains: NDArray[np.int32],
    weight: NDArray[np.int64],
    values: tuple[NDArray[np.int64], NDArray[np.int64]],
    step: int,
    slack: int,
    last: NDArray[np.int32],
    held: NDArray[np.int64],
    found: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> None:
    """As `_distances`, where each node has a weight: its position ends after its own.

    ``values`` (B+1,) are sums along all chains; what a reference adds to them goes, in ``found``,
    to the first capacity, a multiple of ``step``, that holds it.
    """
    requests = len(starts) - 1
    total = 0
    for request in range(requests):
        high = starts[request + 1]
        at = starts[request]
        before = 0
        while at < high:
            owner = last[chains[at]]
            if owner < 0:
                break
            position = before
            if owner != request - 1:
                position += total
                row = owner + 1
                while row > 0:
                    position -= held[row]
                    row -= row & -row
            run = 0
            while at < high and last[chains[at]] == owner:
                last[chains[at]] = request
                run += weight[chains[at]]
                entry = (max(position + run - slack, 1) + step - 1) // step
                for kind in range(2):
                    found[kind][entry] += values[kind][at + 1] - values[kind][at]
                at += 1
            before += run
            row = owner + 1
            while row <= requests:
                held[row] -= run
                row += row & -row
            total -= run
        while at < high:
            last[chains[at]] = request
            before += weight[chains[at]]
            at += 1
        row = request + 1
        while row <= requests:
            held[row] += before
            row += row & -row
        total += before


def _sampled_curve(trace: SampledTrace) -> LRUCurve:
    weight = trace.node_weight
    step = int(weight.sum()) // MOST_ENTRIES + 1
    entries = int(weight.sum()) // step + 2
    found = (np.zeros(entries, np.int64), np.zeros(entries, np.int64))
    last = np.full(trace.nodes, -1, np.int32)
    held = np.zeros(len(trace) + 1, np.int64)
    values = (trace.blocks_to, trace.tokens_to)
    _weighted_distances(
        trace.starts, trace.chains, weight, values, step, trace.slack, last, held, found
    )
    return LRUCurve(trace, np.cumsum(found[0]), np.cumsum(found[1]), step)


def lru_curve(trace: Trace) -> LRUCurve:
    """Return LRU's hits at every capacity. O(B + R·log R) time, 40 bytes a node of memory.

    Exact, also where a chain is longer than the cache: it equals `replay` with ``lru`` at each
    capacity (checked by the tests). Raises UsageError where blocks are unequal: a larger cache
    in tokens need not hold what a smaller one does. From a sample the curve is an estimate.
    """
    if trace.unequal:
        raise UsageError(
            "blocks of unequal size: LRU's curve does not come from one pass; sweep capacities"
        )
    if isinstance(trace, SampledTrace) and trace.weighted:
        return _sampled_curve(trace)
    nodes = trace.nodes
    steps = np.zeros(nodes + 2, np.int64)
    missing = np.zeros(nodes + 1, np.int64)
    last_tokens = trace.chain_tokens - (trace.chain_blocks - 1) * trace.block_size
    last = np.full(nodes, -1, np.int32)
    held = np.zeros(len(trace) + 1, np.int32)
    _distances(
        trace.starts, trace.chains, last_tokens, trace.block_size, last, held, steps, missing
    )
    _accumulate(steps, missing, trace.block_size)
    return LRUCurve(trace, steps[: nodes + 1], missing)
