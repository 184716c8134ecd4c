"""Why it missed: every prompt token in one of five classes that sum to all."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.replay.run import Replay
from kvsched.study.result import Anatomy, AnatomyRow
from kvsched.trace.model import Labels, Trace

Int64s = NDArray[np.int64]

Hits = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
"""Blocks from the root (R,): what the policy hits, what opt-fit hits, what earlier ones used."""

MOST_ROWS = 20
"""Rows of a grouping; the rest are summed into one."""

WINDOWS = 12


class Classes(NamedTuple):
    """Tokens (R,) of each request in each class."""

    tokens: Int64s
    hit: Int64s
    compulsory: Int64s
    tail: Int64s
    capacity: Int64s
    regret: Int64s
    luck: Int64s


def classify(
    trace: Trace,
    policy_hits: NDArray[np.int32],
    fit_hits: NDArray[np.int32],
    seen: NDArray[np.int32],
    low: int = 0,
    high: int | None = None,
    hittable: NDArray[np.int32] | None = None,
) -> Classes:
    """Put every prompt token into its class, as sets along each chain. O(R).

    All three arguments (R,) count blocks from the root: what the policy hits, what opt-fit
    hits, what any earlier request used. ``low`` and ``high`` keep to a range of depths. Of what
    was used an engine's rules can hit the first ``hittable`` (R,) blocks; all of it if None.
    """
    most = trace.chain_blocks.max(initial=0) + 1
    top = int(most) if high is None else high

    def tokens_up_to(blocks: NDArray[np.int32]) -> Int64s:
        inside = np.clip(blocks.astype(np.int64), low, top)
        return trace.prefix_tokens(inside) - trace.prefix_tokens(np.full_like(inside, low))

    hit = tokens_up_to(policy_hits)
    fit = tokens_up_to(fit_hits)
    known = tokens_up_to(seen)
    most_hit = known if hittable is None else tokens_up_to(hittable)
    covered = tokens_up_to(trace.chain_blocks.astype(np.int32))
    ends_here = (trace.chain_blocks >= low) & (trace.chain_blocks < top)
    tail = np.where(ends_here, trace.tail_tokens, 0)
    return Classes(
        tokens=covered + tail,
        hit=hit,
        compulsory=covered - known,
        tail=tail + known - most_hit,
        capacity=most_hit - np.maximum(hit, fit),
        regret=np.maximum(fit - hit, 0),
        luck=np.maximum(hit - fit, 0),
    )


def _row(label: str, requests: int, sums: list[int]) -> AnatomyRow:
    names = Classes._fields
    return AnatomyRow(label=label, requests=requests, **dict(zip(names, sums, strict=True)))


def _totals(label: str, classes: Classes, requests: int) -> AnatomyRow:
    return _row(label, requests, [int(column.sum()) for column in classes])


def _grouped(classes: Classes, codes: NDArray[np.int32], labels: list[str]) -> list[AnatomyRow]:
    """Sum the classes by group; codes of -1 form a group of their own, named last."""
    requests, sums = _sums(classes, codes, len(labels))
    return [
        _row(label, int(requests[group]), sums[:, group].tolist())
        for group, label in enumerate([*labels, "(none)"])
        if requests[group]
    ]


def _sums(
    classes: Classes, codes: NDArray[np.int32], groups: int
) -> tuple[NDArray[np.intp], Int64s]:
    """Return requests (G+1,) and tokens by class (7, G+1) of each group; codes of -1 come last."""
    shifted = np.where(codes < 0, groups, codes)
    requests = np.bincount(shifted, minlength=groups + 1)
    # A float64 holds sums of tokens exactly up to 2^53.
    sums = [np.bincount(shifted, weights=column, minlength=groups + 1) for column in classes]
    return requests, np.array(sums).astype(np.int64)


def _largest(classes: Classes, labels: Labels) -> tuple[AnatomyRow, ...]:
    """Return the groups with most tokens, and the others in sum. O(R + G log G)."""
    requests, sums = _sums(classes, labels.codes, len(labels.names))
    there = np.flatnonzero(requests)
    tokens = sums[0, there]
    least = np.sort(tokens)[-MOST_ROWS] if len(there) > MOST_ROWS else 0
    # A row for each of millions of sessions would take gigabytes: only those that may be kept.
    ranked = sorted(
        (
            _row(
                labels.names[group] if group < len(labels.names) else "(none)",
                int(requests[group]),
                sums[:, group].tolist(),
            )
            for group in there[tokens >= least].tolist()
        ),
        key=lambda row: (-row.tokens, row.label),
    )
    if len(there) <= MOST_ROWS:
        return tuple(ranked)
    kept = ranked[: MOST_ROWS - 1]
    rest = [
        int(sums[at].sum()) - sum(getattr(row, name) for row in kept)
        for at, name in enumerate(Classes._fields)
    ]
    count = int(requests.sum()) - sum(row.requests for row in kept)
    return (*kept, _row(f"{len(there) - len(kept):,} others", count, rest))


def turns(trace: Trace) -> NDArray[np.int32] | None:
    """Return (R,) each request's turn in its session from 1, given or counted. O(R log R)."""
    if trace.turn is not None:
        return trace.turn
    if trace.session is None:
        return None
    codes = trace.session.codes
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    new = np.flatnonzero(np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]]))
    firsts = np.repeat(new, np.diff(np.append(new, len(codes))))
    found = np.empty(len(codes), np.int32)
    found[order] = np.arange(len(codes)) - firsts + 1
    return np.where(codes < 0, -1, found).astype(np.int32)


def _turn_groups(turn: NDArray[np.int32]) -> tuple[NDArray[np.int32], list[str]]:
    edges = [1, 2, 3, 4, 5, 9, 17, 33, 65]
    labels = ["turn 1", "turn 2", "turn 3", "turn 4"]
    labels += [f"turns {low}–{high - 1}" for low, high in itertools.pairwise(edges[4:])]
    labels.append(f"turns {edges[-1]} and later")
    codes = np.searchsorted(edges, turn, side="right") - 1
    return codes.astype(np.int32), labels


def _window_groups(trace: Trace) -> tuple[NDArray[np.int32], list[str]]:
    length = trace.duration_s / WINDOWS
    codes = np.minimum((trace.time_s - trace.time_s[0]) / length, WINDOWS - 1).astype(np.int32)
    unit, name = (60.0, "min") if trace.duration_s >= 120 else (1.0, "s")
    marks = [length * i / unit for i in range(WINDOWS + 1)]
    return codes, [f"{low:.4g}–{high:.4g} {name}" for low, high in itertools.pairwise(marks)]


def _by_depth(
    trace: Trace, hits: Hits, hittable: NDArray[np.int32] | None
) -> tuple[AnatomyRow, ...]:
    longest = int(trace.chain_blocks.max(initial=0))
    edges = [0, 1]
    while edges[-1] <= longest:
        edges.append(edges[-1] * 2)
    rows = []
    for low, high in itertools.pairwise(edges):
        classes = classify(trace, *hits, low, high, hittable)
        reached = int(np.count_nonzero(classes.tokens))
        name = f"block {high}" if high - low == 1 else f"blocks {low + 1}–{high}"
        rows.append(_totals(name, classes, reached))
    return tuple(row for row in rows if row.tokens)


def anatomy(
    policy: Replay,
    fit: Replay,
    bound: Replay,
    seen: NDArray[np.int32],
    hittable: NDArray[np.int32] | None = None,
) -> Anatomy:
    """Explain the misses of ``policy`` beside opt-fit and opt at the same capacity. O(R log R).

    ``seen`` (R,) counts blocks from the root that earlier requests used; ``hittable`` (R,) those
    of them that an engine's rules can hit: the ceiling. All of them if None.
    """
    trace = policy.trace
    hits = (policy.request_hits, fit.request_hits, seen)
    classes = classify(trace, *hits, hittable=hittable)
    by: dict[str, tuple[AnatomyRow, ...]] = {}

    def add(name: str, labels: Labels | None) -> None:
        if labels is not None:
            by[name] = _largest(classes, labels)

    add("session", trace.session)
    add("tenant", trace.tenant)
    add("type", trace.type)
    turn = turns(trace)
    if turn is not None:
        by["turn"] = tuple(_grouped(classes, *_turn_groups(turn)))
    if trace.references == trace.total_references:  # in a sample, a place is no depth
        by["depth"] = _by_depth(trace, hits, hittable)
    if trace.duration_s > 0:
        by["window"] = tuple(_grouped(classes, *_window_groups(trace)))
    return Anatomy(
        policy=policy.policy.label,
        overall=_totals("all", classes, len(trace)),
        bypass=bound.hit_tokens - fit.hit_tokens,
        by=by,
    )
