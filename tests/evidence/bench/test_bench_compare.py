"""Comparing runs: intervals that hold what they promise, and every branch of the decisions."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from bench_results import outcome, result, run

from kvsched.evidence.bench import bootstrap
from kvsched.evidence.bench.bootstrap import (
    STATISTICS,
    BootstrapSettings,
    paired_interval,
    run_interval,
)
from kvsched.evidence.bench.compare import Run, change, compare_runs
from kvsched.evidence.bench.decide import (
    Overhead,
    Rules,
    decide_prefix_cache,
    decide_scheduler,
)
from kvsched.evidence.bench.measured import RequestOutcome
from kvsched.foundation.errors import UsageError

FEW = BootstrapSettings(draws=400)
MEAN = STATISTICS["mean"]


def rejections(
    random: np.random.Generator, repeats: int, between: float, shift: float, times: int
) -> float:
    """Share of experiments whose interval leaves out 0."""
    found = 0
    for _ in range(times):
        base = random.gamma(4.0, 5.0, 40)  # what the requests are alike in, on both sides
        sides = []
        for moved in (0.0, shift):
            noise = random.normal(0, 2.0, (repeats, 40))
            whole = random.normal(0, between, (repeats, 1)) if between else 0.0
            sides.append(base + noise + whole + moved)
        interval = paired_interval(sides[0], sides[1], MEAN, FEW)
        assert interval is not None
        found += interval.leaves_out_0
    return found / times


def test_two_runs_of_the_same_differ_as_seldom_as_promised() -> None:
    share = rejections(np.random.default_rng(1), 1, 0.0, 0.0, 300)
    assert 0.01 < share < 0.11


def test_with_repeats_what_moves_a_whole_run_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rejections(np.random.default_rng(2), 3, 2.0, 0.0, 150) < 0.1
    monkeypatch.setattr(bootstrap, "between_repeats", lambda a, b, asked: np.zeros(asked.draws))
    assert rejections(np.random.default_rng(2), 3, 2.0, 0.0, 150) > 0.4


def test_a_shift_is_found_because_requests_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rejections(np.random.default_rng(3), 1, 0.0, 2.0, 60) > 0.9
    # The same without pairs: the requests' own differences drown it.
    random = np.random.default_rng(3)
    found = 0
    for _ in range(60):
        base = random.gamma(4.0, 5.0, 40)
        one = base + random.normal(0, 2.0, 40)
        other = random.permutation(base) + random.normal(0, 2.0, 40) + 2.0
        interval = paired_interval(one[None], other[None], MEAN, FEW)
        assert interval is not None
        found += interval.leaves_out_0
    assert found / 60 < 0.6


def test_intervals_are_the_same_for_the_same_seed() -> None:
    a, b = np.random.default_rng(0).random((2, 2, 30))
    one = paired_interval(a, b, MEAN, FEW)
    assert one == paired_interval(a, b, MEAN, FEW)
    assert one != paired_interval(a, b, MEAN, BootstrapSettings(draws=400, seed=1))


def test_too_few_values_have_no_interval() -> None:
    assert paired_interval(np.ones((1, 1)), np.ones((1, 1)), MEAN, FEW) is None
    assert run_interval(np.ones(1), np.ones(1), FEW) is None
    assert run_interval(np.array([1.0, 1.1]), np.array([5.0]), FEW) is not None
    with pytest.raises(UsageError, match="--draws"):
        BootstrapSettings(draws=3)
    with pytest.raises(UsageError, match="--confidence"):
        BootstrapSettings(confidence=1.0)


def of(name: str, a: float | None, b: float | None, sure: bool | None = True) -> Any:
    found = change(name, "x", a, b, None)
    return msgspec.structs.replace(found, distinguishable=sure)


def overhead(value: float | None) -> Overhead:
    return Overhead(value=value, tpot_rise=value, miss_ttft_rise=None, miss_requests=0)


@pytest.mark.parametrize(
    ("hits", "ttft", "cost", "decision"),
    [
        ((0.0, 0.5), (100, 60), 0.01, "accept"),
        ((0.0, 0.5), (100, 60), 0.2, "tune"),
        ((0.0, 0.5), (100, 120), 0.01, "reject"),
        ((0.0, 0.5), (100, 120), 0.2, "reject"),
        ((0.0, 0.04), (100, 60), 0.01, "reject"),
        ((0.0, None), (100, 60), 0.01, "pending"),
        ((0.0, None), (100, 60), 0.2, "pending"),
        ((0.0, 0.5), (100, None), 0.01, "pending"),
        ((0.0, 0.5), (100, 60), None, "pending"),
        ((0.0, None), (100, 120), None, "reject"),
    ],
)
def test_prefix_caching(hits: Any, ttft: Any, cost: float | None, decision: str) -> None:
    changes = {"hit rate": of("hit rate", *hits), "TTFT p50": of("TTFT p50", *ttft)}
    found = decide_prefix_cache(changes, overhead(cost), Rules())
    assert found.decision == decision
    assert found.reason.startswith(f"{decision}: ")


def test_what_may_be_chance_is_no_fall_unless_points_are_judged() -> None:
    changes = {
        "hit rate": of("hit rate", 0.0, 0.5),
        "TTFT p50": of("TTFT p50", 100, 99, sure=False),
    }
    found = decide_prefix_cache(changes, overhead(0.0), Rules())
    assert found.decision == "reject"
    assert "not distinguishable" in found.reason
    by_points = decide_prefix_cache(changes, overhead(0.0), Rules(judge_points=True))
    assert by_points.decision == "accept"


def scheduler(**sides: Any) -> dict[str, Any]:
    told = {
        "TTFT p50": (100, 80),
        "TPOT p50": (10, 10),
        "output throughput": (100, 120),
        "fairness": (0.9, 0.9),
        "running requests": (4, 5),
    } | {name.replace("_", " "): value for name, value in sides.items()}
    return {name: of(name, *value) for name, value in told.items()}


@pytest.mark.parametrize(
    ("sides", "decision"),
    [
        ({}, "accept"),
        ({"TTFT_p50": (100, 110)}, "tune"),
        ({"TPOT_p50": (10, 11)}, "tune"),
        ({"fairness": (0.9, 0.5)}, "tune"),
        ({"output_throughput": (100, 102)}, "tune"),
        ({"output_throughput": (100, 90)}, "reject"),
        ({"TTFT_p50": (100, 110), "running_requests": (5, 4)}, "reject"),
        ({"TTFT_p50": (100, 110), "running_requests": (5, None)}, "pending"),
        ({"TTFT_p50": (None, 80)}, "pending"),
        ({"fairness": (0.9, None)}, "pending"),
        ({"fairness": (0.9, None), "output_throughput": (100, 90)}, "reject"),
        ({"running_requests": (None, None)}, "accept"),
    ],
)
def test_the_scheduler(sides: dict[str, Any], decision: str) -> None:
    found = decide_scheduler(scheduler(**sides), Rules())
    assert found.decision == decision, found.reason


def test_every_threshold_moves_its_decision() -> None:
    changes = {"hit rate": of("hit rate", 0.0, 0.5), "TTFT p50": of("TTFT p50", 100, 60)}
    cost = overhead(0.04)

    def decided(**rules: Any) -> str:
        return decide_prefix_cache(changes, cost, Rules(**rules)).decision

    assert decided() == "accept"
    assert decided(min_hit_rate_gain=0.6) == "reject"
    assert decided(min_ttft_fall=0.5) == "reject"
    assert decided(max_overhead=0.03) == "tune"
    worse = scheduler(TPOT_p50=(10, 10.5), fairness=(0.9, 0.8), output_throughput=(100, 97))
    worse["running requests"] = of("running requests", 5, 4.5)
    loose = {"max_tpot_rise": 0.1, "max_fairness_fall": 0.2, "max_throughput_fall": 0.1}
    assert decide_scheduler(worse, Rules(**loose)).decision == "reject"
    assert decide_scheduler(worse, Rules(**loose, max_utilization_fall=0.2)).decision == "tune"
    rules = Rules(max_tpot_rise=0.1, max_fairness_fall=0.2, min_throughput_gain=0.01)
    better = scheduler(TPOT_p50=(10, 10.5), fairness=(0.9, 0.8), output_throughput=(100, 102))
    assert decide_scheduler(better, rules).decision == "accept"
    with pytest.raises(UsageError, match="--max-overhead"):
        Rules(max_overhead=-1)


def test_two_runs_end_to_end() -> None:
    random = np.random.default_rng(0)
    base = random.gamma(4, 20, 60)
    hits = np.where(np.arange(60) % 3 == 0, 0, 32)
    off = run("off", base + random.normal(0, 1, 60))
    on = run("on", np.where(hits > 0, base / 2, base) + random.normal(0, 1, 60), cached=hits)
    found = compare_runs([off], [on], bootstrap=FEW)
    assert found.decision == "accept", found.reason
    assert found.common_requests == 60
    changes = {each.name: each for each in found.changes}
    assert changes["hit rate"].difference == pytest.approx(32 * 40 / (64 * 60))
    assert changes["hit rate"].low is not None
    assert changes["TTFT p50"].distinguishable
    assert changes["TTFT p50"].low < changes["TTFT p50"].difference < changes["TTFT p50"].high
    assert found.overhead.miss_requests == 20
    assert found.overhead.miss_ttft_rise is not None
    assert any("one run a side" in warning for warning in found.warnings)
    again = compare_runs([off, off], [on, on], bootstrap=FEW)
    assert not any("one run a side" in warning for warning in again.warnings)


def test_overhead_is_the_larger_part() -> None:
    a = run("a", np.full(25, 100.0), tpot=10.0)
    slower = run("b", np.full(25, 130.0), tpot=11.0)
    found = compare_runs([a], [slower], bootstrap=FEW).overhead
    assert found.tpot_rise == pytest.approx(0.1)
    assert found.miss_ttft_rise == pytest.approx(0.3)
    assert found.value == pytest.approx(0.3)
    few = compare_runs(
        [run("a", np.full(19, 100.0))], [run("b", np.full(19, 130.0))], bootstrap=FEW
    )
    assert few.overhead.miss_ttft_rise is None
    assert few.overhead.value == pytest.approx(0.0, abs=1e-9)


def test_other_workloads_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="different workloads"):
        compare_runs([run("a", [1.0, 2.0])], [run("b", [1.0, 2.0], digest="e" * 64)])
    with pytest.raises(UsageError, match="at least one run"):
        compare_runs([], [run("b", [1.0])])


def test_a_side_is_of_one_setting() -> None:
    def made(flag: str, blocks: int) -> Run:
        return run("a", [1.0, 2.0], engine={"arguments": ["--seqs", flag], "blocks": blocks})

    with pytest.raises(UsageError, match=r"no repeats of one setting \(engine.arguments.--seqs: 4"):
        compare_runs([made("4", 9), made("8", 9)], [made("8", 9)], bootstrap=FEW)
    compare_runs([made("4", 9), made("4", 7)], [made("8", 9)], bootstrap=FEW)


def test_a_run_compared_with_itself_is_told() -> None:
    a, b = run("a", [1.0, 2.0]), run("b", [1.0, 3.0])
    said = "A and B have a run in common: it is compared with itself"
    assert said in compare_runs([a, b], [a], bootstrap=FEW).warnings
    assert said not in compare_runs([a, a], [b], bootstrap=FEW).warnings


def test_settings_that_differ_are_named() -> None:
    flags = ["--seqs", "4", "--same=1"]
    a = run("a", [1.0, 2.0], engine={"arguments": flags, "url": "u"}, config={"n": 1})
    more = {"arguments": ["--seqs", "8", "--same=1", "--new"], "url": "v"}
    b = run("b", [1.0, 2.0], engine=more, config={"n": 2})
    found = compare_runs([a], [b], bootstrap=FEW)
    assert [(each.name, each.a, each.b) for each in found.differences] == [
        ("config.n", 1, 2),
        ("engine.arguments.--new", None, "given"),
        ("engine.arguments.--seqs", "4", "8"),
    ]


def test_requests_that_failed_on_a_side_are_left_out_of_both() -> None:
    import dataclasses

    from bench_results import failed, result

    a = run("a", [10.0, 20.0, 30.0])
    broken = (a.outcomes[0], failed(1), a.outcomes[2])
    b = dataclasses.replace(a, result=result(list(broken)), outcomes=broken)
    found = compare_runs([a], [b], bootstrap=FEW)
    assert found.common_requests == 2
    assert any("1 of 3 requests failed" in warning for warning in found.warnings)
    assert {each.name: each.a for each in found.changes}["TTFT mean"] == pytest.approx(20)
    nobody = tuple(failed(at) for at in range(3))
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_runs([a], [dataclasses.replace(a, result=result(list(nobody)), outcomes=nobody)])


@pytest.mark.parametrize(("samples", "measured"), [(9, False), (10, True)])
def test_a_few_samples_are_no_utilisation(samples: int, measured: bool) -> None:
    from kvsched.serve.distribution import distribution

    gauges = {"running": distribution(np.full(samples, 2.0))}
    one, other = (run(name, [1.0, 2.0], gauges=gauges) for name in "ab")
    found = compare_runs([one], [other], bootstrap=FEW)
    running = {each.name: each for each in found.changes}["running requests"]
    assert (running.a == 2.0) == measured
    assert (running.a is None) != measured


def of_outcomes(name: str, outcomes: list[RequestOutcome]) -> Run:
    return Run(name, result(outcomes), tuple(outcomes))


@pytest.mark.parametrize("side", [0, 1])
def test_answers_that_come_at_once_decide_nothing(side: int) -> None:
    sides = [
        [outcome(at, ttft_ms=ttft, tokens=8, cached=hit) for at in range(30)]
        for ttft, hit in ((40.0, 0), (20.0, 32))
    ]
    fine = compare_runs([of_outcomes("a", sides[0])], [of_outcomes("b", sides[1])], bootstrap=FEW)
    assert fine.decision == "accept"
    for at in range(20):
        last = sides[side][at].token_s[-1]
        sides[side][at] = msgspec.structs.replace(
            sides[side][at], first_token_s=last, token_s=(last,), token_counts=(8,)
        )
    runs = [of_outcomes(name, outcomes) for name, outcomes in zip("ab", sides, strict=True)]
    found = compare_runs([runs[0]], [runs[1]], bootstrap=FEW)
    assert found.decision == "pending"
    assert "67% of a run's answers came together" in found.reason
    assert any("came together, in one read" in said for said in runs[side].result.warnings)
    assert not any("came together" in said for said in runs[1 - side].result.warnings)


def test_a_median_of_0_on_either_side_is_no_overhead() -> None:
    usual = of_outcomes("a", [outcome(at, tokens=8) for at in range(30)])
    at_once = of_outcomes("b", [outcome(at, tokens=8, tpot_ms=0.0) for at in range(30)])
    for a, b in ((usual, at_once), (at_once, usual)):
        assert compare_runs([a], [b], bootstrap=FEW).overhead.value is None
