"""From what changed to accept, tune or reject, by the course's rules.

Source: the course's rules for prefix caching and for the serving scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from kvsched.foundation.errors import UsageError

Verdict = Literal["accept", "tune", "reject", "pending"]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on both sides. None where a side did not measure it."""

    name: str
    unit: str
    a: float | None
    b: float | None
    difference: float | None
    """b − a."""
    relative: float | None
    """(b − a) / a; None where a is 0."""
    low: float | None
    """Of the interval of the difference; None where there are too few values for one."""
    high: float | None
    distinguishable: bool | None
    """Whether the interval leaves out 0."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What the change costs those whom it does not help: the larger of both parts."""

    value: float | None
    tpot_rise: float | None
    """Relative rise of the median TPOT."""
    miss_ttft_rise: float | None
    """Relative rise of the median TTFT of requests that hit nothing on either side."""
    miss_requests: int
    """How many those are; with fewer than the least they do not count."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds. Rises, falls and gains are relative, but for shares, which are differences.

    Raises UsageError for a threshold that is negative.
    """

    min_hit_rate_gain: float = 0.05
    max_overhead: float = 0.05
    min_ttft_fall: float = 0.0
    max_tpot_rise: float = 0.0
    min_throughput_gain: float = 0.05
    max_fairness_fall: float = 0.05
    max_throughput_fall: float = 0.0
    max_utilization_fall: float = 0.0
    judge_points: bool = False
    """Judge differences as they are, whether or not they can be told from chance."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, bool) and not 0 <= value < 1e6:
                raise UsageError(f"--{name.replace('_', '-')} {value}: at least 0")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's part. ``passed`` is None where what it needs was not measured."""

    name: str
    passed: bool | None
    said: str


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What follows, and why."""

    decision: Verdict
    reason: str
    conditions: tuple[Condition, ...]


def decide_prefix_cache(
    changes: Mapping[str, Change], overhead: Overhead, rules: Rules
) -> Decision:
    """Accept where the hit rate gains enough, TTFT falls, and the overhead is within its limit.

    Tune where the overhead alone fails, else reject. A part that was not measured has not passed:
    where no other part fails, the decision is pending.
    """
    gain = _rise(
        "hit-rate gain", changes["hit rate"], rules.min_hit_rate_gain, rules, relative=False
    )
    ttft = _fall("TTFT falls", changes["TTFT p50"], rules.min_ttft_fall, rules)
    cost = _overhead(overhead, rules)
    conditions = (gain, ttft, cost)
    if False in (gain.passed, ttft.passed):
        return _decided("reject", conditions)
    if None in (gain.passed, ttft.passed, cost.passed):
        return _decided("pending", conditions)
    return _decided("accept" if cost.passed else "tune", conditions)


def decide_scheduler(changes: Mapping[str, Change], rules: Rules) -> Decision:
    """Accept where TTFT falls, TPOT does not rise, throughput gains enough and fairness holds.

    Tune where throughput and utilisation do not fall, else reject; pending where it hangs on what
    was not measured. Utilisation is the mean number of running requests.
    """
    throughput, running = changes["output throughput"], changes["running requests"]
    needed = (
        _fall("TTFT falls", changes["TTFT p50"], rules.min_ttft_fall, rules),
        _not_up("TPOT does not rise", changes["TPOT p50"], rules.max_tpot_rise, rules),
        _rise("throughput gains", throughput, rules.min_throughput_gain, rules),
        _not_down("fairness holds", changes["fairness"], rules.max_fairness_fall, rules, False),
    )
    kept = (
        _not_down("throughput does not fall", throughput, rules.max_throughput_fall, rules),
        _not_down("utilisation does not fall", running, rules.max_utilization_fall, rules),
    )
    conditions = (*needed, *kept)
    passed = [each.passed for each in needed]
    if all(passed):
        return _decided("accept", conditions)
    if False not in passed:
        return _decided("pending", conditions)
    tunable = [each.passed for each in kept]
    if False in tunable:
        return _decided("reject", conditions)
    return _decided("pending" if None in tunable else "tune", conditions)


def _decided(decision: Verdict, conditions: tuple[Condition, ...]) -> Decision:
    wrong = [each.said for each in conditions if each.passed is False]
    unknown = [each.said for each in conditions if each.passed is None]
    right = [each.said for each in conditions if each.passed]
    told = {"accept": right, "tune": wrong, "reject": wrong, "pending": unknown + wrong}[decision]
    return Decision(
        decision=decision, reason=f"{decision}: {'; '.join(told)}", conditions=conditions
    )


def _rise(
    name: str, change: Change, least: float, rules: Rules, relative: bool = True
) -> Condition:
    """Passed where the figure rose by at least ``least``, and not by chance."""
    amount = change.relative if relative else change.difference
    if amount is None:
        return _unknown(name, change)
    chance = _by_chance(change, rules)
    # What is measured to a rounding must not fail by it.
    passed = amount >= least - 1e-12 and amount > 0 and not chance
    said = f"{_words(change, relative)} where at least {_size(least, relative)} is asked for"
    return Condition(name=name, passed=passed, said=said + _doubt(chance))


def _fall(name: str, change: Change, least: float, rules: Rules) -> Condition:
    """Passed where the figure fell by more than ``least``, and not by chance."""
    if change.relative is None:
        return _unknown(name, change)
    chance = _by_chance(change, rules)
    passed = change.relative < -least and not chance
    said = f"{_words(change)} where a fall of more than {_size(least)} is asked for"
    return Condition(name=name, passed=passed, said=said + _doubt(chance))


def _not_up(name: str, change: Change, most: float, rules: Rules) -> Condition:
    if change.relative is None:
        return _unknown(name, change)
    chance = _by_chance(change, rules)
    passed = change.relative <= most or chance
    said = f"{_words(change)} where a rise of at most {_size(most)} is allowed"
    return Condition(name=name, passed=passed, said=said + _doubt(chance))


def _not_down(
    name: str, change: Change, most: float, rules: Rules, relative: bool = True
) -> Condition:
    amount = change.relative if relative else change.difference
    if amount is None:
        return _unknown(name, change)
    chance = _by_chance(change, rules)
    passed = amount >= -most or chance
    said = f"{_words(change, relative)} where a fall of at most {_size(most, relative)} is allowed"
    return Condition(name=name, passed=passed, said=said + _doubt(chance))


def _overhead(found: Overhead, rules: Rules) -> Condition:
    name = "overhead"
    if found.value is None:
        return Condition(
            name=name,
            passed=None,
            said="the overhead was not measured (no TPOT on both sides, or A's median is 0: its "
            "tokens came together)",
        )
    said = f"overhead {_size(found.value)} where at most {_size(rules.max_overhead)} is allowed"
    return Condition(name=name, passed=found.value <= rules.max_overhead, said=said)


def _unknown(name: str, change: Change) -> Condition:
    why = "of A is 0" if change.a == 0 else "was not measured on both sides"
    return Condition(name=name, passed=None, said=f"{change.name} {why}")


def _by_chance(change: Change, rules: Rules) -> bool:
    """Whether the difference may be chance; where there is no interval, nobody says so."""
    return not rules.judge_points and change.distinguishable is False


def _doubt(chance: bool) -> str:
    return " (its interval contains 0: not distinguishable)" if chance else ""


def _words(change: Change, relative: bool = True) -> str:
    amount = change.relative if relative else change.difference
    assert amount is not None  # noqa: S101  # asked before
    if amount == 0:
        return f"{change.name} stays as it is"
    return f"{change.name} {'rises' if amount > 0 else 'falls'} by {_size(abs(amount), relative)}"


def _size(amount: float, relative: bool = True) -> str:
    return f"{100 * amount:.3g}{'%' if relative else ' points'}"
