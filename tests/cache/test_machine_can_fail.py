"""Broken versions of the live cache, each noticed by the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import CacheMachine
from mutants import edited

from kvsched.cache import (
    admission,
    blocks,
    chain,
    kernel,
    names,
    outbox,
    partition,
    pins,
    scheduler,
    second,
    store,
)

Mutant = tuple[Any, str, str, str]
"""A module or a class, what is broken in it, and what of its source stands for what."""

KERNEL: dict[str, Mutant] = {
    "a release forgets to unlock": (
        kernel, "_release", "_unlock(live, int(out.nodes[length - 1]))", "pass",
    ),
    "an unpin forgets to unlock": (kernel, "_unhold", "_unlock(live, deepest)", "pass"),
    "what was lost is found": (kernel, "_lose", "hide(live, int(out.nodes[at]))", "pass"),
    "a parent may leave before its child": (
        kernel, "_is_free_leaf", "table.children[node] == 0 and ", "",
    ),
    "a failed request says that its blocks are computed": (
        kernel, "_release", "vouched and ", "",
    ),
    "a lost block stays": (kernel, "_let_go", " and live.ready[node] != LOST", ""),
    "a hit is not held": (kernel, "operate", "        _lock(live, deepest)", "        pass"),
    "pins have no cap": (kernel, "_pin", "live.counts[PINNED] + new > most", "False"),
    "more is taken than fits": (kernel, "_fits", "need <= out.report[ROOM]", "True"),
    "expired blocks are not taken from their heap": (
        kernel, "_close", "live.due.place[node] != NONE", "False",
    ),
    "a number is reused while its child is known": (
        names, "is_idle", " and live.names.kin[node] == 0", "",
    ),
    "a removed name breaks those behind it": (
        names, "hide", "((at - wanted) & mask) >= ((at - gap) & mask)", "False",
    ),
    "names have no parent": (names, "_is", "live.table.parent[node] != parent", "False"),
}  # fmt: skip

PARTS: dict[str, Mutant] = {
    "the tail is kept after a failure": (
        scheduler.KVCacheScheduler, "_end",
        "keep = min(keep, lease.computed_tokens // self.block_size)", "pass",
    ),
    "what another lost is kept": (
        scheduler.KVCacheScheduler, "_end", "lease.lost_from is not None", "False",
    ),
    "a double release frees twice": (
        scheduler.KVCacheScheduler, "release", "if lease.released or", "if",
    ),
    "a cancelled request leaves others waiting": (
        scheduler.KVCacheScheduler, "cancel", "self._pumped() if removed else []", "[]",
    ),
    "a released lease leaves others waiting": (
        scheduler.KVCacheScheduler, "release", "self._pumped()", "[]",
    ),
    "namespaces are ignored": (
        chain.ChainMaker, "_space",
        "request.cache_salt, request.lora_name, request.model_revision, tenant or None", "None",
    ),
    "no copy on write": (
        blocks.BlockManager, "_must_copy", "last < len(lease._nodes) or", "False and",
    ),
    "a shared block is freed by the first": (
        blocks.BlockManager, "_unshare", "if holders == 1:", "if holders:",
    ),
    "a copy moves what it shares": (
        blocks.BlockManager, "_replace", "self._unshare([old])", "pass",
    ),
    "loads go before offloads": (
        blocks.BlockManager, "hold", "lease.moves = tuple(moves)",
        "lease.moves = tuple(sorted(moves, key=lambda move: move.kind))",
    ),
    "whoever stored the same second says that it is computed": (
        blocks.BlockManager, "_end", "ready[others] = COMPUTING", "pass",
    ),
    "a partial block that nobody computed stays": (
        blocks.BlockManager, "_replace", "keep = 0", "partition.live.ready[node] = READY",
    ),
    "nobody is told of lost blocks": (
        blocks.BlockManager, "lose", "self._holds(other, bad, first)", "False",
    ),
    "what lies below a lost block stays below": (
        blocks.BlockManager, "_drop", "home.second is not None", "False",
    ),
    "uncomputed blocks are offloaded": (
        blocks.BlockManager, "_keep", "ready[each.node] == READY and", "",
    ),
    "quotas are ignored": (
        store.Store, "_new_home", "limit=capacity", "limit=self.capacity",
    ),
    "guarantees are ignored": (store.Home, "lendable", "min(self.excess, ", "min(10**9, "),
    "the reserve is not kept": (
        admission.Gate, "_turn", "return None, self._is_over_quota(request, chain, home)",
        "return self._settle(ticket, self._reject(request, 'no room')), False",
    ),
    "what is spilled can be loaded at once": (
        second.SecondTier, "hold_below", "kernel.WAITS", "kernel.HITS",
    ),
    "what is spilled is not held": (
        second.SecondTier, "spill", "lease._spilled =",
        "own.fail(own.out.nodes[:count].copy(), own.out.blocks[:0], count, now)\n    _ =",
    ),
    "bytes that were not carried count as written": (
        outbox.Outbox, "_forget", "self.cache.blocks.discard(failed.moves, self.cache.last_now)",
        "set()",
    ),
    "an ended pin holds on": (pins.Pins, "remove", "ended = [what]", "ended = []"),
}  # fmt: skip


def _break(monkeypatch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    place, name, before, after = mutant
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    monkeypatch.setattr(partition, "_bound", {})
    if isinstance(place, type):
        module = __import__(place.__module__, fromlist=["_"])
        made = place.__dict__[name]
        if isinstance(made, property):
            assert made.fget is not None
            made = property(
                edited(made.fget, module, f"@property\n{''}def", "def")
                if before == "@"
                else _property(made.fget, module, before, after)
            )
            monkeypatch.setattr(place, name, made)
            return
        monkeypatch.setattr(place, name, edited(made, module, before, after))
        return
    broken = edited(getattr(place, name), place, before, after)
    for module in (kernel, names):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, broken)
    if name == "operate":
        monkeypatch.setattr(partition, "operate", broken)


def _property(get: Callable[..., Any], module: Any, before: str, after: str) -> property:
    found = edited(get, module, before, after)
    assert isinstance(found, property)
    return found


def is_noticed(examples: int = 400) -> bool:
    """Whether the machine finds a fault."""

    class One(CacheMachine):
        policies = ["lru"]  # noqa: RUF012  # set once
        others = ["lru", "sieve", "arc"]  # noqa: RUF012  # set once

    try:
        run_state_machine_as_test(
            One,
            settings=settings(
                max_examples=examples,
                stateful_step_count=40,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except Exception:  # noqa: BLE001  # whatever shows a fault
        return True
    return False


@pytest.mark.parametrize("what", KERNEL | PARTS)
def test_a_broken_cache_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, (KERNEL | PARTS)[what])
    assert is_noticed()
