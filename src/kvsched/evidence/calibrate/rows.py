"""From steps to rows that coefficients can be fitted to: what each computed, and its seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kvsched.evidence.calibrate.aligned import Aligned, Step
from kvsched.evidence.calibrate.observed import Observed
from kvsched.serve.step_time import BATCH, batch_of
from kvsched.trace.model import Float64s

TOGETHER = 8
"""Steps in a row that decode the same requests, taken as one row: noise of moments cancels."""
Chunk = tuple[int, int]
"""Tokens computed of a prompt, and those before them."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Measured steps, and what is known of the time that a request spends outside of them."""

    batches: Float64s
    """(N, BATCH) sums of steps that follow another at once; means where several are one row."""
    seconds: Float64s
    """(N,) what each of them took."""
    idle_batches: Float64s
    """(M, BATCH) of the steps between a request's sending to an idle engine and its first token;
    means over them."""
    idle_steps: Float64s
    """(M,) how many steps that were."""
    idle_s: Float64s
    """(M,) from sending to the first token: the steps, and what a request takes outside of them."""
    bounds_s: Float64s
    """(B, 2) of requests sent while the engine ran: what each takes outside is above the first and
    at most the second, as the step shows that it was in."""
    seen: int
    """Steps that brought tokens in the part looked at."""
    left_out: int
    """Of these, steps of which it is not certain what they computed."""
    most_together: int
    """`Aligned.most_together`, of the whole run."""


@dataclass
class _Prefill:
    """Whose prompts were computed in which step."""

    left: list[int]
    """Tokens of each step's budget that nobody took."""
    chunks: dict[int, dict[int, Chunk]] = field(default_factory=dict)
    """By step and request: tokens computed of the prompt, and those before them."""
    began: dict[int, int] = field(default_factory=dict)
    """The step of each request's first chunk."""
    hidden: dict[int, list[Chunk]] = field(default_factory=dict)
    """By step: chunks of steps before it that brought no token."""
    doubtful: set[int] = field(default_factory=set)
    """Steps that computed what cannot be told."""

    def of(self, step: int) -> list[Chunk]:
        """Return the chunks of a step."""
        return list(self.chunks.get(step, {}).values())


def rows_of(
    run: Observed, aligned: Aligned, until_s: float = np.inf, outside_s: float | None = None
) -> Rows:
    """Return what the steps that ended before ``until_s`` say. O(tokens).

    A prompt is taken to be computed as late as its first token allows, in chunks as large as each
    step's budget leaves room for, and from the step on in which it was there and found room:
    ``outside_s`` after it was sent, None where that is not known yet. A step is left out where a
    request was preempted, where who waited at an idle engine came at several moments, where prompts
    do not fit, or where it cannot be told in which step one began.
    """
    steps = aligned.steps
    prefill = _prefill(run, steps, outside_s)
    kept = [at for at, step in enumerate(steps) if step.end_s < until_s]
    batches: list[Float64s] = []
    seconds: list[float] = []
    idle: list[tuple[Float64s, int, float]] = []
    left_out = 0
    at = 0
    while at < len(kept):
        step = steps[at]
        if not step.regular or at in prefill.doubtful:
            left_out += 1
        elif step.decodes and at > 0:
            last = at
            while last + 1 < min(at + TOGETHER, len(kept)) and _same(steps, prefill, last):
                last += 1
            spent = steps[last].end_s - steps[at - 1].end_s
            sums = [_batch(steps[each], prefill.of(each)) for each in range(at, last + 1)]
            if spent > 0:
                batches.append(np.mean(sums, axis=0))
                seconds.append(spent / len(sums))
            at = last
        elif not step.decodes and len(step.joined) == 1 and _was_idle(run, steps, at):
            chunks = [[each] for each in prefill.hidden.get(at, [])]
            sums = [_batch(Step(0.0), each) for each in (*chunks, prefill.of(at))]
            spent = step.end_s - float(run.sent_s[step.joined[0]])
            idle.append((np.mean(sums, axis=0), len(sums), spent))
        else:
            left_out += 1
        at += 1
    return Rows(
        batches=np.array(batches).reshape(-1, BATCH),
        seconds=np.array(seconds),
        idle_batches=np.array([row[0] for row in idle]).reshape(-1, BATCH),
        idle_steps=np.array([row[1] for row in idle], np.float64),
        idle_s=np.array([row[2] for row in idle]),
        bounds_s=_bounds(run, steps, prefill, len(kept)),
        seen=len(kept),
        left_out=left_out,
        most_together=aligned.most_together,
    )


def _batch(step: Step, chunks: list[Chunk]) -> Float64s:
    tokens = [1] * len(step.decodes) + [each[0] for each in chunks]
    context = [before for _, before in step.decodes] + [each[1] for each in chunks]
    return batch_of(tokens, context)


def _same(steps: list[Step], prefill: _Prefill, at: int) -> bool:
    """Whether the step after ``at`` decodes the same requests, and both compute no prompt."""
    if prefill.chunks.get(at) or prefill.chunks.get(at + 1) or at + 1 in prefill.doubtful:
        return False
    now, then = steps[at], steps[at + 1]
    if not then.regular or len(now.decodes) != len(then.decodes):
        return False
    return all(one[0] == other[0] for one, other in zip(now.decodes, then.decodes, strict=True))


def _was_idle(run: Observed, steps: list[Step], at: int) -> bool:
    """Whether the request that joined was sent when the step before had ended."""
    return at == 0 or float(run.sent_s[steps[at].joined[0]]) >= steps[at - 1].end_s


def _prefill(run: Observed, steps: list[Step], outside_s: float | None) -> _Prefill:
    """Return what prompts were computed when."""
    budget, cap = run.settings.max_num_batched_tokens, run.settings.long_prefill_token_threshold
    left = [budget - len(step.decodes) for step in steps]
    found = _Prefill(left)
    prompts, cached = run.trace.input_tokens, np.maximum(run.cached, 0)
    for at, step in enumerate(steps):
        # Who joined last was admitted last: it leaves to the first what room earlier steps had.
        for request in reversed(step.joined):
            need = int(prompts[request] - cached[request])
            begin = at
            room = _room(left[at], cap)
            while room < need and begin > 0:
                start = steps[begin - 2].end_s if begin > 1 else -np.inf
                if start < run.sent_s[request] + (outside_s or 0.0):
                    break
                begin -= 1
                room += _room(left[begin], cap)
            done = int(cached[request])
            if room < need:
                done += _hide(found, steps, at, (need - room, done), _room(budget, cap))
            _spread(found, request, (begin, at), int(prompts[request]), done, cap)
    for step in steps:
        for request in step.joined:
            _begin_earlier(run, steps, found, request, outside_s)
    return found


def _spread(
    found: _Prefill, request: int, reach: tuple[int, int], prompt: int, done: int, cap: int
) -> None:
    """Compute what is left of a prompt from the first step of ``reach`` on, as early as it can."""
    begin, end = reach
    found.began[request] = begin
    for each in range(begin, end + 1):
        part = min(_room(found.left[each], cap), prompt - done)
        if part > 0:
            found.chunks.setdefault(each, {})[request] = (part, done)
            found.left[each] -= part
            done += part


def _begin_earlier(
    run: Observed, steps: list[Step], found: _Prefill, request: int, outside_s: float | None
) -> None:
    """Give a request that already waited what the step before its first left of its budget.

    What is left must be too little for all of it: else it would have had its first token then.
    """
    begin = found.began[request]
    seats, cap = run.settings.max_num_seqs, run.settings.long_prefill_token_threshold
    start = steps[begin - 2].end_s if begin > 1 else -np.inf
    sent = float(run.sent_s[request])
    if sent + (outside_s or 0.0) > start:
        return
    mine = [at for at in range(begin, len(steps)) if request in found.chunks.get(at, {})]
    before = steps[begin - 1]
    room = _room(found.left[begin - 1], cap)
    need = sum(found.chunks[at][request][0] for at in mine)
    if not 0 < room < need or len(before.decodes) + len(found.chunks.get(begin - 1, {})) >= seats:
        return
    if outside_s is None and sent > start - (steps[begin - 1].end_s - start):
        found.doubtful.update(range(begin - 1, mine[-1] + 1))
        return
    first = found.chunks[begin][request][1]
    for at in mine:
        found.left[at] += found.chunks[at].pop(request)[0]
    _spread(found, request, (begin - 1, mine[-1]), first + need, first, cap)


def _room(left: int, cap: int) -> int:
    return max(min(left, cap) if cap else left, 0)


def _hide(found: _Prefill, steps: list[Step], at: int, missing: Chunk, most: int) -> int:
    """Place tokens in steps before ``at`` that brought nobody a token; return how many."""
    tokens, done = missing
    if steps[at].decodes or most <= 0:
        # Somebody would have got a token.
        found.doubtful.add(at)
    parts = -(-tokens // max(most, 1))
    # All but the last are full: what is missing is what the step itself had no room for.
    sizes = [most] * (tokens // max(most, 1))
    if len(sizes) < parts:
        sizes.append(tokens - sum(sizes))
    for size in sizes:
        found.hidden.setdefault(at, []).append((size, done))
        done += size
    return tokens


def _bounds(run: Observed, steps: list[Step], prefill: _Prefill, kept: int) -> Float64s:
    """What the step in which a request began says of its way there. (B, 2)."""
    found = []
    seats = run.settings.max_num_seqs
    for at in range(kept):
        for request in steps[at].joined:
            begin = prefill.began[request]
            if begin < 1 or not steps[begin].decodes or at in prefill.doubtful:
                continue
            sent = float(run.sent_s[request])
            most = steps[begin - 1].end_s - sent
            least = 0.0
            before = steps[begin - 1]
            free = len(before.decodes) + len(before.joined) < seats and prefill.left[begin - 1] > 0
            if begin > 1 and free:
                least = max(steps[begin - 2].end_s - sent, 0.0)
            if most > least:
                found.append((least, most))
    return np.array(found).reshape(-1, 2)
