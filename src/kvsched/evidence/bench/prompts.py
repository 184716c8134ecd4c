"""From a trace to what is sent: prompts that share exactly the prefixes that the trace's share."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.evidence.bench.token_ids import TokenIds
from kvsched.evidence.bench.words import PromptWords
from kvsched.evidence.bench.workload import NOTHING_BEFORE, BenchWorkload
from kvsched.foundation.errors import UsageError
from kvsched.serve.state import NEVER_S
from kvsched.serve.traffic import Traffic, plan
from kvsched.trace.build import build_trace
from kvsched.trace.model import Int64s, Origin, Trace
from kvsched.trace.pick import pick
from kvsched.trace.slice import slice_trace

ANSWERS_ARE_NEW = (
    "answers are the engine's own tokens: what a prompt of the trace repeats of an earlier answer "
    "is sent as other tokens, and cannot be hit"
)


MOST_REQUESTS = 1_000_000
"""Of the built-in workload."""
MOST_TOKENS = 1 << 31
"""Of all prompts together: 8 GiB of ids."""


@dataclass(frozen=True)
class PromptSettings:
    """What of a trace is sent, and how large. Raises UsageError for what cannot be."""

    limit: int | None = None
    """The first so many requests."""
    scale: Fraction = Fraction(1)
    """Of the tokens of every block and of what follows the last one, rounded up."""
    output_scale: Fraction = Fraction(1)
    max_prompt_tokens: int | None = None
    """Longer prompts are cut at their end."""
    max_output_tokens: int | None = None
    """Longer answers are cut."""
    max_model_len: int | None = None
    """Requests whose prompt and answer together are longer are left out."""
    vocab_size: int | None = None
    words: PromptWords | None = None
    """Prompts are sent as text of these words; None: as token ids."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("limit", "max_prompt_tokens", "max_output_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} {value}: at least 1")
        for name in ("scale", "output_scale"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UsageError(f"--{name.replace('_', '-')} {value}: above 0, at most 1")


def parse_scale(text: str) -> Fraction:
    """Return a share such as ``1/16`` or ``0.25``. Raises UsageError for anything else."""
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"{text!r} is no share: write it as 1/16 or 0.25") from error


def workload_of(trace: Trace, settings: PromptSettings, traffic: Traffic) -> BenchWorkload:
    """Return the requests of ``trace`` as they are sent.

    Two prompts have the first tokens of the nodes that they share in the trace in common, and
    differ at the first token after; what no node covers is of its request alone. Costs O(tokens of
    all prompts) in time and 4 bytes each in memory. Raises UsageError where no request is left,
    prompts have more than `MOST_TOKENS` in all, or the vocabulary is too small to tell siblings
    apart.
    """
    if settings.limit is not None and settings.limit < len(trace):
        trace = slice_trace(trace, first=settings.limit)
    inputs, outputs = _lengths(trace, settings)
    notes: list[str] = []
    trace, inputs, outputs = _fitting(trace, inputs, outputs, settings, notes)
    if (tokens := int(inputs.sum())) > MOST_TOKENS:
        raise UsageError(
            f"prompts of {tokens:,} tokens in all are too many (at most {MOST_TOKENS:,}): use "
            "--limit, --scale or --max-prompt-tokens"
        )
    if settings.scale != 1:
        notes.append(f"prompts are scaled to {settings.scale} of their tokens, block by block")
    if settings.output_scale != 1:
        notes.append(f"answers are scaled to {settings.output_scale} of their tokens")
    words = settings.words
    if words is None:
        ids = TokenIds.of(settings.seed, settings.vocab_size)
    else:
        ids = TokenIds(settings.seed, 0, len(words))
        notes.append(f"prompts are sent as text, of {len(words):,} words of one token each")
    prompts = _prompts(trace, inputs, settings, ids)
    if words is not None:
        words.check(prompts)
    arrival_s, after, think_s = _arrivals(trace, traffic)
    if traffic.sessions:
        notes.append(ANSWERS_ARE_NEW)
    return BenchWorkload(
        prompts=prompts,
        output_tokens=outputs,
        arrival_s=arrival_s,
        after=after,
        think_s=think_s,
        priority=trace.priority,
        words=None if words is None else words.texts,
        session=_sessions(trace),
        source={
            "source": trace.origin.source,
            "format": trace.origin.format,
            "digest": trace.digest,
            "settings": trace.origin.settings,
            "block_size": trace.block_size,
            "seed": settings.seed,
            "scale": str(settings.scale),
            "output_scale": str(settings.output_scale),
            "token_ids": [ids.low, ids.high],
            "tokenizer_sha256": None if words is None else words.digest,
        },
        notes=(*trace.origin.notes, *notes),
    )


def shared_prefix_trace(
    groups: int,
    per_group: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
    seed: int,
) -> Trace:
    """Return ``groups`` × ``per_group`` requests, all at 0 s, in an order drawn from ``seed``.

    Those of a group begin with the same ``prefix_tokens``; the ``suffix_tokens`` are of each alone.
    Raises UsageError for fewer than one of groups, requests or answer tokens, and where a prompt
    would have no token.
    """
    for name, value in (("groups", groups), ("requests a group", per_group)):
        if value < 1:
            raise UsageError(f"{name}: at least 1, not {value}")
    if min(prefix_tokens, suffix_tokens) < 0 or prefix_tokens + suffix_tokens < 1:
        raise UsageError("prefix and suffix tokens: at least 0, and at least 1 together")
    if output_tokens < 1:
        raise UsageError(f"output tokens: at least 1, not {output_tokens}")
    count = groups * per_group
    if count > MOST_REQUESTS or max(prefix_tokens + suffix_tokens, output_tokens) >= 1 << 31:
        raise UsageError(
            f"{count:,} requests of {prefix_tokens + suffix_tokens:,} and {output_tokens:,} tokens "
            f"are too many: at most {MOST_REQUESTS:,} requests of under 2^31 tokens"
        )
    group = np.repeat(np.arange(groups, dtype=np.int64), per_group)
    # A shuffle of our own: NumPy may change what its permutations are.
    draws = TokenIds(seed, 0, 1 << 30).at(np.arange(count), np.zeros(count))
    group = group[np.argsort(draws, kind="stable")]
    keyed = prefix_tokens > 0
    return build_trace(
        time_s=np.zeros(count),
        input_tokens=np.full(count, prefix_tokens + suffix_tokens, np.int64),
        output_tokens=np.full(count, output_tokens, np.int64),
        starts=np.arange(count + 1, dtype=np.int64) * int(keyed),
        keys=group if keyed else np.zeros(0, np.int64),
        sizes=np.full(count if keyed else 0, prefix_tokens, np.int32),
        block_size=0,
        origin=Origin(
            source="shared prefixes",
            format="generated",
            time_unit="s",
            settings={
                "groups": groups,
                "requests_per_group": per_group,
                "prefix_tokens": prefix_tokens,
                "suffix_tokens": suffix_tokens,
                "output_tokens": output_tokens,
                "seed": seed,
            },
        ),
    )


def warm_up(workload: BenchWorkload, count: int, seed: int) -> BenchWorkload:
    """Return ``count`` requests that share not even their first token with any of ``workload``.

    Each is as long as the request in the same place, and all may be sent at once. Raises
    UsageError where the vocabulary has no id left that no prompt begins with.
    """
    low, high = workload.source["token_ids"]
    used = {int(prompt[0]) for prompt in workload.prompts}
    free = [each for each in range(low, high) if each not in used]
    if count > 0 and not free:
        raise UsageError("no token id is left for the warm-up: raise --vocab-size, or --warmup 0")
    ids = TokenIds(seed + 1, low, high)
    prompts = []
    for at in range(count):
        length = len(workload.prompts[at % len(workload)])
        prompt = ids.at(np.full(length, at), np.arange(length))
        prompt[0] = free[at % len(free)]
        prompts.append(prompt)
    return BenchWorkload(
        prompts=tuple(prompts),
        output_tokens=workload.output_tokens[np.arange(count) % len(workload)],
        arrival_s=np.zeros(count),
        after=np.full(count, NOTHING_BEFORE, np.int32),
        think_s=np.zeros(count),
        words=workload.words,
        source={"source": "warm-up", "token_ids": [low, high]},
    )


def _scaled(tokens: NDArray[Any], scale: Fraction) -> Int64s:
    """⌈tokens · scale⌉, exactly."""
    found: Int64s = -(-(tokens.astype(np.int64) * scale.numerator) // scale.denominator)
    return found


def _node_sizes(trace: Trace, scale: Fraction) -> Int64s:
    """(N,) tokens of each node when whole, scaled."""
    if trace.unequal:
        return _scaled(trace.tokens, scale)
    return np.full(trace.nodes, math.ceil(trace.block_size * scale), np.int64)


def _lengths(trace: Trace, settings: PromptSettings) -> tuple[Int64s, Int64s]:
    """(R,) tokens of each prompt and answer, scaled, before anything is cut."""
    scale = settings.scale
    outputs = _scaled(trace.output_tokens, settings.output_scale)
    if scale == 1:
        return trace.input_tokens.astype(np.int64), outputs
    if trace.unequal:
        sizes = np.zeros(trace.references + 1, np.int64)
        np.cumsum(_node_sizes(trace, scale)[trace.chains], out=sizes[1:])
        covered = sizes[trace.starts[1:]] - sizes[trace.starts[:-1]]
        return covered + _scaled(trace.tail_tokens, scale), outputs
    whole = math.ceil(trace.block_size * scale)
    full = trace.chain_tokens // trace.block_size
    rest = trace.input_tokens - full * trace.block_size
    return full * whole + _scaled(rest, scale), outputs


def _fitting(
    trace: Trace, inputs: Int64s, outputs: Int64s, settings: PromptSettings, notes: list[str]
) -> tuple[Trace, Int64s, Int64s]:
    """Cut and leave out what does not fit, and tell how many."""

    def told(mask: NDArray[np.bool_], what: str) -> None:
        if mask.any():
            notes.append(f"{int(mask.sum()):,} of {len(mask):,} requests {what}")

    empty = inputs < 1
    told(empty, "have no prompt and were left out")
    told(~empty & (outputs < 1), "ask for no token and were sent for one")
    outputs = np.maximum(outputs, 1)
    most = settings.max_output_tokens
    if most is not None:
        told(outputs > most, f"ask for more than {most:,} tokens and were cut to that")
        outputs = np.minimum(outputs, most)
    most = settings.max_prompt_tokens
    if most is not None:
        told(inputs > most, f"have prompts of over {most:,} tokens, which were cut at their end")
        inputs = np.minimum(inputs, most)
    keep = ~empty
    if settings.max_model_len is not None:
        long = keep & (inputs + outputs > settings.max_model_len)
        told(long, f"are longer than {settings.max_model_len:,} tokens and were left out")
        keep &= ~long
    if not keep.any():
        raise UsageError(f"{trace.origin.source}: no request is left: {'; '.join(notes)}")
    if keep.all():
        return trace, inputs, outputs
    order = np.flatnonzero(keep).astype(np.int64)
    return pick(trace, order, trace.origin), inputs[order], outputs[order]


def _prompts(
    trace: Trace, inputs: Int64s, settings: PromptSettings, ids: TokenIds
) -> tuple[NDArray[np.int32], ...]:
    """The prompts: each node's tokens along the chain, then those of the request alone."""
    sizes = _node_sizes(trace, settings.scale)
    last = np.full(len(trace), -1, np.int64)
    some = trace.chain_blocks > 0
    last[some] = trace.chains[trace.starts[1:][some] - 1]
    # What follows the chain is one more child of its last node, named after the request.
    firsts = ids.firsts(np.concatenate([trace.parent.astype(np.int64), last]))
    found = []
    for request in range(len(trace)):
        length = int(inputs[request])
        chain = trace.chains[trace.starts[request] : trace.starts[request + 1]].astype(np.int64)
        names = np.append(chain, trace.nodes + request)
        counts = np.append(sizes[chain], length)
        ends = np.cumsum(counts)
        used = int(np.searchsorted(ends, length)) + 1
        counts, begins = counts[:used].copy(), (ends - counts)[:used]
        counts[-1] = length - begins[-1]
        places = np.arange(length) - np.repeat(begins, counts)
        prompt = ids.at(np.repeat(names[:used], counts), places)
        prompt[begins] = firsts[names[:used]]
        prompt.flags.writeable = False
        found.append(prompt)
    return tuple(found)


def _arrivals(
    trace: Trace, traffic: Traffic
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
    """When each arrives, after which other, and how long after its end."""
    coming = plan(trace, traffic)
    after = np.full(len(trace), NOTHING_BEFORE, np.int32)
    follows = coming.arrivals.follows
    earlier = np.flatnonzero(follows >= 0).astype(np.int32)
    after[follows[earlier]] = earlier
    arrival_s = np.where(coming.arrival_s == NEVER_S, 0.0, coming.arrival_s)
    arrival_s[after >= 0] = np.nan
    return arrival_s, after, np.asarray(coming.arrivals.think_s, np.float64)


def _sessions(trace: Trace) -> tuple[str, ...] | None:
    if trace.session is None:
        return None
    names = (*trace.session.names, "")
    return tuple(names[code] for code in trace.session.codes.tolist())


def with_notes(workload: BenchWorkload, *notes: str) -> BenchWorkload:
    """Return the same with more notes at the end."""
    return dataclasses.replace(workload, notes=workload.notes + notes)
