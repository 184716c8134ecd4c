"""From the numbers to three sentences: what to do, what it gains, what is uncertain."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from kvsched.replay.engine import GENERIC, Rules
from kvsched.replay.run import Replay
from kvsched.study.result import CapacitySummary, PolicyRow, Recommendation, Target
from kvsched.study.worth import Worth

WORTH_CHANGING = 1.02
"""A gain in the throughput's bound below this is called too little."""

PARTS = 4
"""The trace is cut into as many parts to see whether a policy's lead holds in each."""


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.1f}%"


def _size(blocks: int, unit: str, gib: float | None) -> str:
    return f"{blocks:,} {unit}" + ("" if gib is None else f" ({gib:,.1f} GiB)")


def parts_led(best: Replay, other: Replay) -> int:
    """Return in how many of `PARTS` equal parts of the requests ``best`` hits more tokens."""
    edges = np.linspace(0, len(best.trace), PARTS + 1).astype(np.int64)
    ahead = best.request_hit_tokens - other.request_hit_tokens
    return sum(int(ahead[low:high].sum()) > 0 for low, high in itertools.pairwise(edges))


def best_row(rows: list[PolicyRow], own: str, model_of_own: str | None = None) -> PolicyRow:
    """Return the policy with most hit tokens that an engine could run; ``own`` wins ties.

    ``model_of_own`` is the same order as ``own`` in a simpler pool, and so no other choice.
    """
    able = [row for row in rows if not row.looks_ahead and row.policy != model_of_own]
    return max(able, key=lambda row: (row.hit_tokens, row.policy == own))


def _bound(worth: Worth | None) -> float | None:
    return None if worth is None else worth.gain_bound or worth.flops_gain_bound


def _too_little(best: PolicyRow, own: PolicyRow, worths: dict[str, Worth | None]) -> bool:
    """Whether the throughput's bounds are known, and hardly differ."""
    after, before = _bound(worths[best.policy]), _bound(worths[own.policy])
    return after is not None and before is not None and after / before < WORTH_CHANGING


def _gain_sentence(
    chosen: PolicyRow,
    best: PolicyRow,
    own: PolicyRow,
    fit: PolicyRow,
    worths: dict[str, Worth | None],
) -> str:
    text = (
        f"{chosen.policy} hits {_percent(chosen.token_share)} of the prompt tokens there; the best "
        f"that an engine's own pool could hit is {_percent(fit.token_share)}"
    )
    other = own if chosen.policy != own.policy else best
    if other.policy != chosen.policy:
        text += f", and {other.policy} hits {_percent(other.token_share)}"
    worth, bound = worths[chosen.policy], _bound(worths[chosen.policy])
    if worth is None or bound is None:
        unknown = "; what that is worth is not known without a model and a GPU (--model, --gpu)"
        return text + (unknown if worth is None else "") + "."
    by = f"at {worth.batch} requests a step" if worth.gain_bound is not None else "by FLOPs alone"
    text += (
        f"; what {chosen.policy} hits is worth at most {bound:.2f}× the throughput of no cache {by}"
    )
    against = _bound(worths[other.policy])
    if other.policy != chosen.policy and against is not None:
        text += f", against {against:.2f}× with {other.policy}"
        if _too_little(best, own, worths):
            text += ": too little to change an engine for"
    return text + "."


def _uncertain_sentence(
    best: PolicyRow,
    own: PolicyRow,
    led: int | None,
    settings: dict[str, Any],
    sampled: str,
    generic: bool,
) -> str:
    text = f"Uncertain: {sampled}"
    if settings.get("session_arrivals") == "zero":
        text += "all sessions were set to start at once (--session-arrivals says otherwise); "
    text += "requests are replayed one after another, so blocks that "
    text += (
        "running requests pin and that generated tokens take"
        if generic
        else ("other running requests pin")
    )
    text += " are left out"
    if led is not None and led < PARTS and best.policy != own.policy:
        text += f"; {best.policy} leads {own.policy} in only {led} of {PARTS} parts of the trace"
    return text + "."


def _wanted(policy: str, targets: list[Target], capacity: CapacitySummary) -> str:
    """Say what capacity of ``policy`` reaches 90% of the ceiling, and where it is a grid's."""
    named = (target for target in targets if target.policy == policy and target.share == 0.9)
    target = next(named, None)
    if target is None or target.blocks is None:
        return ""
    size = _size(target.blocks, capacity.unit, target.gib)
    grid = "" if target.exact else " at most (a point of the grid: --points has more)"
    if target.blocks > capacity.blocks:
        return f"; it would need {size}{grid} for 90% of the ceiling"
    return f"; {size}{grid} would do for 90% of the ceiling"


def recommend(
    rows: list[PolicyRow],
    own: PolicyRow,
    capacity: CapacitySummary,
    targets: list[Target],
    worths: dict[str, Worth | None],
    led: int | None,
    settings: dict[str, Any],
    sampled: str,
    rules: Rules,
) -> Recommendation:
    """Choose a policy and a capacity. ``rows`` hold every policy at the study's capacity."""
    best = best_row(rows, own.policy, rules.model_of_own)
    fit = next(row for row in rows if row.policy == "opt-fit")
    doubtful = best.policy != own.policy and led is not None and led < PARTS
    doubtful = doubtful or _too_little(best, own, worths)
    chosen = own if doubtful else best
    verb = "Keep" if chosen.policy == own.policy else f"Replace {own.policy} by"
    first = f"{verb} {chosen.policy} at {_size(capacity.blocks, capacity.unit, capacity.gib)}"
    blocks: int | None = capacity.blocks
    first += _wanted(chosen.policy, targets, capacity)
    sentences = (
        first + ".",
        _gain_sentence(chosen, best, own, fit, worths),
        _uncertain_sentence(best, own, led, settings, sampled, rules.name == GENERIC),
    )
    return Recommendation(policy=chosen.policy, capacity_blocks=blocks, sentences=sentences)
