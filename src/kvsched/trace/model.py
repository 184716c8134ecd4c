"""The `Trace`: columns of requests, their chains of nodes, and the forest of all nodes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.notebook import facts

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

NO_PARENT = -1
UNKNOWN = -1

_COLUMNS = (
    "time_s",
    "input_tokens",
    "output_tokens",
    "starts",
    "chains",
    "parent",
    "depth",
    "tokens",
    "key",
)


def _as_utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class Labels(NamedTuple):
    """A column of names: ``codes`` (R,) int32 index ``names``; -1 where a request has none."""

    codes: Int32s
    names: tuple[str, ...]


@dataclass(frozen=True)
class Origin:
    """Where a trace came from and what was decided while reading it; part of every result."""

    source: str
    """Name of the file or preset, without its folder."""
    format: str
    """Name of the reader or generator."""
    time_unit: str
    """Unit of the source's timestamps: s, ms, us or ns."""
    notes: tuple[str, ...] = ()
    """What was sorted, skipped or chosen: one sentence each."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Options that shaped the trace (arrivals, seed, ...)."""

    def __post_init__(self) -> None:
        # A file's name may be no UTF-8, a result always is.
        object.__setattr__(self, "source", _as_utf8(self.source))
        object.__setattr__(self, "notes", tuple(_as_utf8(note) for note in self.notes))

    def noting(self, *notes: str) -> Origin:
        """The same with more notes at the end."""
        return dataclasses.replace(self, notes=self.notes + notes)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """A workload: R requests in time order over a forest of N nodes. Immutable.

    A node is one cacheable block of one particular prefix, identified by (parent node, key),
    numbered 0 … N−1 so that a parent's number is below its child's. A request's chain is the
    nodes of its prompt from the root down.
    """

    time_s: Float64s
    """(R,) arrival in seconds from the first request, ascending."""
    input_tokens: Int64s
    """(R,) prompt tokens, those that no node covers included."""
    output_tokens: Int64s
    """(R,) generated tokens."""
    starts: Int64s
    """(R+1,) request r's chain is ``chains[starts[r]:starts[r+1]]``."""
    chains: Int32s
    """(B,) nodes, one block reference each."""
    parent: Int32s
    """(N,) parent node, -1 for a root."""
    depth: Int32s
    """(N,) 0 for a root."""
    tokens: Int32s
    """(N,) tokens of the block; the last block of a prompt may be partial."""
    key: Int64s
    """(N,) the source's id of the block (64 bits, reinterpreted as signed)."""
    block_size: int
    """Tokens in a full block; 0 where every node has a size of its own (``tokens``)."""
    origin: Origin
    tenant: Labels | None = None
    session: Labels | None = None
    type: Labels | None = None
    model: Labels | None = None
    turn: Int32s | None = None
    """(R,) turn in its session from 1, where the source says."""
    priority: Int32s | None = None
    """(R,) larger is more important."""
    deadline_s: Float64s | None = None
    """(R,) seconds on the clock of ``time_s``; NaN where none."""
    delay_s: Float64s | None = None
    """(R,) think or tool time before the request, seconds; NaN where none."""

    def __post_init__(self) -> None:
        for array in self.columns().values():
            array.flags.writeable = False

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def nodes(self) -> int:
        """Number of distinct nodes, N."""
        return len(self.parent)

    @property
    def references(self) -> int:
        """Number of block references, B: the sum of the chains' lengths."""
        return len(self.chains)

    @property
    def duration_s(self) -> float:
        """Seconds between the first request and the last."""
        return float(self.time_s[-1] - self.time_s[0]) if len(self) else 0.0

    @functools.cached_property
    def chain_blocks(self) -> Int64s:
        """(R,) blocks in each chain."""
        return np.diff(self.starts)

    @property
    def unequal(self) -> bool:
        """Whether nodes have sizes of their own: a capacity then counts tokens, not blocks."""
        return self.block_size == 0

    @property
    def unit_tokens(self) -> int:
        """Tokens in the unit of a capacity: a block's, or 1 where nodes are unequal."""
        return self.block_size or 1

    @functools.cached_property
    def _tokens_before(self) -> Int64s:
        """(B+1,) tokens of all references before each one; for unequal nodes."""
        before = np.zeros(len(self.chains) + 1, np.int64)
        np.cumsum(self.tokens[self.chains], out=before[1:])
        return before

    def _covered(self, blocks: NDArray[Any]) -> Int64s:
        if not self.unequal:
            full: Int64s = blocks * np.int64(self.block_size)
            return full
        first = self.starts[:-1]
        summed: Int64s = self._tokens_before[first + blocks] - self._tokens_before[first]
        return summed

    @functools.cached_property
    def chain_tokens(self) -> Int64s:
        """(R,) tokens that each request's chain covers: its blocks, but no more than its prompt."""
        return np.minimum(self._covered(self.chain_blocks), self.input_tokens)

    def prefix_tokens(self, blocks: NDArray[Any]) -> Int64s:
        """Tokens in the first ``blocks[r]`` (R,) blocks of each request's chain, (R,).

        O(R); O(B) once where nodes are unequal.
        """
        if self.unequal:
            blocks = np.minimum(blocks, self.chain_blocks)
        covered: Int64s = np.minimum(self._covered(blocks), self.chain_tokens)
        return covered

    # A sample (`kvsched.trace.sample`) holds less than it stands for, and gives these estimates.

    @property
    def total_references(self) -> int:
        """Block references of the workload: B, unless this is a sample."""
        return self.references

    @property
    def total_nodes(self) -> int:
        """Distinct nodes of the workload: N, unless this is a sample."""
        return self.nodes

    @property
    def total_chain_blocks(self) -> Int64s:
        """(R,) blocks of each chain in the workload."""
        return self.chain_blocks

    @property
    def node_weight(self) -> Int64s | int:
        """(N,) or one number: nodes of the workload that each node stands for."""
        return 1

    @property
    def weighted(self) -> bool:
        """Whether nodes take different room in a cache."""
        return self.unequal

    @property
    def room(self) -> NDArray[Any]:
        """(N,) what each node takes of a capacity, where they differ."""
        return self.tokens

    @functools.cached_property
    def usual_room(self) -> int:
        """What a node takes of a capacity on average, in whole units; 1 where all are alike."""
        return max(1, round(float(self.tokens.mean()))) if self.unequal and self.nodes else 1

    @property
    def slack(self) -> int:
        """Added to a capacity, so that one that no whole nodes fill is rounded, not cut."""
        return 0

    @property
    def begins(self) -> Int64s | None:
        """(N,) tokens of a prompt before each node, where ancestors were left out."""
        return None

    @property
    def path_tokens(self) -> Int64s | None:
        """(N,) tokens from the root to each node, itself included, where they are kept."""
        return None

    @property
    def tail_tokens(self) -> Int64s:
        """(R,) prompt tokens that no node covers."""
        return self.input_tokens - self.chain_tokens

    def prefix_blocks(self, blocks: NDArray[Any]) -> Int64s:
        """Return (R,) blocks of the workload in the first ``blocks[r]`` of each chain."""
        return blocks.astype(np.int64)

    def located_tokens(self, blocks: NDArray[Any]) -> Int64s:
        """Return (R,) where the first ``blocks[r]`` of each chain end, in tokens."""
        return self.prefix_tokens(blocks)

    def __repr__(self) -> str:
        return (
            f"<Trace {self.origin.source}: {len(self):,} requests, {self.references:,} block "
            f"references, {self.nodes:,} distinct>"
        )

    def _repr_html_(self) -> str:
        from kvsched.trace.summary import summarise

        found = {name: value for name, value in summarise(self).items() if name != "settings"}
        found["notes"] = "; ".join(self.origin.notes)
        return facts("Trace", found)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every array by name, in a fixed order; label columns as ``NAME.codes``. O(1)."""
        found: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in _COLUMNS}
        for name in ("tenant", "session", "type", "model"):
            labels: Labels | None = getattr(self, name)
            if labels is not None:
                found[f"{name}.codes"] = labels.codes
        for name in ("turn", "priority", "deadline_s", "delay_s"):
            column = getattr(self, name)
            if column is not None:
                found[name] = column
        return found

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 over the block size, every column and every label: the workload's identity.

        Where the trace came from is not part of it, so a converted copy has the same digest.
        """
        state = hashlib.sha256(f"kvsched trace 1\nblock_size {self.block_size}\n".encode())
        for name, array in self.columns().items():
            state.update(f"{name} {array.dtype.str} {len(array)}\n".encode())
            state.update(np.ascontiguousarray(array).view(np.uint8).data)
        for name in ("tenant", "session", "type", "model"):
            labels: Labels | None = getattr(self, name)
            if labels is not None:
                for label in labels.names:
                    data = label.encode()
                    state.update(f"{name} {len(data)}\n".encode() + data)
        return state.hexdigest()
