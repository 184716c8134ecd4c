"""The rule of decision, at its thresholds."""

from __future__ import annotations

from typing import Any

import pytest

from kvsched.evidence.probe.decide import decide, middle
from kvsched.evidence.probe.report import Accounts, ProbeDecision, Run

THEORY, BLOCKS = 1000, 10


def run(
    requested: int | None = 10_000,
    allocated: int | None = 10_000,
    reserved: int | None = 10_000,
    driver: int | None = 10_000,
) -> Run:
    return Run(
        repeat=1,
        block_count=BLOCKS,
        allocation_ms=1.0,
        warm_allocation_ms=1.0,
        driver_ms=0.0,
        touch_ms=None,
        system_calls=None,
        warm_system_calls=None,
        peak_memory_mb=None,
        accounts=Accounts(
            requested_bytes=requested,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            driver_bytes=driver,
            peak_allocated_bytes=None,
            peak_reserved_bytes=None,
            peak_driver_bytes=None,
        ),
    )


def decided(*runs: Run, **settings: Any) -> ProbeDecision:
    return decide(runs, THEORY, where="Here", **settings)


@pytest.mark.parametrize(
    ("accounts", "decision"),
    [
        ({}, "accept"),
        ({"requested": 10_500, "allocated": 10_500}, "accept"),
        ({"requested": 10_501, "allocated": 10_501}, "reject"),
        ({"requested": 9_499, "allocated": 9_499}, "reject"),
        # Wrong theory counts before everything else.
        ({"requested": 20_000, "allocated": 20_000, "driver": 0}, "reject"),
        ({"driver": 9_499}, "pending"),
        ({"driver": 9_500}, "accept"),
        ({"driver": 90_000}, "accept"),
        ({"driver": None}, "accept"),
        ({"allocated": 9_000}, "pending"),
        ({"allocated": 10_501}, "tune"),
        ({"reserved": 12_500}, "accept"),
        ({"reserved": 12_501}, "tune"),
        ({"reserved": None, "allocated": 10_400}, "accept"),
        ({"reserved": None, "allocated": None}, "accept"),
        ({"requested": None, "allocated": None, "reserved": None}, "pending"),
    ],
)
def test_each_rule_at_its_threshold(accounts: dict[str, int | None], decision: str) -> None:
    found = decided(run(**accounts))
    assert found.decision == decision, found.reason
    assert found.reason.startswith("Here: ")
    assert found.reason.endswith(".")


def test_thresholds_and_noise_are_settings() -> None:
    assert decided(run(requested=10_501, allocated=10_501), tolerance=0.06).decision == "accept"
    assert decided(run(reserved=12_501), overhead_limit=0.3).decision == "accept"
    assert decided(run(driver=9_000), noise_bytes=600).decision == "accept"


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    found = decided(run(requested=None, allocated=None, reserved=None))
    assert found.measured_bytes_per_block is None
    assert found.deviation is None
    assert found.overhead_share is None


def test_medians_are_of_all_runs_or_none() -> None:
    assert middle([1, 5, 9]) == 5
    assert middle([1, None, 9]) is None
    assert middle([]) is None
    outlier = run(requested=90_000, allocated=90_000)
    assert decided(run(), outlier, run()).decision == "accept"
