"""Who asks what, when: the sessions of one stream, turn after turn, before any block exists."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsched.trace.generate import draw
from kvsched.trace.generate.workload import Documents, Prompts, Stream, Workload
from kvsched.trace.model import Float64s, Int32s, Int64s

TICKS_PER_S = 1000
NO_SEGMENT = -1
_PREAMBLE = 0


@dataclass
class Segments:
    """Texts that several prompts share: ``tokens[i]`` tokens in text i; 0 is the preamble."""

    tokens: list[Int64s]
    count: int

    def add(self, tokens: Int64s) -> int:
        """Add texts of ``tokens``; return the number of the first."""
        first = self.count
        self.tokens.append(tokens)
        self.count += len(tokens)
        return first


@dataclass
class Plan:
    """Requests of whole sessions, session after session, turns in order; R rows."""

    session: Int64s
    """(R,) from 0."""
    tenant: Int32s
    stream: Int32s
    turn: Int32s
    """(R,) from 1."""
    tick: Int64s
    """(R,) arrival in milliseconds."""
    delay: Int64s
    """(R,) milliseconds of thinking or of a tool before it; -1 at turn 1."""
    text: Int64s
    """(R,) tokens added since the answer before."""
    output: Int64s
    row: Int64s
    """(R,) row of ``heads``."""
    heads: Int64s
    """(H, K) texts that stand before the conversation, `NO_SEGMENT` for none."""


def level_rate(workload: Workload, stream: Stream, random: np.random.Generator) -> float:
    """Sessions a second of ``stream`` that bring its share of the workload's requests."""
    shares = sum(each.share for each in workload.streams)
    mean = float(draw.turns(stream.turns, 20_000, random).mean())
    return workload.rate * stream.share / shares / mean


def plan_stream(
    workload: Workload,
    number: int,
    clock: draw.Clock,
    segments: Segments,
    random: np.random.Generator,
) -> Plan:
    """Draw all sessions of stream ``number`` that begin in the clock's span. O(requests)."""
    stream = workload.streams[number]
    starts = clock.starts(level_rate(workload, stream, random), random)
    sessions = len(starts)
    turns = draw.turns(stream.turns, sessions, random)
    firsts = np.cumsum(turns) - turns
    session = np.repeat(np.arange(sessions), turns)
    turn = (np.arange(len(session)) - firsts[session] + 1).astype(np.int32)
    tenant = draw.ranks(workload.tenants, workload.tenant_exponent, sessions, random)
    text, delay = _texts(stream, turn, firsts, random)
    output = draw.tokens(stream.output, len(turn), random, 0)
    start_ticks = np.floor(starts * TICKS_PER_S).astype(np.int64)
    step = delay.copy()
    step[1:] += _milliseconds(output[:-1] / workload.answer_tokens_per_s)
    row, heads = session, _lead(workload, stream.prompts, tenant, segments, random)
    if stream.documents is not None:
        row, heads = _with_documents(stream.documents, heads, session, segments, random)
    return Plan(
        session=session,
        tenant=tenant[session].astype(np.int32),
        stream=np.full(len(turn), number, np.int32),
        turn=turn,
        tick=_ticks(start_ticks, session, firsts, step),
        delay=delay,
        text=text,
        output=output,
        row=row,
        heads=heads,
    )


def _texts(
    stream: Stream, turn: Int32s, firsts: Int64s, random: np.random.Generator
) -> tuple[Int64s, Int64s]:
    """Tokens added and milliseconds waited before each request."""
    text = draw.tokens(stream.text, len(turn), random, 1)
    wait = draw.amounts(stream.think_s, len(turn), random)
    if stream.tools is not None:
        called = np.flatnonzero((random.random(len(turn)) < stream.tools.share) & (turn > 1))
        text[called] = draw.tokens(stream.tools.tokens, len(called), random, 1)
        wait[called] = draw.amounts(stream.tools.time_s, len(called), random)
    text[firsts] = draw.tokens(stream.first, len(firsts), random, 1)
    delay = _milliseconds(wait)
    delay[firsts] = -1
    return text, delay


def _milliseconds(seconds: Float64s) -> Int64s:
    return np.rint(seconds * TICKS_PER_S).astype(np.int64)


def _ticks(starts: Int64s, session: Int64s, firsts: Int64s, step: Int64s) -> Int64s:
    """Arrival of each request: its session's start, and the steps since."""
    step[firsts] = 0
    passed = np.cumsum(step)
    passed -= passed[firsts][session]
    passed += starts[session]
    return passed


def _lead(
    workload: Workload,
    prompts: Prompts | None,
    tenant: Int64s,
    segments: Segments,
    random: np.random.Generator,
) -> Int64s:
    """Preamble and system prompt of each session, (sessions, 2)."""
    if prompts is None:
        return np.full((len(tenant), 2), NO_SEGMENT, np.int64)
    total = workload.tenants * prompts.count
    base = segments.add(draw.tokens(prompts.tokens, total, random, 0))
    chosen = draw.ranks(prompts.count, prompts.exponent, len(tenant), random)
    return np.stack([np.full(len(tenant), _PREAMBLE), base + tenant * prompts.count + chosen], 1)


def _with_documents(
    documents: Documents,
    lead: Int64s,
    session: Int64s,
    segments: Segments,
    random: np.random.Generator,
) -> tuple[Int64s, Int64s]:
    """Documents behind the ``lead`` of each session or request, and each request's row."""
    base = segments.add(draw.tokens(documents.tokens, documents.count, random, 0))
    once = documents.every == "session"
    owner = np.arange(len(lead)) if once else session
    has = random.random(len(lead)) < documents.share
    drawn = draw.ranks(documents.count, documents.exponent, len(owner) * documents.each, random)
    placed = base + drawn.reshape(len(owner), documents.each)
    placed[~has[owner]] = NO_SEGMENT
    return session if once else np.arange(len(session)), np.hstack([lead[owner], placed])


def joined(plans: list[Plan]) -> Plan:
    """Put the plans of several streams one after another, sessions and rows renumbered."""
    width = max(plan.heads.shape[1] for plan in plans)
    sessions, rows, heads = [0], [0], []
    for plan in plans:
        sessions.append(sessions[-1] + (int(plan.session[-1]) + 1 if len(plan.session) else 0))
        rows.append(rows[-1] + len(plan.heads))
        empty = np.full((len(plan.heads), width - plan.heads.shape[1]), NO_SEGMENT, np.int64)
        heads.append(np.concatenate([plan.heads, empty], axis=1))
    names = ("tenant", "stream", "turn", "tick", "delay", "text", "output")
    columns = {name: np.concatenate([getattr(plan, name) for plan in plans]) for name in names}
    return Plan(
        session=np.concatenate([plan.session + sessions[i] for i, plan in enumerate(plans)]),
        row=np.concatenate([plan.row + rows[i] for i, plan in enumerate(plans)]),
        heads=np.concatenate(heads),
        **columns,
    )
