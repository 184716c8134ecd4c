"""What a policy is: a name, parameters, the arrays it needs, and hooks.

To add one, copy `lfu.py`, and add a line to `registry.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.kernel import hooks
from kvsched.kernel.heap import Heap, empty_heap, heap_peek, heap_push, heap_remove
from kvsched.kernel.hooks import key
from kvsched.kernel.table import NONE, Table
from kvsched.policy.needs import Column, find_column, lacking, missing_columns
from kvsched.policy.parameters import Parameter, changed_values, filled, labelled
from kvsched.trace.model import Labels, Trace

AUTO = "auto"
"""Given for a parameter, lets it be chosen by replaying what came before."""


@dataclass(frozen=True)
class Tunable:
    """A parameter that a replay can choose: see `kvsched.replay.tuning`."""

    parameter: str
    candidates: tuple[float, ...]
    """The first holds until one is chosen."""
    window: float
    """Requests that are replayed, for each up to the first eviction."""


@dataclass(frozen=True)
class Tuned:
    """What was chosen, and the first request that is decided with it."""

    value: float
    since_request: int


@dataclass(frozen=True)
class Setup:
    """What a policy may know before the first request."""

    nodes: int
    capacity_blocks: int
    """Blocks; tokens where the trace's blocks are unequal."""
    block_size: int
    """Tokens in the unit of the capacity: a block's, or 1 where blocks are unequal."""
    trace: Trace | None = None
    """The whole trace, future included; None in a live cache."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    """What a live cache knows of its requests, by name; goes before the trace's own."""
    hit_limit: NDArray[np.int64] | None = None
    """(R,) blocks of each chain that an engine's rules let a request hit; None: all of it."""
    usual_room: int = 1
    """What a usual node takes of the capacity: the mean where nodes take different room, else 1."""

    @property
    def usual_nodes(self) -> int:
        """How many usual nodes the capacity holds, at least 1."""
        return max(1, self.capacity_blocks // self.usual_room)

    def future(self, policy: str) -> Trace:
        """Return the trace, for a policy that looks ahead. Raises UsageError in a live cache."""
        if self.trace is None:
            raise UsageError(f"policy {policy} needs the whole trace: it cannot run live")
        return self.trace

    def column(self, name: str, policy: str) -> NDArray[Any]:
        """Return (R,) one value a request, by the ``request`` that `begin` gets.

        Codes where the column is of names, as `labels` explains them. Raises UsageError where
        neither the trace nor the cache has it. A live cache has room for one value, and writes
        there what the request has before `begin` and `resume`: keep the array, and read it there.
        """
        found = self._find(name, policy)
        return found.codes if isinstance(found, Labels) else found

    def labels(self, name: str, policy: str) -> Labels:
        """Return a column of names. Raises UsageError like `column`."""
        found = self._find(name, policy)
        if not isinstance(found, Labels):
            raise UsageError(f"policy {policy}: `{name}` is no column of names")
        return found

    def has(self, name: str) -> bool:
        """Whether `column` would return one of that name."""
        return not missing_columns((name,), self.trace, self.columns)

    def _find(self, name: str, policy: str) -> Column:
        found = find_column(name, self.trace, self.columns)
        if found is None:
            raise lacking(policy, name, self.trace)
        return found


class Policy:
    """Base of all policies: hooks that do nothing, as `kvsched.kernel.hooks` documents them."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = "user"
    """Paper, engine and version that define the order."""
    parameters: ClassVar[dict[str, Parameter]] = {}
    looks_ahead: ClassVar[bool] = False
    """Whether it needs the future, and so is a bound and no choice."""
    biased_when_sampled: ClassVar[bool] = False
    """Whether a sample of nodes misjudges its hits by more than the error that is stated."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns of requests that it cannot do without: ``priority``, ``session``, ``type``, …"""
    tunable: ClassVar[Tunable | None] = None
    """The parameter that may be ``auto``; `prepare` then heeds ``tuned``."""

    auto: bool = False
    """Whether the parameter is `auto`."""
    tuned: Tuned | None = None
    """What was chosen for it; None before."""

    track_leaves: ClassVar[bool] = True
    begin: ClassVar[Any] = staticmethod(hooks.begin)
    resume: ClassVar[Any] = staticmethod(hooks.resume)
    on_hit: ClassVar[Any] = staticmethod(hooks.on_hit)
    on_insert: ClassVar[Any] = staticmethod(hooks.on_insert)
    enter: ClassVar[Any] = staticmethod(hooks.enter)
    leave: ClassVar[Any] = staticmethod(hooks.leave)
    on_evict: ClassVar[Any] = staticmethod(hooks.on_evict)
    on_release: ClassVar[Any] = staticmethod(hooks.on_release)
    on_drop: ClassVar[Any] = staticmethod(hooks.on_drop)
    forget: ClassVar[Any] = staticmethod(hooks.forget)
    victim: ClassVar[Any] = staticmethod(hooks.victim)
    key: ClassVar[Any] = staticmethod(hooks.key)

    def __init__(self, **values: float | str) -> None:
        self.auto = self.tunable is not None and values.get(self.tunable.parameter) == AUTO
        if self.tunable is not None and self.auto:
            values[self.tunable.parameter] = self.tunable.candidates[0]
        self.values: dict[str, float] = filled(f"policy {self.name}", self.parameters, values)

    @property
    def label(self) -> str:
        """The name, with the parameters that are not default: ``decay:half_life_s=60``."""
        changed = changed_values(self.parameters, self.values)
        if self.tunable is not None and self.auto:
            changed[self.tunable.parameter] = AUTO
        return labelled(self.name, self.values, changed)

    def with_tuned(self, tuned: Tuned) -> Self:
        """Return a copy that takes the value of ``tuned`` from its request on."""
        made = copy.copy(self)
        made.tuned = tuned
        return made

    def needed(self) -> tuple[str, ...]:
        """Return the columns that it needs with the parameters that it has: `needs`, or more."""
        return self.needs

    def missing(self, trace: Trace) -> list[str]:
        """Return the columns that it needs and ``trace`` lacks. O(1)."""
        return missing_columns(self.needed(), trace)

    def check(self, trace: Trace) -> None:
        """Raise UsageError if ``trace`` lacks a column that it needs, with how to give it."""
        missing = self.missing(trace)
        if missing:
            raise lacking(self.label, missing[0], trace)

    def prepare(self, setup: Setup) -> Any:
        """Return the state that every hook gets: a NamedTuple of arrays, made for this run."""
        raise NotImplementedError

    def live_form(self) -> Policy:
        """Return the policy that decides in a live cache: itself, if its hooks can run there.

        Raises UsageError where it knows the future, is tuned by a replay, or counts on a sequence.
        """
        if self.looks_ahead:
            raise UsageError(f"policy {self.label} needs the whole trace: it cannot run live")
        if self.tunable is not None and self.auto:
            parameter = self.tunable.parameter
            raise UsageError(
                f"policy {self.label}: {parameter}={AUTO} is tuned by replaying a trace: it cannot "
                "run live, give a number"
            )
        if not self.track_leaves:
            raise UsageError(
                f"policy {self.label} does not track leaves, which one request at a time needs "
                "alone: it cannot run live without a `live_form` of its own"
            )
        return self

    def learn_name(self, state: Any, column: str, code: int, name: str) -> None:
        """Take note that a live cache met ``name`` for the first time, as ``code`` of ``column``.

        There, a column's names are blanks at first, as many as it can ever know.
        """

    @classmethod
    def hooks(cls) -> dict[str, Any]:
        """Return what the open names of a kernel stand for under this policy.

        A class without a `resume` of its own has its `begin` for it.
        """
        own = {name: getattr(cls, name) for name in hooks.HOOKS}
        if own["resume"] is hooks.resume:
            own["resume"] = own["begin"]
        return own

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


class RankedState(NamedTuple):
    """The least that a ranked policy keeps."""

    heap: Heap
    """The evictable nodes."""
    touched: NDArray[np.int64]
    """(N,) rank of each node's last touch: ties are broken by it."""


def _on_touch(table: Table, state: RankedState, node: int, rank: int) -> None:
    state.touched[node] = rank


def _ordered(value: Any) -> int:
    """Return an int64 in the order of keys: an int as it is, a float by its bits."""
    if isinstance(value, float):
        bits = int(np.float64(value).view(np.int64))
        # A negative float's bits grow as its value falls.
        return bits if bits >= 0 else int(np.int64(-0x8000000000000000) - bits)
    return int(value)


def _enter(table: Table, state: RankedState, node: int) -> None:
    heap_push(state.heap, node, _ordered(key(table, state, node)), state.touched[node])


def _leave(table: Table, state: RankedState, node: int) -> None:
    heap_remove(state.heap, node)


def _victim(table: Table, state: RankedState, incoming: int, rank: int) -> int:
    return heap_peek(state.heap)


def tokens_before(table: Table, start: NDArray[np.int64], node: int, block_size: int) -> int:
    """Return the tokens of a prompt before ``node``, from its parent's ``start``. O(1).

    A full block's for each ancestor, also where the source gave it fewer; where blocks are unequal
    ``block_size`` is 1, and each counts its own.
    """
    if len(table.begins) > 0:
        return int(table.begins[node])
    parent = table.parent[node]
    if parent == NONE:
        return 0
    return int(start[parent]) + max(int(table.tokens[parent]), block_size)


class RankedPolicy(Policy):
    """Orders evictable nodes by `key`, smallest first, then by last access, deeper first.

    A subclass gives ``key(table, state, node)``, an int64 or a float that is no NaN, which may
    change only when the node is touched. One that keeps more than `RankedState` allocates it in
    `prepare` and must set ``state.touched[node] = rank`` in its own `on_hit` and `on_insert`. One
    whose order is no order of access does nothing in `on_release`, as `fifo` does.
    """

    on_hit: ClassVar[Any] = staticmethod(_on_touch)
    on_insert: ClassVar[Any] = staticmethod(_on_touch)
    enter: ClassVar[Any] = staticmethod(_enter)
    leave: ClassVar[Any] = staticmethod(_leave)
    on_evict: ClassVar[Any] = staticmethod(_leave)
    on_release: ClassVar[Any] = staticmethod(_on_touch)
    victim: ClassVar[Any] = staticmethod(_victim)

    def prepare(self, setup: Setup) -> Any:
        """Return a `RankedState` for ``setup``. O(N)."""
        return RankedState(*ranked_columns(setup))


def ranked_columns(setup: Setup) -> tuple[Heap, NDArray[np.int64]]:
    """Return the heap and the ranks of last touch, for a state of one's own. O(N)."""
    heap = empty_heap(setup.nodes, setup.capacity_blocks)
    return heap, np.zeros(setup.nodes, np.int64)
