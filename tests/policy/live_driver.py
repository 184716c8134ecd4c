"""A small cache over a policy's hooks in which requests overlap, grow, fail, and numbers recur.

It keeps its own account in plain dictionaries and sets, for `live_checks` to compare with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from factory import BLOCK, About

from kvsched.foundation.jit import bind
from kvsched.kernel.hooks import (
    begin,
    enter,
    forget,
    leave,
    on_drop,
    on_evict,
    on_hit,
    on_insert,
    on_release,
    resume,
    victim,
)
from kvsched.kernel.table import NONE, Table
from kvsched.policy.base import Policy, Setup
from kvsched.trace.model import Labels

Path = tuple[int, ...]

NAMES = {"session": tuple("abcdefgh"), "type": ("chat", "tool", "api")}


def call(table: Table, state: Any, what: int, node: int, rank: int, now: float) -> int:
    """Call one hook by its place in `CALLS`; small enough to compile for every policy."""
    if what == 0:
        begin(table, state, 0, now, rank)
    elif what == 1:
        resume(table, state, 0, now, rank)
    elif what == 2:
        on_hit(table, state, node, rank)
    elif what == 3:
        on_insert(table, state, node, rank)
    elif what == 4:
        enter(table, state, node)
    elif what == 5:
        leave(table, state, node)
    elif what == 6:
        on_evict(table, state, node)
    elif what == 7:
        on_release(table, state, node, rank)
    elif what == 8:
        on_drop(table, state, node)
    elif what == 9:
        forget(table, state, node)
    else:
        return victim(table, state, node, rank)
    return NONE


CALLS = (
    "begin",
    "resume",
    "on_hit",
    "on_insert",
    "enter",
    "leave",
    "on_evict",
    "on_release",
    "on_drop",
    "forget",
    "victim",
)


@dataclasses.dataclass
class Lease:
    """A running request."""

    path: Path
    nodes: list[int]
    """What it holds, from the root down."""
    about: About
    turn: int
    prompt: int
    """Tokens."""
    answer: int
    """Tokens generated so far, or foreseen."""


def anyone(_live: Any, _node: int) -> bool:
    return True


class Live:
    """A cache of ``capacity`` blocks over ``numbers`` node numbers, or as many as are asked for."""

    def __init__(
        self,
        policy: Policy,
        capacity: int,
        numbers: int,
        *,
        compiled: bool = False,
        lacks: tuple[str, ...] = (),
    ) -> None:
        self.policy = policy.live_form()
        self.capacity = capacity
        size = numbers
        self.table = Table(
            np.full(size, NONE, np.int32),
            np.zeros(size, np.int32),
            np.zeros(size, np.int32),
            np.zeros(size, np.uint8),
            np.zeros(size, np.int32),
            np.ones(size, np.int32),
            np.zeros(size, np.int64),
        )
        one = {name: np.zeros(1, np.int64) for name in ("input_tokens", "output_tokens")}
        two = {name: np.zeros(1, np.int32) for name in ("turn", "priority")}
        blanks = {
            name: Labels(np.full(1, NONE, np.int32), ("",) * len(names))
            for name, names in NAMES.items()
        }
        every: dict[str, Any] = {**one, **two, **blanks}
        self.columns = {name: column for name, column in every.items() if name not in lacks}
        self.state = self.policy.prepare(Setup(size, capacity, BLOCK, None, self.columns))
        self._call = bind(call, self.policy.hooks(), compiled)
        self.rank = 0
        self.now = 0.0
        self.number: dict[Path, int] = {}
        """Of every known node."""
        self.path: dict[int, Path] = {}
        self.free = list(range(size - 1, -1, -1))
        self.holders: dict[int, int] = {}
        """How many requests hold each resident node."""
        self.evictable: set[int] = set()
        self.leases: list[Lease] = []
        self.touched: dict[int, int] = {}
        """Rank of the last hit, storing or release of each known node that ever was resident."""
        self.inserted: dict[int, int] = {}
        self.used_s: dict[int, float] = {}
        self.first_s: dict[int, float] = {}
        self.sessionless = True
        """Whether requests may be of no session."""
        self.order: dict[int, int] = {}
        """The moment when each resident node was stored, by count."""
        self.stored = 0
        self.victims: list[Path] = []
        self.incoming: list[Path] = []
        self.known_names: set[tuple[str, int]] = set()
        self.may_forget: Callable[[Live, int], bool] = anyone
        self.hits: list[int] = []
        self.forgotten = 0

    def do(self, what: str, node: int = 0, rank: int = 0) -> int:
        """Call one hook."""
        at = CALLS.index(what)
        return int(self._call(self.table, self.state, at, node, rank, self.now))

    # What the table says.

    def resident(self) -> set[int]:
        return set(np.flatnonzero(self.table.resident).tolist())

    def _enter(self, node: int) -> None:
        assert node not in self.evictable
        self.evictable.add(node)
        self.do("enter", node)

    def _leave(self, node: int) -> None:
        self.evictable.remove(node)
        self.do("leave", node)

    def _out(self, node: int) -> None:
        """What is left to do of a node that left; its parent may become evictable."""
        self.table.resident[node] = 0
        del self.holders[node], self.order[node]
        above = int(self.table.parent[node])
        if above != NONE:
            self.table.children[above] -= 1
            self._may_enter(above)

    def _may_enter(self, node: int) -> None:
        alone = self.table.children[node] == 0 and self.holders[node] == 0
        if alone and node not in self.evictable:
            self._enter(node)

    # Numbers.

    def _children(self, path: Path) -> bool:
        return any(len(other) == len(path) + 1 and other[:-1] == path for other in self.number)

    def forgettable(self, but: Path = ()) -> list[int]:
        """Nodes that could give their number to another, ``but`` and its ancestors excepted."""
        return [
            node
            for path, node in self.number.items()
            if not self.table.resident[node]
            and path != but[: len(path)]
            and not self._children(path)
            and self.may_forget(self, node)
        ]

    def forget(self, node: int) -> None:
        self.do("forget", node)
        del self.number[self.path.pop(node)]
        for known in (self.touched, self.inserted, self.used_s, self.first_s):
            known.pop(node, None)
        self.free.append(node)
        self.forgotten += 1

    def node_of(self, path: Path, tokens: int = BLOCK) -> int:
        """Return a node's number; where all are taken, another's whose time is over."""
        if path not in self.number:
            if not self.free:
                for node in self.forgettable(path)[:2]:
                    self.forget(node)
            node = self.free.pop()
            self.number[path], self.path[node] = node, path
            table = self.table
            table.parent[node] = self.number[path[:-1]] if len(path) > 1 else NONE
            table.depth[node] = len(path) - 1
            table.tokens[node] = tokens
            table.begins[node] = BLOCK * (len(path) - 1)
        return self.number[path]

    # Requests.

    def _write_columns(self, lease: Lease) -> None:
        said = {
            "input_tokens": lease.prompt,
            "output_tokens": lease.answer,
            "turn": lease.turn,
            "priority": lease.about.priority,
        }
        for name, value in said.items():
            if name in self.columns:
                self.columns[name][0] = value
        for name in NAMES:
            code = getattr(lease.about, name)
            if name in self.columns:
                self.columns[name].codes[0] = code
                if code >= 0 and (name, code) not in self.known_names:
                    self.known_names.add((name, code))
                    self.policy.learn_name(self.state, name, code, NAMES[name][code])

    def _touch(self, node: int, rank: int) -> None:
        self.touched[node], self.used_s[node] = rank, self.now

    def acquire(
        self,
        path: Path,
        about: About | None = None,
        *,
        turn: int = 1,
        answer: int = 7,
        tokens: list[int] | None = None,
        prompt: int | None = None,
        instead: int | None = None,
    ) -> Lease:
        """Begin a request: what can be stored of it is held until `release` or `fail`.

        ``instead`` has other nodes taken out than the policy named, by its value.
        """
        about = about or About()
        tokens_asked = BLOCK * len(path) if prompt is None else prompt
        lease = Lease(path, [], about, turn, tokens_asked, answer)
        self._write_columns(lease)
        self.rank += len(path)
        last = self.rank - 1
        self.do("begin", rank=last)
        sizes = tokens or [BLOCK] * len(path)
        at = self._hold_resident(lease, last)
        self.hits.append(at)
        self._store(lease, path[at:], last - at, sizes[at:], instead)
        self.leases.append(lease)
        return lease

    def extend(self, lease: Lease, keys: Path, instead: int | None = None) -> None:
        """Let a running request fill more blocks, if it holds all before them."""
        if len(lease.nodes) < len(lease.path) or not keys:
            return
        lease.path += keys
        lease.answer = max(lease.answer, BLOCK * len(lease.path) - lease.prompt)
        self._write_columns(lease)
        self.rank += len(keys)
        last = self.rank - 1
        self.do("resume", rank=last)
        # Another may have stored the same since.
        before = len(lease.nodes)
        at = self._hold_resident(lease, last + before)
        rest = lease.path[at:]
        self._store(lease, rest, last + before - at, [BLOCK] * len(rest), instead)

    def _hold_resident(self, lease: Lease, root_rank: int) -> int:
        """Hit and hold what is resident behind what it holds; return how far that goes."""
        at = before = len(lease.nodes)
        while at < len(lease.path) and self._is_resident(lease.path[: at + 1]):
            node = self.number[lease.path[: at + 1]]
            self.do("on_hit", node, root_rank - at)
            self._touch(node, root_rank - at)
            lease.nodes.append(node)
            at += 1
        if lease.nodes and lease.nodes[-1] in self.evictable:
            self._leave(lease.nodes[-1])
        for node in lease.nodes[before:]:
            self.holders[node] += 1
        return at

    def _is_resident(self, path: Path) -> bool:
        return path in self.number and bool(self.table.resident[self.number[path]])

    def _store(
        self, lease: Lease, keys: Path, rank: int, sizes: list[int], instead: int | None
    ) -> None:
        start = len(lease.nodes)
        for at in range(len(keys)):
            path = lease.path[: start + at + 1]
            node = self.node_of(path, sizes[at])
            while len(self.resident()) >= self.capacity:
                leaving = self.do("victim", node, rank - at)
                if leaving == NONE:
                    assert not self.evictable, "refused with a candidate there"
                    return
                assert leaving in self.evictable, "only an evictable node can be named"
                if instead is not None:
                    others = sorted(self.evictable, key=self.path.__getitem__)
                    self.drop(others[instead % len(others)])
                    continue
                self.evictable.remove(leaving)
                self.do("on_evict", leaving)
                self.victims.append(self.path[leaving])
                self.incoming.append(path)
                self._out(leaving)
            self.table.resident[node] = 1
            above = int(self.table.parent[node])
            if above != NONE:
                self.table.children[above] += 1
            self.holders[node] = 1
            self.do("on_insert", node, rank - at)
            self._touch(node, rank - at)
            self.inserted[node], self.first_s[node] = rank - at, self.now
            self.stored += 1
            self.order[node] = self.stored
            lease.nodes.append(node)

    def release(self, lease: Lease) -> None:
        """End a request: all that it held was in use until now."""
        self.leases.remove(lease)
        self._write_columns(lease)
        self.rank += len(lease.nodes)
        last = self.rank - 1
        self.do("resume", rank=last)
        for at, node in enumerate(lease.nodes):
            self.do("on_release", node, last - at)
            self._touch(node, last - at)
        self._unhold(lease)

    def _unhold(self, lease: Lease) -> None:
        for node in lease.nodes:
            self.holders[node] -= 1
        if lease.nodes:
            self._may_enter(lease.nodes[-1])

    def fail(self, lease: Lease, kept: int) -> None:
        """End a request whose blocks behind the first ``kept`` hold nothing of use."""
        for node in reversed(lease.nodes[kept:]):
            if self.holders[node] > 1 or self.table.children[node]:
                break
            lease.nodes.pop()
            self.do("on_drop", node)
            # The block above is still this request's.
            self.table.resident[node] = 0
            del self.holders[node], self.order[node]
            if self.table.parent[node] != NONE:
                self.table.children[self.table.parent[node]] -= 1
        self.release(lease)

    def drop(self, node: int) -> None:
        """Take an evictable node out that the policy did not name."""
        self._leave(node)
        self.do("on_drop", node)
        self._out(node)

    def clear(self) -> None:
        """End all requests, take everything out, forget every number."""
        while self.leases:
            self.release(self.leases[-1])
        while self.evictable:
            self.drop(min(self.evictable))
        while self.number:
            self.may_forget = anyone
            for node in self.forgettable():
                self.forget(node)
