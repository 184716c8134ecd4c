"""Hooks of a live cache with one thing wrong: the checks must tell each from the real one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from live_checks import check_all, check_cleared
from live_driver import Live
from live_scenarios import (
    CLAIMS,
    HEAD,
    TOOLS,
    check_claim_goes_on,
    check_count_is_forgotten,
    check_filled_costs,
    check_later_request,
    check_own_lifetime,
    check_sequential,
    longer_trace,
)
from live_script import play
from mutants import edited

from kvsched.kernel import hooks
from kvsched.policy.base import Policy
from kvsched.policy.registry import make


def no_resume(table: Any, state: Any, request: int, now: float, last_rank: int) -> None:
    """Nothing; the stub itself would stand for `begin`."""


def touch(table: Any, state: Any, node: int, rank: int) -> None:
    state.touched[node] = rank


NOTHING: dict[str, Any] = {
    "on_release": hooks.on_release,
    "on_drop": hooks.on_drop,
    "forget": hooks.forget,
    "resume": no_resume,
}


class Wrong(NamedTuple):
    label: str
    hook: str
    instead: Any = None
    """Another function; None: one that does nothing. Or the pieces of source to replace."""


BY_ACCESS = [
    *("lru", "lfu", "slru", "chapter", "decay", "mru", "arc", "wtinylfu", "marconi", "wild"),
    *("priority", "ttl", "tlru", "gdsf", "pgdsf"),
]

VARIANTS = {
    **{f"a release that {name} does not hear of": Wrong(name, "on_release") for name in BY_ACCESS},
    "a release that is a use in fifo": Wrong("fifo", "on_release", touch),
    "a release that is a use in filo": Wrong("filo", "on_release", touch),
    "a bit of what was taken out": Wrong("sieve", "on_drop"),
    "arc counts what was taken out": Wrong("arc", "on_drop"),
    "s3fifo counts what was taken out": Wrong("s3fifo", "on_drop"),
    "wtinylfu counts what was taken out": Wrong("wtinylfu", "on_drop"),
    "a head that expires after it was taken out": Wrong(HEAD, "on_drop"),
    "a life that goes on after it was taken out": Wrong(TOOLS, "on_drop"),
    "a ghost of arc with another's number": Wrong("arc", "forget"),
    "a ghost of s3fifo with another's number": Wrong("s3fifo", "forget"),
    "a class with another's number": Wrong("wild", "forget"),
    "a cost with another's number": Wrong("pgdsf", "forget"),
    "a claim with another's number": Wrong(CLAIMS, "forget"),
    "a claim that is forgotten, and its tip not": Wrong(
        CLAIMS, "forget", ("state.tip[session] = above", "pass")
    ),
    "a count of the sketch with another's number": Wrong("wtinylfu", "forget"),
    "blocks of sieve's last request again": Wrong("sieve", "resume", no_resume),
    "a cursor of the last request": Wrong("wtinylfu", "resume", no_resume),
    "a block filled at the last request's time": Wrong("decay", "resume", no_resume),
    "marconi's clock stands while a request runs": Wrong("marconi", "resume", no_resume),
    "wild's clock stands while a request runs": Wrong("wild", "resume", no_resume),
    "a life from the last request's beginning": Wrong(TOOLS, "resume", no_resume),
    "a resumed request gives up its own claim": Wrong(CLAIMS, "resume", make("tlru").begin),
    "a filled block costs what the prompt did": Wrong("pgdsf", "resume", make("pgdsf").begin),
    "a victim chosen that was pinned since": Wrong(
        "s3fifo", "leave", ("state.counts[CHOSEN] == node", "False")
    ),
    "a tip that the conversation's other request moves": Wrong(
        "tlru",
        "on_insert",
        ("_on_hit(table, state, node, rank)", "state.tip[state.running[SESSION]] = node"),
    ),
    "a class of the cache's first request": Wrong(
        "wild", "begin", ("_kind_of(state, request)", "state.request_kind[request]")
    ),
}


def broken(variant: Wrong) -> Policy:
    """Return the live policy with the one hook replaced."""
    real = make(variant.label).live_form()
    wrong = NOTHING[variant.hook] if variant.instead is None else variant.instead
    if isinstance(wrong, tuple):
        module = sys.modules[type(real).__module__]
        wrong = edited(getattr(type(real), variant.hook), module, *wrong)
    made = type("Broken", (type(real),), {variant.hook: staticmethod(wrong)})
    return made(**real.values)


def structures(policy: Policy) -> None:
    for seed in range(12):
        live = play(policy, seed, watch=check_all, sessionless=seed % 2 == 0)
        live.clear()
        check_cleared(live, Live(policy, 9, 12))


def sequential(policy: Policy) -> None:
    for seed in range(4):
        check_sequential(policy, longer_trace(seed), 12)


def meanings(policy: Policy) -> None:
    """The scenarios of the policies that have some of their own."""
    for scenario in SCENARIOS.get(policy.name, ()):
        scenario(policy)


SCENARIOS: dict[str, tuple[Callable[[Policy], None], ...]] = {
    "tlru": (check_claim_goes_on, check_later_request),
    "pgdsf": (check_filled_costs,),
    "wtinylfu": (check_count_is_forgotten,),
    "ttl": (check_own_lifetime,),
}


@functools.cache
def real_passes(label: str) -> bool:
    for check in (structures, sequential, meanings):
        check(make(label))
    return True


@pytest.mark.parametrize("what", VARIANTS)
def test_the_checks_notice(what: str) -> None:
    variant = VARIANTS[what]
    assert real_passes(variant.label)
    for check in (structures, sequential, meanings):
        try:
            check(broken(variant))
        except (AssertionError, IndexError, ValueError):
            return
    pytest.fail(f"nobody noticed: {what}")


def test_every_hook_of_a_live_cache_was_seen_to_fail() -> None:
    assert {variant.hook for variant in VARIANTS.values()} >= set(NOTHING)
