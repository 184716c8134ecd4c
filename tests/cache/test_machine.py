"""The machine runs over every policy, plain, and over a few compiled."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import POLICIES, CacheMachine

LONG = int(os.environ.get("KVSCHED_MACHINE", "1"))
"""Times as many examples as on every run."""


def run(machine: type[CacheMachine], examples: int, steps: int = 30) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * LONG,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plain(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCHED_COMPILED", "0")

    class One(CacheMachine):
        policies = [policy]  # noqa: RUF012  # set once

    run(One, 25)


def test_compiled() -> None:
    class Compiled(CacheMachine):
        policies = ["lru", "wtinylfu"]  # noqa: RUF012  # set once
        others = ["lru", "wtinylfu"]  # noqa: RUF012  # set once
        tier_policies = ["lru"]  # noqa: RUF012  # set once

    run(Compiled, 150)
