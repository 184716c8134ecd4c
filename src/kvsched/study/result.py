"""What a study found: frozen values that go to `result.json`, to tables and to the report.

Every number that could not be known is None, never 0. Shares are from 0 to 1. Token counts of
hits are prompt tokens; the definitions that a result was made with are part of it.
"""

from __future__ import annotations

import html
from typing import Any

import msgspec

from kvsched.foundation.notebook import table
from kvsched.study.worth import Worth

SCHEMA_VERSION = 2


class _Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all parts of a result."""


class TraceSummary(_Value, frozen=True, kw_only=True):
    """The workload."""

    source: str
    """Name of the file or preset."""
    format: str
    """Reader or generator."""
    digest: str
    """SHA-256 of the trace's content."""
    time_unit: str
    """Unit of the source's timestamps."""
    notes: tuple[str, ...]
    """What was sorted, skipped or chosen while reading."""
    settings: dict[str, Any]
    """Options that shaped the trace."""
    block_size: int
    """Tokens in a full block; 0 where every node has a size of its own."""
    requests: int
    duration_s: float
    """Seconds from the first request to the last."""
    blocks: int
    """Block references: the sum of the chains' lengths."""
    distinct_blocks: int
    """Nodes: distinct blocks of distinct prefixes."""
    prompt_tokens: int
    chain_tokens: int
    """Prompt tokens that the chains cover."""
    output_tokens: int
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    longest_chain_blocks: int
    sessions: int | None
    tenants: int | None


class SampleError(_Value, frozen=True, kw_only=True):
    """How far one policy's hit ratios in blocks may be off; root mean squares over the grid."""

    policy: str
    standard_error: float
    """From how far the sample's parts differ."""
    drift: float
    """How far the estimate moved from the parts' rate to the sample's."""
    expected_error: float
    """The root of both squares."""


class SampleSummary(_Value, frozen=True, kw_only=True):
    """The sample of nodes that the study's hits, evictions and classes are estimates from."""

    one_in: int
    """One node in so many was drawn."""
    seed: int
    nodes: int
    """In the sample, those always kept included."""
    always_kept: int
    """Nodes with over 0.1% of the references: in every sample, for themselves alone."""
    references: int
    """Block references in the sample."""
    parts: int
    """Parts that the sample was split into to find the errors."""
    errors: tuple[SampleError, ...]


class CapacitySummary(_Value, frozen=True, kw_only=True):
    """The cache that the study is about."""

    blocks: int
    unit: str
    """What `blocks`, and every capacity of the result, counts: ``blocks``, or ``tokens`` where
    the trace's blocks are unequal."""
    tokens: int
    gib: float | None
    """GiB of keys and values over all ranks; None without a model."""
    bytes_per_block: int | None
    """Bytes of a block over all ranks; None without a model."""
    model: str | None
    gpu: str | None
    derivation: tuple[str, ...]
    """How the number of blocks was found: one sentence a step."""


class Ceiling(_Value, frozen=True, kw_only=True):
    """What an unlimited cache would hit."""

    hit_blocks: int
    hit_tokens: int
    block_share: float | None
    """Of all block references."""
    token_share: float | None
    """Of all prompt tokens."""


class Curve(_Value, frozen=True, kw_only=True):
    """Hits of one policy over capacities, ascending."""

    policy: str
    exact_everywhere: bool
    """Whether every capacity was computed, and the points are a selection for drawing."""
    capacity_blocks: tuple[int, ...]
    hit_blocks: tuple[int, ...]
    hit_tokens: tuple[int, ...]
    evictions: tuple[int, ...]


class Target(_Value, frozen=True, kw_only=True):
    """The smallest capacity at which a policy reaches a share of the ceiling."""

    policy: str
    share: float
    """Of the ceiling's hit tokens."""
    blocks: int | None
    """None if no capacity studied reaches it."""
    gib: float | None
    exact: bool
    """Whether every capacity was looked at; else it is the smallest on the grid."""


class Knee(_Value, frozen=True, kw_only=True):
    """Where a curve bends: the capacity beyond which more of it buys least."""

    policy: str
    blocks: int | None
    gib: float | None
    token_share: float | None
    """Share of all prompt tokens hit there."""


class PolicyRow(_Value, frozen=True, kw_only=True):
    """One policy at the study's capacity."""

    policy: str
    looks_ahead: bool
    """Whether it needs the future: a bound, no choice."""
    hit_blocks: int
    hit_tokens: int
    block_share: float | None
    token_share: float | None
    """Of all prompt tokens."""
    gap_closed: float | None
    """(its hit tokens − LRU's) / (opt-fit's − LRU's); None where opt-fit gains less
    than 0.1% of the prompt tokens."""
    evictions: int
    prefill_seconds_saved: float | None
    """Least seconds of one accelerator that its hits save; None without model and accelerator."""
    tuned: dict[str, float] | None = None
    """The value chosen for the parameter that is `auto`, and the first request that it decided;
    None where none is, or nothing was chosen before the trace ended."""


class AnatomyRow(_Value, frozen=True, kw_only=True):
    """Where the prompt tokens of a group of requests went; five classes that sum to `tokens`."""

    label: str
    requests: int
    tokens: int
    """Prompt tokens."""
    hit: int
    """The policy hits them."""
    compulsory: int
    """Never seen before."""
    tail: int
    """No node covers them."""
    capacity: int
    """Seen before; the policy and opt-fit both miss them."""
    regret: int
    """opt-fit hits them, the policy does not."""
    luck: int
    """Beside the classes: the policy hits them, opt-fit does not."""


class Anatomy(_Value, frozen=True, kw_only=True):
    """Why it missed, under one policy at the study's capacity."""

    policy: str
    overall: AnatomyRow
    bypass: int
    """Hit tokens of opt minus those of opt-fit."""
    by: dict[str, tuple[AnatomyRow, ...]]
    """Groups: session, tenant, type, turn, depth, window; only those that the trace has."""


class Histogram(_Value, frozen=True, kw_only=True):
    """Counts between edges: ``counts[i]`` lies in [edges[i], edges[i+1])."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class Reuse(_Value, frozen=True, kw_only=True):
    """Time between two uses of the same block."""

    blocks: Histogram
    """Reused block references by seconds since the last use; the first edge is 0."""
    median_s: float | None
    p90_s: float | None
    p99_s: float | None


class Prefix(_Value, frozen=True, kw_only=True):
    """A prefix that many requests share: the nodes from the root to one node."""

    key: str
    """The source's id of the deepest node, as text."""
    label: str
    """Session or tenant that used it first, or empty."""
    blocks: int
    """Nodes from the root: depth + 1."""
    tokens: int
    """Tokens of the whole prefix."""
    requests: int
    """Requests that contain it."""
    hits: int
    """Of those, how many found all of it under the study's policy."""
    last_use_s: float


class SeenOnce(_Value, frozen=True, kw_only=True):
    """Nodes that one request alone used."""

    blocks: int
    share: float | None
    """Of all distinct blocks."""
    tokens: int


class Returned(_Value, frozen=True, kw_only=True):
    """What was evicted under the study's policy and came back later."""

    blocks: int
    """Insertions of a node that had been evicted before."""
    share: float | None
    """Of all evictions."""
    tokens: int


class Recommendation(_Value, frozen=True, kw_only=True):
    """What to do, in three sentences."""

    policy: str
    capacity_blocks: int | None
    sentences: tuple[str, ...]
    """Policy and capacity; what it gains; what is uncertain."""


class ServedRow(_Value, frozen=True, kw_only=True):
    """What requests see with one policy, from a timed simulation. Seconds from arrival."""

    policy: str
    hit_ratio: float | None
    """Prompt tokens hit at the first admission, of all that were admitted: requests overlap, and
    the running ones hold blocks, so it is not the replay's."""
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    requests_s: float | None
    """Finished requests a second."""
    output_tokens_s: float | None
    """Generated tokens of these."""
    preemptions: int | None
    unfinished: int | None
    """Requests that did not finish, those rejected included."""
    overloaded: bool | None
    """Whether the queue grows without end; None where it cannot be told."""
    fault: str | None
    """Why it could not run."""


class ServedPolicies(_Value, frozen=True, kw_only=True):
    """The policies in a timed simulation of vLLM's scheduler, at the study's capacity."""

    max_num_seqs: int
    max_num_batched_tokens: int
    step_time: str
    """Which step time was used."""
    rows: tuple[ServedRow, ...]


class StudyResult(_Value, frozen=True, kw_only=True):
    """The whole answer to "what should my KV cache keep, and what is that worth?"."""

    schema_version: int = SCHEMA_VERSION
    kvsched: str
    """Version that made it."""
    config: dict[str, Any]
    """The options of the study."""
    command: str
    """A command that makes it again."""
    experiment: dict[str, Any]
    """The experiment's file that makes it again, without defaults and folders; empty where the
    study was made from Python."""
    definitions: dict[str, str]
    """What the numbers mean, by name."""
    optimum_is_exact: bool
    """Whether opt and opt-fit are optima in hit blocks; with unequal blocks a heuristic."""
    trace: TraceSummary
    capacity: CapacitySummary
    ceiling: Ceiling
    policy: str
    """The policy whose misses are explained: the engine's own, unless chosen."""
    curves: tuple[Curve, ...]
    targets: tuple[Target, ...]
    knees: tuple[Knee, ...]
    policies: tuple[PolicyRow, ...]
    anatomy: Anatomy
    reuse: Reuse
    hottest: tuple[Prefix, ...]
    seen_once: SeenOnce
    returned: Returned
    worth: Worth | None
    recommendation: Recommendation
    warnings: tuple[str, ...] = ()
    sample: SampleSummary | None = None
    """None where the whole trace was replayed."""
    served: ServedPolicies | None = None
    """None where it was not asked for."""

    def _repr_html_(self) -> str:
        advice = "".join(f"<p>{html.escape(text)}</p>" for text in self.recommendation.sentences)
        rows = [
            {
                "policy": row.policy,
                "hit tokens": row.hit_tokens,
                "share of prompt tokens": row.token_share,
                "gap closed": row.gap_closed,
                "evictions": row.evictions,
            }
            for row in self.policies
        ]
        return advice + table(f"Policies at {self.capacity.blocks:,} blocks", rows)
