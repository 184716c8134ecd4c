"""Operations on a live cache by chance, the same for the same seed whatever the numbers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from factory import About
from live_driver import Live, anyone

from kvsched.policy.base import Policy

KEYS = 3
LONGEST = 5


def nothing(live: Live) -> None:
    pass


def drawn_about(random: Any, sessionless: bool) -> About:
    session = int(random.integers(-1 if sessionless else 0, 3))
    return About(session, int(random.integers(-1, 3)), int(random.choice([0, 20, 35, 80])))


def play(
    policy: Policy,
    seed: int,
    *,
    capacity: int = 9,
    numbers: int = 0,
    steps: int = 120,
    watch: Callable[[Live], None] = nothing,
    hostile: bool = True,
    sessionless: bool = True,
    may_forget: Callable[[Live, int], bool] = anyone,
    first_rank: int = 0,
    **options: Any,
) -> Live:
    """Play a script and return the cache; ``watch`` is called after every operation.

    ``numbers`` 0: three more than the blocks, so that most are used again and again. Not
    ``hostile``: nothing fails and only the policy says who leaves.
    """
    random = np.random.default_rng(seed)
    live = Live(policy, capacity, numbers or capacity + 3, **options)
    live.sessionless, live.may_forget, live.rank = sessionless, may_forget, first_rank
    turns: Counter[int] = Counter()
    for _ in range(steps):
        live.now += float(random.choice([0, 0, 1, 20, 61, 240]))
        what = random.random()
        path = tuple(random.integers(0, KEYS, size=int(random.integers(1, LONGEST + 1))).tolist())
        about, which = drawn_about(random, sessionless), int(random.integers(0, 1 << 20))
        instead = which if hostile and random.random() < 0.1 else None
        if what < 0.45 and len(live.leases) < 4:
            turns[about.session] += 1
            turn = turns[about.session] if about.session >= 0 else 1
            live.acquire(path, about, turn=turn, answer=int(which % 9), instead=instead)
        elif live.leases:
            lease = live.leases[which % len(live.leases)]
            if what < 0.65:
                live.extend(lease, path[:2], instead)
            elif what < 0.9 or not hostile:
                live.release(lease)
            else:
                live.fail(lease, which % (len(lease.nodes) + 1))
        if hostile and live.evictable and random.random() < 0.1:
            live.drop(
                sorted(live.evictable, key=live.path.__getitem__)[which % len(live.evictable)]
            )
        watch(live)
    return live
