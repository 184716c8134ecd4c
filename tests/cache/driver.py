"""Long runs of the machine by a seed: more of what a busy cache does than a search for small cases.

Hypothesis looks for short cases and shrinks them; here requests come, run and end at rates of their
own, so that tiers fill, blocks are promoted, and requests wait.
"""

from __future__ import annotations

import random
from typing import Any

from machine import FORMS, SPACES, TIER_POLICIES, CacheMachine

OPERATIONS = {
    "serve": 14, "acquire": 10, "acquire_all": 2, "context": 3, "extend": 9, "compute": 5,
    "fork": 4, "release": 16, "pin": 2, "unpin": 2, "set_policy": 1, "drop_expired": 1, "clear": 1, "poll": 1,
    "cancel": 1, "tick": 2, "fail_next_carry": 1, "lookup": 1, "take_events": 1,
}  # fmt: skip
NEEDS = {"extend": "held", "compute": "held", "fork": "held", "release": "held", "unpin": "pins",
         "cancel": "waiting"}  # fmt: skip


class Driver:
    """Draws settings, operations and prompts from one seed."""

    def __init__(self, machine: type[CacheMachine], seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  # a test's choices
        self.machine = machine()
        self.blocks = self.random.choice([2, 3, 4, 6])
        self.busy = self.random.choice([2, 4, 8])
        self.spaces = self.random.choice([[{}], [{}], SPACES])
        self.forms = self.random.choice([["ids"], ["bytes"], ["content"], FORMS])
        self.tenants = self.random.choice([[""], ["", "q", "g"], ["", "", "q", "g", "r"]])
        self.plain = self.random.random() < 0.5  # half of the runs

    def begin(self) -> None:
        """Make a cache."""
        pick, number = self.random.choice, self.random.randint
        made = {
            "capacity_blocks": number(3, 12),
            "block_size": number(2, 3),
            "when_full": pick(["queue", "queue", "degrade", "reject"]),
            "when_oversize": pick(["reject", "degrade"]),
            "max_waiting": pick([0, 3, 6]),
            "max_waiting_tokens": pick([None, None, 20]),
            "max_passes": pick([0, 2, 1000]),
            "watermark": pick([0.0, 0.0, 0.2]),
            "max_pinned_blocks": pick([None, 3]),
            "priority_retention": pick([None, True, False]),
            "isolate_tenants": pick([True, False]),
            "history_blocks": pick([None, 0, 30]),
            "max_events": pick([0, 4, 1000]),
        }
        tier = None
        if self.random.random() < 0.6:
            tier = {
                "capacity_blocks": number(1, 14),
                "policy": pick(TIER_POLICIES),
                "write": pick(["back", "back", "through"]),
            }
        degrade = pick(["head", "unstored", "tier"])
        self.machine.begin(
            made=made, which=number(0, 30), tier=tier, degrade=degrade,
            tenants=len(self.tenants) > 1, own_carry=pick([True, False]),
        )  # fmt: skip

    def prompt(self) -> Any:
        """Draw a request."""
        pick, number, chance = self.random.choice, self.random.randint, self.random.random
        about: dict[str, Any] = {"tenant": pick(self.tenants)}
        if not self.plain:
            about |= {
                "priority": pick([0, 0, 0, -1, 1]),
                "lifetime_s": pick([None, None, 0.0, 2.0]),
                "deadline": pick([None] * 12 + [-1.0, 0.0, 3.0]),
                "reserve_tokens": pick([0, 0, 0, 1, 4]),
                "session": pick([None, "a", "b"]),
                "type": pick([None, "chat", "tool"]),
                "turn": pick([None, 1, 2]),
                "output_tokens": pick([None, 3]),
            }
        chain = [int(chance() < 0.3) for _ in range(number(0, self.blocks))]
        return (
            chain, number(0, 2), pick(self.forms), chance() < 0.3, int(chance() < 0.1),
            pick(self.spaces), about, number(0, 10) * 6,
        )  # fmt: skip

    def arguments(self, name: str) -> dict[str, Any]:
        """Draw what an operation is given."""
        pick, number, chance = self.random.choice, self.random.randint, self.random.random
        which = number(0, 30)
        found: dict[str, dict[str, Any]] = {
            "serve": {"several": [self.prompt() for _ in range(number(1, 4))]},
            "acquire": {"prompt": self.prompt(), "raises": chance() < 0.2},
            "acquire_all": {"several": [self.prompt() for _ in range(number(1, 3))]},
            "context": {"prompt": self.prompt(), "fails": chance() < 0.3},
            "extend": {"which": which, "count": number(0, 5), "symbol": number(0, 1),
                       "how": pick(["ids", "ids", "count", "hashes"])},
            "compute": {"which": which, "share": number(0, 4), "tell": chance() < 0.5},
            "fork": {"which": which},
            "release": {"which": which, "fails": chance() < 0.25, "twice": chance() < 0.2},
            "pin": {"prompt": self.prompt(), "owner": pick(["a", "b"]), "which": which,
                    "lease": chance() < 0.5},
            "unpin": {"which": which, "by_owner": chance() < 0.5},
            "set_policy": {"which": which},
            "cancel": {"which": which},
            "tick": {"seconds": pick([0.5, 3.0, -5.0])},
            "fail_next_carry": {"after": number(0, 2)},
            "lookup": {"prompt": self.prompt()},
        }  # fmt: skip
        return found.get(name, {})

    def run(self, steps: int) -> None:
        """Do that many operations, everything checked after each."""
        machine = self.machine
        self.begin()
        names, weights = list(OPERATIONS), list(OPERATIONS.values())
        for _ in range(steps):
            name = self.random.choices(names, weights)[0]
            if len(machine.held) > self.busy:
                name = "release"
            if not getattr(machine, NEEDS.get(name, "engine")):
                continue
            if name == "fail_next_carry" and machine.own_carry:
                continue
            getattr(machine, name)(**self.arguments(name))
            machine.is_sound()
            machine.somebody_will_write()
        machine.teardown()
