"""What must hold of each policy's state after every step of a live cache.

Every check reads the state beside the account that the driver keeps, and raises AssertionError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import lanes_check
import numpy as np
from live_driver import Live

from kvsched.foundation.jit import bind
from kvsched.kernel import lanes as lanes_module
from kvsched.kernel.table import NONE
from kvsched.policy import arc, decay, s3fifo, sieve, tlru, wtinylfu
from kvsched.policy.base import _ordered

BY_INSERTION = ("fifo", "filo")
"""Policies whose order is that of storing."""


def listed(links: Any, ends: int) -> list[int]:
    """Nodes of a list from the head, checked in both directions."""
    found, node = [], int(links[ends, 1])
    while node != ends:
        assert links[links[node, 1], 0] == node, "neighbours know each other"
        found.append(node)
        assert len(found) <= len(links), "a list ends"
        node = int(links[node, 1])
    return found


def check_evictable(live: Live) -> None:
    """Exactly the evictable nodes can be named."""
    state = live.state
    if hasattr(state, "heap"):
        waiting = set(np.flatnonzero(state.heap.place != NONE).tolist())
        size = int(state.heap.counts[0] - state.heap.counts[1])
        assert len(waiting) == size, "the heap's size"
        if live.policy.name == "sieve":
            for lap in (0, 1):
                waiting |= set(listed(state.links, len(state.place) + lap))
    else:
        waiting = set(np.flatnonzero(state.lanes.tree[:, 2] != NONE).tolist())
        lanes_check.check_shape(lanes_module, state.lanes, waiting)
    assert waiting == live.evictable, "who can leave"


def check_recency(live: Live) -> None:
    """A release is a use for the order of access, and none for the order of storing."""
    name, state = live.policy.name, live.state
    expected = live.inserted if name in BY_INSERTION else live.touched
    if hasattr(state, "touched"):
        for node in live.resident():
            assert state.touched[node] == expected[node], "the rank of the last use"
    if hasattr(state, "used_s"):
        for node in live.resident():
            assert state.used_s[node] == live.used_s[node], "the time of the last use"


def check_keys(live: Live) -> None:
    """What stands in a heap has the key that it would get now."""
    state = live.state
    if not hasattr(state, "heap") or live.policy.name == "sieve":
        return
    key = bind(live.policy.key, live.policy.hooks(), compiled=False)
    for node in live.evictable:
        row = state.heap.entries[state.heap.place[node]]
        assert row[2] == node
        assert row[0] == _ordered(key(live.table, state, node)), "the key"
        assert row[1] == state.touched[node], "the tie"


def check_lane_order(live: Live, order: Callable[[int], tuple[int, int]]) -> None:
    lanes = live.state.lanes
    for node in live.evictable:
        assert tuple(lanes.order[node].tolist()) == order(node), "the place in the lane"


def check_counts(live: Live, where: Any, counts: Any, kinds: Iterable[int]) -> None:
    for kind in kinds:
        assert counts[kind] == int((where == kind).sum()), "what a queue takes"


def check_arc(live: Live) -> None:
    state, nodes = live.state, len(live.state.where)
    resident = live.resident()
    assert set(np.flatnonzero(state.where <= arc.T2).tolist()) == resident
    check_counts(live, state.where, state.counts, range(4))
    for ghost in (0, 1):
        found = listed(state.ghosts, nodes + ghost)
        assert set(found) == set(np.flatnonzero(state.where == arc.B1 + ghost).tolist())
        assert set(found) <= set(live.path), "a ghost is known"
    assert state.counts[arc.T1] + state.counts[arc.B1] <= live.capacity
    assert state.counts[:4].sum() <= 2 * live.capacity
    check_lane_order(live, lambda node: (int(state.touched[node]), 0))


def check_s3fifo(live: Live) -> None:
    state = live.state
    resident = live.resident()
    assert set(np.flatnonzero(state.where <= s3fifo.MAIN).tolist()) == resident
    check_counts(live, state.where, state.counts, range(3))
    ghosts = listed(state.ghost, len(state.where))
    assert set(ghosts) == set(np.flatnonzero(state.where == s3fifo.GHOST).tolist())
    assert set(ghosts) <= set(live.path), "a ghost is known"
    places = {tuple(state.place[node].tolist()) for node in resident}
    assert len(places) == len(resident), "no two in one place"
    chosen = int(state.counts[s3fifo.CHOSEN])
    assert chosen == NONE or chosen in live.evictable, "the chosen can leave"
    for node in resident:
        above = int(live.table.parent[node])
        if above != NONE and state.where[node] == s3fifo.MAIN:
            assert state.where[above] == s3fifo.MAIN, "main is closed under ancestors"
    check_lane_order(live, lambda node: tuple(state.place[node].tolist()))


def check_sieve(live: Live) -> None:
    state, hand = live.state, live.state.hand
    queue = sorted(live.resident(), key=live.order.__getitem__)
    places = [int(state.place[node]) for node in queue]
    assert places == sorted(set(places)), "in the order of storing, none twice"
    assert set(np.flatnonzero(state.visited).tolist()) <= live.resident(), "a bit that stays"
    assert hand[sieve.HELD] == len(live.evictable)
    ahead = sum(state.place[node] > hand[sieve.HAND] for node in live.evictable)
    assert hand[sieve.AHEAD] == ahead


def check_wtinylfu(live: Live) -> None:
    state, nodes = live.state, len(live.state.where)
    resident = live.resident()
    for segment in (wtinylfu.WINDOW, wtinylfu.PROTECTED):
        found = listed(state.links, nodes + segment)
        assert set(found) == {node for node in resident if state.where[node] == segment}
        ranks = [int(state.place[node]) for node in found]
        assert ranks == sorted(ranks, reverse=True), "by last use"
        assert ranks == [live.touched[node] for node in found], "a release is a use"
    for segment in range(3):
        held = sum(state.where[node] == segment for node in resident)
        assert state.counts[segment] == held, "what a segment takes"
    check_lane_order(live, lambda node: (int(state.place[node]), 0))


def check_expiry(live: Live) -> None:
    """`priority` and `ttl`: what expires is resident, and stands in the order in which it does."""
    state, never = live.state, np.inf if live.policy.name == "priority" else -np.inf
    due = set(np.flatnonzero(state.expires != never).tolist())
    assert due <= live.resident(), "what left expires no more"
    found = [listed(state.links, ends) for ends in range(len(state.expires), len(state.links))]
    assert {node for each in found for node in each} == due
    assert sum(len(each) for each in found) == len(due)
    for each in found:
        times = [float(state.expires[node]) for node in each]
        assert times == sorted(times), "the next one first"
    if live.policy.name == "ttl":
        lives = state.clock[1:]
        for node in due:
            assert state.expires[node] >= live.used_s[node] + min(lives[0], lives[1] or lives[0])


def check_decay(live: Live) -> None:
    half_life = live.state.clock[decay.HALF_LIFE]
    for node in live.resident():
        least = math.floor(live.first_s[node] / half_life * decay.STEPS + 0.5)
        assert live.state.score[node] >= least, "no use is older than the storing"


def check_tlru(live: Live) -> None:
    """A conversation's claim is its tip and all above it, known nodes only."""
    state = live.state
    needed = np.zeros(len(state.needed_by), np.int64)
    tips: dict[int, list[int]] = {}
    for session, tip in enumerate(state.tip.tolist()):
        node = tip
        if node != NONE and session != state.running[tlru.SESSION]:
            tips.setdefault(node, []).append(session)
        while node != NONE:
            assert node in live.path, "a claim on a node that is forgotten"
            needed[node] += 1
            node = int(live.table.parent[node])
    for node in range(len(needed)):
        found = listed(state.tips, len(state.tip) + node)
        assert sorted(found) == tips.get(node, []), "whose tip it is"
    known = sorted(live.path)
    alone = state.needed_by - needed
    assert (alone[known] >= 0).all(), "claims"
    assert set(np.flatnonzero(alone).tolist()) <= set(known), "a claim that nobody made"
    if not live.sessionless:
        assert not alone.any(), "a claim that nobody made"


def check_history(live: Live) -> None:
    """`wild` and `pgdsf`: nothing is known of a number that is nobody's."""
    state = live.state
    unknown = sorted(set(range(len(live.table.parent))) - set(live.path))
    if live.policy.name == "wild":
        assert not state.seen[unknown].any()
        assert (state.kind[unknown] == NONE).all()
        check_lane_order(live, lambda node: tuple(state.order[node].tolist()))
        by_use = sorted(live.evictable, key=lambda node: tuple(state.order[node].tolist()))
        assert [live.used_s[node] for node in by_use] == sorted(
            live.used_s[node] for node in by_use
        ), "by moment of last use"
    else:
        assert not state.frequency[unknown].any()
        assert not state.cost[unknown].any()
        assert not state.computed[unknown].any()


OWN: dict[str, Callable[[Live], None]] = {
    "arc": check_arc,
    "s3fifo": check_s3fifo,
    "sieve": check_sieve,
    "wtinylfu": check_wtinylfu,
    "priority": check_expiry,
    "ttl": check_expiry,
    "decay": check_decay,
    "tlru": check_tlru,
    "wild": check_history,
    "pgdsf": check_history,
}


def check_all(live: Live) -> None:
    """Check everything that must hold between two operations."""
    parent = live.table.parent
    assert all(
        parent[node] == NONE or live.table.resident[parent[node]] for node in live.resident()
    )
    assert len(live.resident()) <= live.capacity
    check_evictable(live)
    check_recency(live)
    check_keys(live)
    if live.policy.name in OWN:
        OWN[live.policy.name](live)


def check_cleared(live: Live, fresh: Live) -> None:
    """After `clear` nothing is left but clocks, places and what was learnt of all nodes."""
    check_all(live)
    assert not live.resident()
    assert not live.path
    after, before = live.state._asdict(), fresh.state._asdict()
    for name in CLEARED & set(after):
        assert np.array_equal(after[name], before[name]), f"{name} of nodes that are gone"
    if "lanes" in after:
        assert (after["lanes"].first == NONE).all()
    if "heap" in after:
        assert (after["heap"].place == NONE).all()
    taken = {"arc": 4, "s3fifo": 3, "wtinylfu": 3}.get(live.policy.name, 0)
    assert not after["counts"][:taken].any() if taken else True


CLEARED = {"visited", "needed_by", "tip", "seen", "kind", "frequency", "cost", "computed"}
"""Fields of states that are as they were, once all nodes are gone and forgotten."""
