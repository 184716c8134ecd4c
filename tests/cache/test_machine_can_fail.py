"""Broken versions of the live cache, each noticed by the machine."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from driver import Driver
from machine import CacheMachine
from mutants import edited

from kvsched.cache import (
    blocks,
    chain,
    departures,
    eviction,
    growth,
    holding,
    kernel,
    names,
    outbox,
    partition,
    pins,
    second,
    serving,
    store,
)

Mutant = tuple[Any, str, str, str]
"""A module or a class, what is broken in it, and what of its source stands for what."""

KERNEL: dict[str, Mutant] = {
    "a release forgets to unlock": (
        kernel, "_release", "unlock(live, int(out.nodes[length - 1]))", "pass",
    ),
    "an unpin forgets to unlock": (kernel, "_unhold", "unlock(live, deepest)", "pass"),
    "what was lost is found": (kernel, "_lose", "hide(live, int(out.nodes[at]))", "pass"),
    "a parent may leave before its child": (
        eviction, "is_free_leaf", "table.children[node] == 0 and ", "",
    ),
    "a failed request says that its blocks are computed": (
        kernel, "_release", "vouched and ", "",
    ),
    "a hit is not held": (kernel, "operate", "        lock(live, deepest)", "        pass"),
    "pins have no cap": (holding, "pin", "live.counts[PINNED] + new > most", "False"),
    "more is taken than fits": (kernel, "_fits", "need <= out.report[ROOM]", "True"),
    "expired blocks are not taken from their heap": (
        eviction, "close_node", "live.due.place[node] != NONE", "False",
    ),
    "a number is reused while its child is known": (
        names, "is_idle", " and live.names.kin[node] == 0", "",
    ),
    "a removed name breaks those behind it": (
        names, "hide", "((at - wanted) & mask) >= ((at - gap) & mask)", "False",
    ),
}  # fmt: skip

PARTS: dict[str, Mutant] = {
    "the tail is kept after a failure": (
        serving.Serving, "_end",
        "keep = min(keep, max(lease.computed_tokens // self.block_size, lease._theirs))", "pass",
    ),
    "a double release frees twice": (
        serving.Serving, "release", "if lease.released or", "if",
    ),
    "a released lease leaves others waiting": (
        serving.Serving, "release", "self._pumped()", "[]",
    ),
    "namespaces are ignored": (
        chain.ChainMaker, "_space",
        "request.cache_salt, *adapter, request.model_revision, tenant or None", "None",
    ),
    "no copy on write": (
        growth.Grower, "_must_copy", "last < len(lease._nodes) or", "False and",
    ),
    "a shared block is freed by the first": (
        blocks.BlockManager, "unshare", "if holders == 1:", "if holders:",
    ),
    "a copy moves what it shares": (
        growth.Grower, "_replace", "self.blocks.unshare([old])", "pass",
    ),
    "loads go before offloads": (
        blocks.BlockManager, "hold", "lease.moves = tuple(moves)",
        "lease.moves = tuple(sorted(moves, key=lambda move: move.kind))",
    ),
    "a partial block that nobody computed stays": (
        growth.Grower, "_replace", "keep = 0", "partition.live.ready[node] = READY",
    ),
    "nobody is told of lost blocks": (
        departures.Departures, "lose", "other.holds(home, bad, first)", "False",
    ),
    "what lies below a lost block stays below": (
        departures.Departures, "drop", "home.second is not None", "False",
    ),
    "what leaves is not offloaded": (
        second.SecondTier, "keep", 'moves.append(Move("offload", block, slot, key.tobytes()))',
        "pass",
    ),
    "a lease that failed to load runs": (
        serving.Serving, "_carried", "self.release(lease, failed=True)", "pass",
    ),
    "quotas are ignored": (
        store.Store, "_new_home", "limit=capacity", "limit=self.capacity",
    ),
    "guarantees are ignored": (store.Home, "lendable", "min(self.excess, ", "min(10**9, "),
    "what is spilled can be loaded at once": (
        second.SecondTier, "hold_below", "operations.WAITS", "operations.HITS",
    ),
    "what is spilled is not held": (
        second.SecondTier, "spill", "lease._spilled =",
        "own.fail(own.out.nodes[:count].copy(), own.out.blocks[:0], count, now)\n    _ =",
    ),
    "bytes that were not carried count as written": (
        outbox.Outbox, "_forget",
        "self.cache.blocks.departures.discard(failed.moves, self.cache.last_now)", "set()",
    ),
    "an ended pin holds on": (pins.Pins, "remove", "ended = [what]", "ended = []"),
}  # fmt: skip


def break_it(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """Put a broken version in place until the test ends."""
    place, name, before, after = mutant
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    monkeypatch.setattr(partition, "_bound", {})
    if isinstance(place, type):
        module = importlib.import_module(place.__module__)
        made = place.__dict__[name]
        function = made.fget if isinstance(made, property) else made
        monkeypatch.setattr(place, name, edited(function, module, before, after))
        return
    broken = edited(getattr(place, name), place, before, after)
    function = getattr(place, name)
    for module in (eviction, holding, kernel, names, partition):
        if getattr(module, name, None) is function:
            monkeypatch.setattr(module, name, broken)


class One(CacheMachine):
    policies = ["lru"]  # noqa: RUF012  # set once
    others = ["lru", "sieve", "arc"]  # noqa: RUF012  # set once


def is_noticed(seeds: int = 150, steps: int = 150) -> bool:
    """Whether a run of the machine finds a fault."""
    for seed in range(seeds):
        try:
            Driver(One, seed).run(steps)
        except Exception:  # noqa: BLE001  # whatever shows a fault
            return True
    return False


@pytest.mark.parametrize("what", KERNEL | PARTS)
def test_a_broken_cache_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch, (KERNEL | PARTS)[what])
    assert is_noticed()
