"""Two studies side by side: what changed, and whether it is more than chance within each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.version import VERSION
from kvsched.study.result import AnatomyRow, Curve, StudyResult
from kvsched.study.variation import LEVEL, RESAMPLES, Figure, interval_of

SCHEMA_VERSION = 1
DRAWN_POINTS = 60

DEFINITIONS = {
    "difference": "B minus A; of a share, in points of 1",
    "own_variation": "each trace's windows of time are drawn anew with replacement, "
    f"{RESAMPLES:,} times, A and B apart; the middle {LEVEL:.0%} of the differences is the "
    "interval. A difference is beyond the traces' own variation where the interval leaves out 0. "
    "Windows are not independent, as a cache carries over from one to the next, so it is a guide "
    "and no proof",
    "reusable": "prompt tokens seen before and coverable by a node: what an unlimited cache hits",
    "curve": "share of prompt tokens hit at equal capacities in tokens; between points that were "
    "computed, a straight line over the logarithm of the capacity",
}


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a comparison."""


class Side(_Value, frozen=True, kw_only=True):
    """One of the two studies."""

    source: str
    """Name of the trace."""
    digest: str
    policy: str
    """Whose misses are explained."""
    capacity_tokens: int
    requests: int
    duration_s: float
    token_share: float | None
    """Prompt tokens hit by the policy at the capacity, of all."""


class Change(_Value, frozen=True, kw_only=True):
    """One figure of both."""

    name: str
    unit: str
    """``share`` is from 0 to 1."""
    a: float | None
    b: float | None
    difference: float | None
    ratio: float | None
    """B over A; None where A is 0."""
    low: float | None = None
    """The interval of the difference under the traces' own variation; None where not known."""
    high: float | None = None
    beyond_variation: bool | None = None


class CurveChange(_Value, frozen=True, kw_only=True):
    """One policy's hits over capacities that both studies cover."""

    policy: str
    capacity_tokens: tuple[int, ...]
    a: tuple[float, ...]
    """Share of A's prompt tokens."""
    b: tuple[float, ...]
    largest_difference: float
    """B minus A where they are farthest apart."""


class Comparison(_Value, frozen=True, kw_only=True):
    """What changed from study A to study B."""

    schema_version: int = SCHEMA_VERSION
    kvsched: str
    """Version that made it."""
    a: Side
    b: Side
    definitions: dict[str, str]
    workload: tuple[Change, ...]
    anatomy: tuple[Change, ...]
    """Shares of the prompt tokens by class, at each study's capacity."""
    policies: tuple[Change, ...]
    """Share of prompt tokens hit by every policy that both studied."""
    curves: tuple[CurveChange, ...]
    sentences: tuple[str, ...]
    """What changed, where it went, and what capacity would make up for it."""
    warnings: tuple[str, ...]
    """What makes the two hard to compare."""


_CLASSES = ("hit", "compulsory", "tail", "capacity", "regret")


def _change(
    name: str,
    unit: str,
    a: float | None,
    b: float | None,
    interval: tuple[float, float] | None = None,
) -> Change:
    difference = None if a is None or b is None else b - a
    ratio = b / a if a and b is not None else None
    low, high = interval or (None, None)
    beyond = None if low is None or high is None else not low <= 0.0 <= high
    if beyond is not None and difference == 0:
        beyond = False
    return Change(
        name=name, unit=unit, a=a, b=b, difference=difference, ratio=ratio,
        low=low, high=high, beyond_variation=beyond,
    )  # fmt: skip


def _of(numerator: int, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _workload(a: StudyResult, b: StudyResult) -> tuple[Change, ...]:
    def both(name: str, unit: str, value: Callable[[StudyResult], float | None]) -> Change:
        return _change(name, unit, value(a), value(b))

    prompts: Figure = lambda row: (row.tokens, row.requests)  # noqa: E731  # one expression
    lengths = interval_of(a, b, prompts)
    mean_a, mean_b = a.trace.mean_input_tokens, b.trace.mean_input_tokens
    return (
        both("requests", "requests", lambda r: r.trace.requests),
        both("duration", "s", lambda r: r.trace.duration_s),
        both("rate", "requests/s", lambda r: _of(r.trace.requests, r.trace.duration_s)),
        _change("prompt of a request", "tokens", mean_a, mean_b, lengths),
        both("output of a request", "tokens", lambda r: r.trace.mean_output_tokens),
        both("distinct blocks", "blocks", lambda r: r.trace.distinct_blocks),
        both("distinct of all references", "share", _distinct),
        both("blocks seen once", "share", lambda r: r.seen_once.share),
        both("median time to reuse", "s", lambda r: r.reuse.median_s),
        both("longest chain", "blocks", lambda r: r.trace.longest_chain_blocks),
        both("sessions", "sessions", lambda r: r.trace.sessions),
    )


def _unit(result: StudyResult) -> int:
    """Tokens in a capacity's unit."""
    return result.trace.block_size or 1


def _distinct(result: StudyResult) -> float | None:
    return _of(result.trace.distinct_blocks, result.trace.blocks)


def _anatomy(a: StudyResult, b: StudyResult) -> tuple[Change, ...]:
    found = []
    for name in ("reusable", *_CLASSES):
        parts = ("hit", "capacity", "regret") if name == "reusable" else (name,)

        def amount(row: AnatomyRow, parts: tuple[str, ...] = parts) -> tuple[int, int]:
            return sum(int(getattr(row, part)) for part in parts), row.tokens

        shares = [_of(*amount(result.anatomy.overall)) for result in (a, b)]
        found.append(_change(name, "share", shares[0], shares[1], interval_of(a, b, amount)))
    return tuple(found)


def _policies(a: StudyResult, b: StudyResult) -> tuple[Change, ...]:
    other = {row.policy: row.token_share for row in b.policies}
    return tuple(
        _change(row.policy, "share", row.token_share, other[row.policy])
        for row in a.policies
        if row.policy in other
    )


def _curve_over(result: StudyResult, curve: Curve) -> tuple[NDArray[Any], NDArray[Any]]:
    """The logarithm of the capacity in tokens, and the share of prompt tokens hit."""
    tokens = np.array(curve.capacity_blocks, np.float64) * _unit(result)
    return np.log(tokens), np.array(curve.hit_tokens) / max(result.trace.prompt_tokens, 1)


def _curves(a: StudyResult, b: StudyResult) -> tuple[CurveChange, ...]:
    other = {curve.policy: curve for curve in b.curves}
    found = []
    for curve in a.curves:
        if curve.policy not in other:
            continue
        at_a, share_a = _curve_over(a, curve)
        at_b, share_b = _curve_over(b, other[curve.policy])
        low, high = max(at_a[0], at_b[0]), min(at_a[-1], at_b[-1])
        if low >= high:
            continue
        tokens = np.unique(np.rint(np.exp(np.linspace(low, high, DRAWN_POINTS))).astype(np.int64))
        at = np.log(tokens)
        first, second = np.interp(at, at_a, share_a), np.interp(at, at_b, share_b)
        apart = second - first
        found.append(
            CurveChange(
                policy=curve.policy,
                capacity_tokens=tuple(int(each) for each in tokens),
                a=tuple(round(float(each), 9) for each in first),
                b=tuple(round(float(each), 9) for each in second),
                largest_difference=round(float(apart[np.argmax(np.abs(apart))]), 9),
            )
        )
    return tuple(found)


def _points(change: float) -> str:
    return f"{100 * change:+.1f} points".replace("-", "−")


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.1f}%"


def _told(change: Change) -> str:
    """Say a change of a share, and whether chance within the traces would do."""
    if change.difference is None:
        return "cannot be compared"
    text = _points(change.difference)
    if change.low is None or change.high is None:
        return f"{text} (the traces' own variation is not known)"
    interval = f"{100 * change.low:+.1f} to {100 * change.high:+.1f}".replace("-", "−")
    if change.beyond_variation:
        why = f"{interval} when the windows are drawn anew, never 0"
        return f"{text}, more than the traces' own variation ({why})"
    return f"{text}, no more than the traces' own variation ({interval}, 0 among them)"


def _makes_up(a: StudyResult, b: StudyResult) -> str | None:
    """Say which capacity on B makes A's policy hit what it hits on A, if a curve tells."""
    policy = a.policy
    row = next((row for row in a.policies if row.policy == policy), None)
    curve = next((each for each in b.curves if each.policy == policy), None)
    if row is None or row.token_share is None or curve is None:
        return None
    wanted = row.token_share * b.trace.prompt_tokens
    enough = (
        blocks * _unit(b)
        for blocks, hits in zip(curve.capacity_blocks, curve.hit_tokens, strict=True)
        if hits >= wanted
    )
    tokens = next(enough, None)
    share = _percent(row.token_share)
    if tokens is None:
        return f"No capacity that was studied makes {policy} hit {share} on B, as it does on A."
    return (
        f"{policy} hits {share} on B with at most {tokens:,} tokens, as it does on A with "
        f"{a.capacity.tokens:,}."
    )


def _sentences(a: StudyResult, b: StudyResult, anatomy: tuple[Change, ...]) -> tuple[str, ...]:
    by_name = {change.name: change for change in anatomy}
    hit = by_name["hit"]
    sentences = [
        f"{a.policy} hits {_percent(hit.a)} of the prompt tokens in A"
        + (f", {b.policy}" if b.policy != a.policy else ", and")
        + f" {_percent(hit.b)} in B: {_told(hit)}."
    ]
    moved = [
        change for change in anatomy if change.name in _CLASSES[1:] and change.beyond_variation
    ]
    if moved:
        most = max(moved, key=lambda change: abs(change.difference or 0.0))
        sentences.append(
            f"Among the misses, {most.name} changed most: {_percent(most.a)} to "
            f"{_percent(most.b)}, {_told(most)}."
        )
    else:
        sentences.append("No class of misses changed by more than the traces' own variation.")
    made_up = _makes_up(a, b)
    return (*sentences, made_up) if made_up else tuple(sentences)


def _rule(definition: str | None) -> str | None:
    """Return a definition without the figures of its own trace."""
    if definition is None or "blocks named" not in definition:
        return definition
    return definition.partition(":")[0]


def _warnings(a: StudyResult, b: StudyResult) -> tuple[str, ...]:
    found = []
    if a.capacity.tokens != b.capacity.tokens:
        found.append(
            f"the capacities differ: {a.capacity.tokens:,} tokens in A, {b.capacity.tokens:,} in B"
        )
    if a.policy != b.policy:
        found.append(f"the policies differ: {a.policy} in A, {b.policy} in B")
    if a.trace.block_size != b.trace.block_size:
        found.append(
            f"the blocks differ: {a.trace.block_size} tokens in A, {b.trace.block_size} in B"
        )
    differ = sorted(
        name
        for name in {*a.definitions, *b.definitions}
        if _rule(a.definitions.get(name)) != _rule(b.definitions.get(name))
    )
    for letter, one, other in (("A", a, b), ("B", b, a)):
        known = {row.policy for row in other.policies}
        alone = [row.policy for row in one.policies if row.policy not in known]
        if alone:
            found.append(f"studied in {letter} alone: {', '.join(alone)}")
    if differ:
        found.append(f"the definitions differ: {', '.join(differ)}")
    if a.kvsched != b.kvsched:
        found.append(f"made by different versions: {a.kvsched} and {b.kvsched}")
    if a.trace.digest == b.trace.digest:
        found.append("both are of the same trace")
    return tuple(found)


def _side(result: StudyResult) -> Side:
    own = next(row for row in result.policies if row.policy == result.policy)
    return Side(
        source=result.trace.source,
        digest=result.trace.digest,
        policy=result.policy,
        capacity_tokens=result.capacity.tokens,
        requests=result.trace.requests,
        duration_s=result.trace.duration_s,
        token_share=own.token_share,
    )


def compare(a: StudyResult, b: StudyResult) -> Comparison:
    """Compare two studies: workload, curves, anatomy, each beside the traces' own variation.

    Works on results alone; no trace is read. Deterministic: what is drawn has a fixed seed.
    """
    anatomy = _anatomy(a, b)
    return Comparison(
        kvsched=VERSION,
        a=_side(a),
        b=_side(b),
        definitions=DEFINITIONS,
        workload=_workload(a, b),
        anatomy=anatomy,
        policies=_policies(a, b),
        curves=_curves(a, b),
        sentences=_sentences(a, b, anatomy),
        warnings=_warnings(a, b),
    )
