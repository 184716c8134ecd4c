"""A trace that holds one node in so many, and stands for all of them.

Nodes are chosen by a hash of their path, so a choice rests on the keys alone: not on the order
of the file, nor on a node's number, and a smaller sample is part of a larger one. The forest is
contracted: a node's parent is its nearest ancestor in the sample. Spatial sampling as in SHARDS
(Waldspurger et al., FAST'15), over the nodes of a forest. Whole roots would not do: real traces
have one root, or few.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import hot
from kvsched.trace.model import Int32s, Int64s, Trace

ALWAYS_ABOVE = 0.001
"""A node with more than this share of all references is in every sample, for itself alone."""

MOST_ONE_IN = 1_000_000

_WORD = 0xFFFFFFFF
HIGH_BITS = 31
"""Of a path's hash, below those that draw it."""


@dataclass(frozen=True)
class SampleSettings:
    """Which nodes a sample takes: one in ``one_in`` by hash, and those used most."""

    one_in: int
    seed: int = 0
    always_above: float = ALWAYS_ABOVE

    def __post_init__(self) -> None:
        if not 1 <= self.one_in <= MOST_ONE_IN:
            raise UsageError(f"a sample is 1 node in 1 to {MOST_ONE_IN:,}, not in {self.one_in:,}")

    @property
    def below(self) -> int:
        """A node is drawn if the high 32 bits of its path's hash are below this."""
        return -(-(1 << 32) // self.one_in)


@dataclass(frozen=True, eq=False, repr=False)
class SampledTrace(Trace):
    """A trace contracted to a sample of its nodes.

    Its chains and its forest hold the sample alone; ``depth`` and ``tokens`` are as they were, so
    the depth of a root may be above 0. What is counted along chains (`prefix_blocks`,
    `prefix_tokens`) and over nodes (`node_weight`) is an estimate for the whole: a node drawn
    counts ``one_in``, one that is always kept counts 1. First uses of nodes are scaled to the
    whole's distinct nodes, later uses to the rest of its references (ratio estimators): so the
    ceiling, and what was never seen before, come out exactly but for rounding.
    """

    settings: SampleSettings = field(default_factory=lambda: SampleSettings(1))
    path: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,) hash of each node's path, 63 bits."""
    always: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """(N,) whether the node is kept for its references, with weight 1."""
    whole_starts: Int64s = field(default_factory=lambda: np.zeros(1, np.int64))
    """(R+1,) the whole trace's ``starts``."""
    whole_tokens: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """(R,) tokens that each chain of the whole trace covers."""
    whole_nodes: int = 0
    whole_node_tokens: int = 0
    """Tokens of the whole trace's distinct nodes."""
    reach: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,) tokens from the root to each node, itself included."""

    @property
    def total_references(self) -> int:
        """Block references of the whole trace."""
        return int(self.whole_starts[-1])

    @property
    def total_nodes(self) -> int:
        """Distinct nodes of the whole trace."""
        return self.whole_nodes

    @property
    def total_chain_blocks(self) -> Int64s:
        """(R,) blocks of each chain of the whole trace."""
        return np.diff(self.whole_starts)

    @functools.cached_property
    def node_weight(self) -> Int64s:
        """(N,) nodes of the whole that each stands for."""
        return np.where(self.always, 1, self.settings.one_in).astype(np.int64)

    @property
    def weighted(self) -> bool:
        """Whether nodes take different room: those drawn stand for ``one_in``."""
        return self.unequal or self.settings.one_in > 1

    @functools.cached_property
    def room(self) -> Int64s:
        """(N,) what each node takes of a capacity: as much as the nodes it stands for."""
        return self.node_weight * self.tokens if self.unequal else self.node_weight

    @functools.cached_property
    def usual_room(self) -> int:
        """What a node drawn takes of a capacity on average."""
        return self.settings.one_in * Trace.usual_room.func(self)  # type: ignore[attr-defined,no-any-return]

    @functools.cached_property
    def slack(self) -> int:
        """Half of what a node drawn takes more than one: capacities are rounded, not cut."""
        unit = round(float(self.tokens.mean())) if self.unequal and self.nodes else 1
        return (self.settings.one_in - 1) * unit // 2

    @functools.cached_property
    def begins(self) -> Int64s:
        """(N,) tokens of a prompt before each node."""
        return self.reach - self.tokens

    @property
    def path_tokens(self) -> Int64s:
        """(N,) as ``reach``."""
        return self.reach

    @functools.cached_property
    def tail_tokens(self) -> Int64s:
        """(R,) prompt tokens that no node covers; exact."""
        return self.input_tokens - self.whole_tokens

    @functools.cached_property
    def blocks_to(self) -> Int64s:
        """(B+1,) blocks that all sampled references before each stand for; exact in all."""
        return self._sums(self.node_weight, self.total_references, self.whole_nodes)

    @functools.cached_property
    def tokens_to(self) -> Int64s:
        """(B+1,) tokens that all sampled references before each stand for; exact in all."""
        each = self.node_weight * self.tokens
        return self._sums(each, int(self.whole_tokens.sum()), self.whole_node_tokens)

    def _sums(self, each: Int64s, total: int, of_nodes: int) -> Int64s:
        """Return (B+1,) sums of ``each`` (N,) along all chains, scaled.

        First uses come to ``of_nodes``, later ones to the rest of ``total``.
        """
        first = np.zeros(len(self.chains), np.bool_)
        first[_first_uses(self.chains, self.nodes)] = True
        values = each[self.chains].astype(np.float64)
        for of, whole in ((first, of_nodes), (~first, total - of_nodes)):
            found = float(values[of].sum())
            if found:
                values[of] *= whole / found
        sums = np.zeros(len(values) + 1, np.int64)
        sums[1:] = np.rint(np.cumsum(values))
        return sums

    def _along(self, sums: Int64s, blocks: NDArray[Any]) -> Int64s:
        begin = self.starts[:-1]
        found: Int64s = sums[begin + np.minimum(blocks, self.chain_blocks)] - sums[begin]
        return found

    def prefix_blocks(self, blocks: NDArray[Any]) -> Int64s:
        """Return (R,) blocks that the first ``blocks[r]`` sampled nodes of each chain stand for."""
        if self.settings.one_in == 1:
            return super().prefix_blocks(blocks)
        return self._along(self.blocks_to, blocks)

    def prefix_tokens(self, blocks: NDArray[Any]) -> Int64s:
        """Return (R,) tokens that the first ``blocks[r]`` sampled nodes of each chain stand for.

        Their sums are estimates; one request's alone is next to nothing.
        """
        if self.settings.one_in == 1:
            return super().prefix_tokens(blocks)
        return self._along(self.tokens_to, blocks)

    @functools.cached_property
    def chain_tokens(self) -> Int64s:
        """(R,) tokens that each chain stands for; their sum is exact."""
        if self.settings.one_in == 1:
            return self.whole_tokens
        return self.prefix_tokens(self.chain_blocks)

    def located_tokens(self, blocks: NDArray[Any]) -> Int64s:
        """Return (R,) about where each hit ends, in tokens of the prompt, at most all of it.

        Between the last sampled node that is hit and the first that is not; the whole chain
        where all are hit, nothing where none is. Scaled so that the sum is that of
        `prefix_tokens`. For what is not proportional to tokens, as attention's work.
        """
        if self.settings.one_in == 1:
            return super().prefix_tokens(blocks)
        k = np.minimum(blocks, self.chain_blocks)
        begin = self.starts[:-1]
        if not len(self.chains):
            return np.zeros(len(self), np.int64)
        last = self.chains[np.maximum(begin + k - 1, 0)]
        following = self.chains[np.minimum(begin + k, len(self.chains) - 1)]
        place = (self.reach[last] + self.reach[following]) // 2
        place -= self.tokens[following] // 2
        place = np.where(k == self.chain_blocks, self.whole_tokens, place)
        place = np.where(k == 0, 0, np.minimum(place, self.whole_tokens))
        total = int(place.sum())
        if not total:
            return place
        scale = int(self.prefix_tokens(blocks).sum()) / total
        return np.minimum(np.rint(place * scale).astype(np.int64), self.whole_tokens)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the settings of the sample and what it holds."""
        held: str = Trace.digest.func(self)  # type: ignore[attr-defined]
        said = (
            f"kvsched sample 1\n{self.settings}\n{self.total_references} {self.total_nodes}\n{held}"
        )
        return hashlib.sha256(said.encode()).hexdigest()

    @property
    def always_kept(self) -> int:
        """Nodes that are in every sample."""
        return int(np.count_nonzero(self.always))

    def part(self, number: int, parts: int) -> SampledTrace:
        """Return part ``number`` of ``parts`` of this sample: nodes drawn go to one part each.

        Nodes that are always kept are in all. A part is a sample of 1 in ``one_in · parts``.
        """
        kept = self.always | (self.path % parts == number)
        settings = dataclasses.replace(self.settings, one_in=self.settings.one_in * parts)
        return _contracted(self, kept, self.always, self.path, settings)


@hot
def _first_uses(chains: Int32s, nodes: int) -> Int64s:
    """Return (N,) the place of each node's first reference. O(B)."""
    seen = np.full(nodes, -1, np.int64)
    for place in range(len(chains)):
        if seen[chains[place]] < 0:
            seen[chains[place]] = place
    return seen


def step_hash(above: int, key: int) -> int:
    """Return the hash of a path that ends in ``key``, from the hash of the path above it.

    Four Feistel rounds over two 32-bit halves: 0 … 2^63 − 1, no product overflows.
    """
    left = (above & _WORD) ^ (key & _WORD)
    right = ((above >> 32) & _WORD) ^ ((key >> 32) & _WORD)
    for factor in (0x6C8E9CF5, 0x5BD1E995, 0x2C1B3C6D, 0x45D9F3B5):
        mixed = ((left + 0x3C6EF372) & _WORD) * factor
        mixed = (mixed ^ (mixed >> 29)) & _WORD
        left, right = right ^ mixed, left
    return ((right & 0x7FFFFFFF) << 32) | left


def root_hash(seed: int, place: int) -> int:
    """Return what the hash of a root's path starts from.

    ``place`` tells apart roots of the same key, whose blocks are not shared: the first is 0.
    """
    return step_hash(seed & 0x7FFFFFFFFFFFFFFF, place)


@hot
def _hash_paths(parent: Int32s, key: Int64s, start: Int64s, path: Int64s) -> None:
    root = 0
    for node in range(len(parent)):
        above = parent[node]
        if above < 0:
            hashed = int(start[root])
            root += 1
        else:
            hashed = int(path[above])
        path[node] = step_hash(hashed, int(key[node]))


def path_hashes(trace: Trace, seed: int) -> Int64s:
    """Return (N,) hash of each node's path. O(N)."""
    roots = trace.key[trace.parent < 0]
    order = np.argsort(roots, kind="stable")
    ordered = roots[order]
    place = np.zeros(len(roots), np.int64)
    fresh = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    counts = np.diff(np.append(fresh, len(roots)))
    if len(roots):
        place[order] = np.arange(len(roots)) - np.repeat(fresh, counts)
    known = [root_hash(seed, each) for each in range(int(counts.max(initial=0)))]
    path = np.empty(trace.nodes, np.int64)
    _hash_paths(trace.parent, trace.key, np.array(known, np.int64)[place], path)
    return path


@hot
def _contract(
    parent: Int32s,
    kept: NDArray[np.bool_],
    starts: Int64s,
    chains: Int32s,
    near: Int32s,
    new_parent: Int32s,
    new_starts: Int64s,
    new_chains: Int32s,
) -> None:
    """Renumber the kept nodes, each below its nearest kept ancestor; leave the others out."""
    count = 0
    for node in range(len(parent)):
        above = parent[node]
        up = near[above] if above >= 0 else -1
        if kept[node]:
            new_parent[count] = up
            near[node] = count
            count += 1
        else:
            near[node] = up
    at = 0
    for request in range(len(starts) - 1):
        for place in range(starts[request], starts[request + 1]):
            node = chains[place]
            if kept[node]:
                new_chains[at] = near[node]
                at += 1
        new_starts[request + 1] = at


@hot
def _add_parents(parent: Int32s, tokens: Int64s) -> None:
    for node in range(len(parent)):
        if parent[node] >= 0:
            tokens[node] += tokens[parent[node]]


def _path_tokens(trace: Trace) -> Int64s:
    tokens = trace.tokens.astype(np.int64)
    if trace.unequal:
        _add_parents(trace.parent, tokens)
        return tokens
    whole: Int64s = trace.depth * np.int64(trace.block_size) + tokens
    return whole


def _contracted(
    trace: Trace,
    kept: NDArray[np.bool_],
    always: NDArray[np.bool_],
    path: Int64s,
    settings: SampleSettings,
) -> SampledTrace:
    used = np.bincount(trace.chains, minlength=trace.nodes)
    nodes = int(np.count_nonzero(kept))
    parent = np.empty(nodes, np.int32)
    starts = np.zeros(len(trace) + 1, np.int64)
    chains = np.empty(int(used[kept].sum()), np.int32)
    near = np.empty(trace.nodes, np.int32)
    _contract(trace.parent, kept, trace.starts, trace.chains, near, parent, starts, chains)
    if isinstance(trace, SampledTrace):
        whole_starts, whole_tokens, reach = trace.whole_starts, trace.whole_tokens, trace.reach
        node_tokens = trace.whole_node_tokens
    else:
        node_tokens = int(trace.tokens.sum(dtype=np.int64))
        whole_starts, whole_tokens, reach = trace.starts, trace.chain_tokens, _path_tokens(trace)
    same = {each.name: getattr(trace, each.name) for each in dataclasses.fields(Trace)}
    same.update(
        starts=starts,
        chains=chains,
        parent=parent,
        depth=trace.depth[kept],
        tokens=trace.tokens[kept],
        key=trace.key[kept],
    )
    return SampledTrace(
        **same,
        settings=settings,
        path=path[kept],
        always=always[kept],
        whole_starts=whole_starts,
        whole_tokens=whole_tokens,
        whole_nodes=trace.total_nodes,
        whole_node_tokens=node_tokens,
        reach=reach[kept],
    )


def sample(
    trace: Trace, one_in: int, seed: int = 0, always_above: float = ALWAYS_ABOVE
) -> SampledTrace:
    """Return ``trace`` contracted to one node in ``one_in``, and those used most.

    ``always_above`` is the share of the references above which a node is always kept.

    O(B + N), 12 bytes a node beside the sample. At 1 nothing is left out and nothing estimated.
    Raises UsageError for an impossible rate.
    """
    settings = SampleSettings(one_in, seed, always_above)
    path = path_hashes(trace, seed)
    used = np.bincount(trace.chains, minlength=trace.nodes)
    always = used > settings.always_above * trace.references
    kept = always | ((path >> HIGH_BITS) < settings.below)
    return _contracted(trace, kept, always, path, settings)
