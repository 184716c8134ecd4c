"""The parts of a result that only say what was studied, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvsched.catalog import Accelerator, Capacity, Model
from kvsched.foundation.version import VERSION
from kvsched.policy.base import Policy
from kvsched.replay.engine import GENERIC, Rules
from kvsched.replay.run import Replay
from kvsched.replay.sampling import PARTS, SamplingError
from kvsched.study.result import (
    CapacitySummary,
    Ceiling,
    SampleError,
    SampleSummary,
    TraceSummary,
)
from kvsched.study.worth import Worth
from kvsched.trace.model import Trace
from kvsched.trace.reading import counted
from kvsched.trace.sample import SampledTrace
from kvsched.trace.summary import summarise

DEFINITIONS = {
    "replay": "sequential: one request after another in time order, each ends before the next "
    "begins",
    "hit": "the longest resident prefix of a request's chain when it is looked up",
    "block": "one node: a block of one particular prefix, identified by (parent, key); a capacity "
    "block is one node, partial or not",
    "tail_counted": "a partial last block of a prompt is a node and can be hit",
    "warm_up_share": "0: the cache starts empty and every request counts",
    "engine": "generic: every node can be stored and hit",
    "generated_tokens_cached": "no: only prompts are stored",
    "token_share": "hit tokens over all prompt tokens",
    "block_share": "hit blocks over all block references",
    "ceiling": "the hits of an unlimited cache",
    "opt-fit": "Belady's rule where everything that fits is stored: the best an engine's own pool "
    "could do (in hit blocks of equal size)",
    "opt": "Belady's rule with the choice not to store: the bound of any cache",
    "gap_closed": "(hit tokens − LRU's) / (opt-fit's − LRU's); none where opt-fit gains less than "
    "0.1% of the prompt tokens",
    "compulsory": "prompt tokens never seen before",
    "tail": "prompt tokens that no node covers",
    "capacity": "prompt tokens seen before that the policy and opt-fit both miss",
    "regret": "prompt tokens that opt-fit hits and the policy does not",
    "luck": "prompt tokens that the policy hits and opt-fit does not; beside the five classes",
    "bypass": "hit tokens of opt minus those of opt-fit",
    "knee": "where a curve lies farthest above the line from nothing to its first maximum",
}

USUAL_BLOCK = 16
"""vLLM's default block, in tokens; SGLang's page is 1."""

REPLAY_DEFINITIONS = (
    "replay",
    "hit",
    "block",
    "tail_counted",
    "warm_up_share",
    "engine",
    "generated_tokens_cached",
    "engine_source",
    "duplicates",
)
"""The definitions that a single replay rests on."""


UNEQUAL = {
    "block": "one node: a chunk of one particular prefix, identified by (parent, key), with a size "
    "of its own",
    "capacity_blocks": "tokens: chunks are unequal, and one takes as many as it has",
    "opt-fit": "Belady's rule where everything that fits is stored: with unequal chunks a "
    "heuristic, not the optimum",
    "opt": "Belady's rule with the choice not to store: with unequal chunks a heuristic, no bound",
}
"""What means something else where blocks have sizes of their own."""


SAMPLED = {
    "sample": "nodes are drawn by a hash of their path, and a node's parent is its nearest "
    "ancestor drawn; nodes with over 0.1% of the references are always kept and count 1, others "
    "stand for as many as the rate says, also in the capacity; first uses of nodes and later uses "
    "are scaled to what the trace has of each. All counts of hits, evictions, classes and reuse "
    "are estimates; requests, references, prompt tokens, distinct blocks and the ceiling are exact",
    "expected_error": "of a hit ratio in blocks: the standard error that four parts of the sample "
    "show by their differences, and how far the estimate moved from their rate to the sample's, "
    "as the root of both squares, over the grid's capacities",
}
"""What is added where a trace is studied through a sample of its nodes."""


def sample(trace: Trace, errors: Sequence[SamplingError]) -> SampleSummary | None:
    """Summarise the sample, and how far what it says may be off; None where there is none."""
    if not isinstance(trace, SampledTrace):
        return None
    return SampleSummary(
        one_in=trace.settings.one_in,
        seed=trace.settings.seed,
        nodes=trace.nodes,
        always_kept=trace.always_kept,
        references=trace.references,
        parts=PARTS,
        errors=tuple(
            SampleError(
                policy=each.policy,
                standard_error=each.standard_error,
                drift=each.drift,
                expected_error=each.expected,
            )
            for each in errors
        ),
    )


def sampled(trace: Trace, errors: Sequence[SamplingError]) -> str:
    """Begin a sentence on what is uncertain: the sample, if there is one that leaves nodes out."""
    if not isinstance(trace, SampledTrace) or not errors or trace.settings.one_in == 1:
        return ""
    most = max(each.expected for each in errors)
    return (
        f"one node in {trace.settings.one_in:,} was sampled, so hit ratios may be off by about "
        f"{100 * most:.1f} points; "
    )


RULES = {
    "ceiling": "the hits of an unlimited cache with the same rules",
    "opt-fit": "Belady's rule over uses that the rules can hit, where everything that fits is "
    "stored: a heuristic here, as a block that cannot be hit may spare another's eviction",
    "opt": "the same with the choice not to store, and then without the room of a running request",
    "compulsory": "prompt tokens that no earlier request held",
    "tail": "prompt tokens that no node covers, or that an earlier request held and the rules "
    "cannot hit",
}
"""What means something else under an engine's rules."""


def definitions(trace: Trace, rules: Rules | None = None) -> dict[str, str]:
    """Return what the numbers of a study of ``trace`` mean, by name."""
    found = {**DEFINITIONS, **UNEQUAL} if trace.unequal else DEFINITIONS
    if trace.references < trace.total_references:
        found = {**found, **SAMPLED}
    if rules is None or rules.name == GENERIC:
        return found
    return {**found, **RULES, **rules.definitions}


def trace(trace: Trace) -> TraceSummary:
    """Summarise the workload. O(R)."""
    return TraceSummary(**summarise(trace))


def refusals(result: Replay) -> str | None:
    """Name and count the requests that an engine can never hold; None if there are none."""
    if not result.refused:
        return None
    first = ", ".join(str(at + 1) for at in np.flatnonzero(result.request_refused)[:5])
    more = ", …" if result.refused > 5 else ""
    return (
        f"{counted(result.refused, 'request', 'requests')} can never fit and did not run: "
        f"number {first}{more} in time order"
    )


def warnings(result: Replay, own: Worth | None, policies: Iterable[Policy] = ()) -> tuple[str, ...]:
    """Return what a reader of the result should know before using it."""
    found = () if own is None else own.warnings
    trace = result.trace
    biased = [policy.label for policy in policies if policy.biased_when_sampled]
    if trace.references < trace.total_references and biased:
        said = f"a sample misjudges {', '.join(biased)} by up to 4 points more than it states"
        found = (f"{said}: compare on the whole trace", *found)
    if trace.references < trace.total_references:
        found = ("all hits are estimates from a sample of the trace's nodes: see `sample`", *found)
    if result.rules is not None and trace.block_size > USUAL_BLOCK:
        found = (
            f"{result.rules.name}'s rules are applied to the trace's blocks of {trace.block_size} "
            f"tokens; engines use {USUAL_BLOCK} or fewer, and then lose less to partial blocks",
            *found,
        )
    refused = refusals(result)
    if refused is not None:
        found = (refused, *found)
    if trace.unequal:
        found = (
            "blocks are unequal, so capacities are in tokens, and opt and opt-fit are heuristics: "
            "a policy may beat them",
            *found,
        )
    return found


def capacity(
    trace: Trace, found: Capacity, model: Model | None, gpu: Accelerator | None
) -> CapacitySummary:
    """Summarise the cache."""
    return CapacitySummary(
        blocks=found.blocks,
        unit="tokens" if trace.unequal else "blocks",
        tokens=found.tokens,
        gib=found.gib,
        bytes_per_block=None
        if found.bytes_per_block is None
        else found.bytes_per_block * found.ranks,
        model=None if model is None else model.name,
        gpu=None if gpu is None else gpu.name,
        derivation=found.derivation,
    )


def ceiling(trace: Trace, seen: NDArray[np.int32]) -> Ceiling:
    """Summarise what an unlimited cache would hit: the first ``seen`` (R,) blocks of each chain."""
    blocks, tokens = int(trace.prefix_blocks(seen).sum()), int(trace.prefix_tokens(seen).sum())
    prompt = int(trace.input_tokens.sum())
    return Ceiling(
        hit_blocks=blocks,
        hit_tokens=tokens,
        block_share=blocks / trace.total_references if trace.total_references else None,
        token_share=tokens / prompt if prompt else None,
    )


def config(
    options: Any, own: str, found: Capacity, policies: Iterable[str], grid: list[int]
) -> dict[str, Any]:
    """Return the options of a study that decide its result, as plain values."""
    return {
        "engine": options.engine,
        "cache_generated": options.cache_generated,
        "policy": options.policy or own,
        "policies": list(policies),
        "capacity_blocks": found.blocks,
        "grid_blocks": grid,
        "batch": options.batch,
        "efficiency": options.efficiency,
        **({"simulate": True} if options.simulate else {}),
        "kv_cache_dtype": options.kv_cache_dtype,
        "weight_dtype": options.weight_dtype,
    }


def replay_summary(result: Replay, found: Capacity) -> dict[str, Any]:
    """Return one replay as plain values: its integers, definitions, digest and version."""
    meaning = definitions(result.trace, result.rules)
    return {
        **result.summary(),
        **({} if result.rules is None else {"refused": refusals(result)}),
        "capacity_blocks": None if result.trace.unequal else result.capacity_blocks,
        "block_hit_ratio": result.block_hit_ratio,
        "token_hit_ratio": result.token_hit_ratio,
        "resident_blocks": result.resident_blocks,
        "requests": len(result.trace),
        "capacity_tokens": found.tokens,
        "capacity_gib": found.gib,
        "capacity_derivation": found.derivation,
        "definitions": {
            **{
                name: text
                for name, text in meaning.items()
                if name in REPLAY_DEFINITIONS or name in SAMPLED
            },
            "total_tokens": "prompt tokens that the chains cover",
            "token_hit_ratio": "hit tokens over the prompt tokens that the chains cover",
        },
        "trace": result.trace.origin.source,
        "notes": result.trace.origin.notes,
        "digest": result.trace.digest,
        "version": VERSION,
    }
