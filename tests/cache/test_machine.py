"""The machine runs over every policy, plain, and over a few compiled.

``KVSCHED_MACHINE=20`` runs twenty times as many cases, all of them new.
"""

from __future__ import annotations

import os

import pytest
from driver import Driver
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import POLICIES, CacheMachine

LONG = int(os.environ.get("KVSCHED_MACHINE", "1"))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plain(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")

    class One(CacheMachine):
        policies = [policy]  # noqa: RUF012  # set once

    first = 1_000 * POLICIES.index(policy)
    for seed in range(first, first + 5 * LONG):
        Driver(One, seed).run(120)


def test_short_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(
            max_examples=60 * LONG,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_compiled() -> None:
    class Compiled(CacheMachine):
        policies = ["lru", "arc"]  # noqa: RUF012  # set once
        others = ["lru", "arc"]  # noqa: RUF012  # set once
        tier_policies = ["lru"]  # noqa: RUF012  # set once

    for seed in range(20 * LONG):
        Driver(Compiled, seed).run(150)
