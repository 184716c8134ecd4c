"""The state of a simulated engine: what is asked, how far each request is, queues and blocks.

Everything that changes lives in arrays, so that the compiled loop can be left and entered again
at any step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvsched.kernel.heap import HOLE, SIZE, Heap, empty_heap
from kvsched.kernel.table import NONE, Table
from kvsched.replay.vllm import Pool, empty_pool

Int8s = NDArray[np.int8]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]

EXPECTED = 0
"""It has not arrived."""
WAITING = 1
RUNNING = 2
FINISHED = 3
REJECTED = 4

NEVER_S = -1.0
"""Stands where a moment has not come."""

# Places in `State.counts`.
RUNNING_COUNT = 0
FREE_BLOCKS = 1
NEXT_ARRIVAL = 2
"""The first place in `Arrivals.firsts` that has not arrived."""
KNOWN_ARRIVALS = 3
"""Places there whose arrival is known: all, or in a closed loop those that had their turn."""
FIRST_TIE = 4
"""The smallest tie given to a request that goes back to the head of the queue."""
ARRIVED = 5
"""Requests that arrived: the next tie of one that goes to the queue's end."""
ENDED = 6
"""Requests that finished or were rejected."""
STEPS = 7
JUMPED = 8
"""Steps that were passed in jumps."""
LOGGED = 9
"""Rows written of the step log."""
CHUNKS = 10
"""Running requests that have no token yet, or compute more than one in the next step."""
REFUSED = 11
"""1 while the head of the queue was refused memory and nothing has changed since."""
PREEMPTIONS = 12
EVICTIONS = 13
RAN = 14
"""Requests of the last step, in `State.ran`."""
PREEMPTED_NOW = 15
ADMITTED_NOW = 16
TOKENS = 17
"""Tokens computed, again where a preemption lost them."""
EMPTY_STEPS = 18
"""Steps that computed nothing, for the running requests preempted each other."""
RESIDENT = 19
"""Nodes that are cached, where a policy decides who leaves; as the next four."""
PRIVATE = 20
"""Blocks that hold no node."""
RANK = 21
"""The next rank that is given."""
CURRENT = 22
"""The request that began or went on last, NONE after one was released."""
FAULT = 23
"""0, or 1 more than the request for which the policy named no evictable node."""
TOKEN_STEP = 24
"""Steps that had been made when a request last gained a token."""
PATIENCE = 25
"""Steps in which nobody gains a token that pass as no livelock, as far as they are known."""
RECOMPUTED = 26
"""Tokens of those computed that a request had computed before it was last preempted."""
DUE = 27
"""Rows of `Arrivals.due`."""
ASKED = 28
"""Requests that the engine is to end: all, or with replicas those that are its own."""
TURNS = 29
"""Rows of `Arrivals.ended`."""
STOPS = 30
"""1 where the loop stops as soon as a request has ended."""
COUNTS = 31

BATCH = 10
"""Sums that a step's time may depend on."""

# Columns of the step log.
LOG_START_S = 0
LOG_SECONDS = 1
LOG_TOKENS = 2
LOG_SEQUENCES = 3
LOG_CONTEXT = 4
LOG_RUNNING = 5
LOG_WAITING = 6
LOG_FREE = 7
LOG_PREEMPTED = 8
LOG_COLUMNS = 9


class Rules(NamedTuple):
    """The scheduler's settings, as whole numbers; what vLLM's names mean is in `settings`."""

    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    chunked: int
    reserve_full: int
    watermark_blocks: int
    closed_loop: int


class Work(NamedTuple):
    """What R requests ask, in the order in which they arrive."""

    prompt: Int64s
    """(R,) prompt tokens."""
    output: Int64s
    """(R,) tokens to generate, at least 1."""
    priority: Int64s
    """(R,) vLLM's: a smaller one goes first."""
    starts: Int64s
    """(R+1,) where each request's chain begins."""
    chains: Int32s
    """(B,) nodes of all that each request ever holds, in blocks."""
    limit: Int64s
    """(R,) blocks that can be hit at first; after a preemption all that is full can be."""
    kept: Int64s
    """(R,) blocks that get a hash when they are full."""


class Arrivals(NamedTuple):
    """Who arrives when. Times are `Progress.arrival_s`."""

    firsts: Int32s
    """(F,) requests that arrive by themselves, in order."""
    follows: Int32s
    """(R,) the next turn of the same session, NONE where none."""
    think_s: Float64s
    """(R,) seconds from the end of the turn before to its arrival."""
    due: Int32s
    """(D,) a heap by (arrival, number) of others whose arrival is known."""
    ended: Int32s
    """(E,) requests that ended, where there are replicas; of length 0 else."""
    ended_s: Float64s
    """(E,) when they did."""
    apart_s: float = 0.0
    """Seconds at least between two arrivals of a closed loop."""


class Progress(NamedTuple):
    """How far each request is, and what has happened to it. (R,) each."""

    status: Int8s
    arrival_s: Float64s
    scheduled_s: Float64s
    """Start of the first step that it was in, or `NEVER_S`."""
    first_token_s: Float64s
    finished_s: Float64s
    tie: Int64s
    """Its number among those that arrived."""
    tokens: Int64s
    """Prompt and generated tokens so far."""
    computed: Int64s
    """Tokens whose keys and values are in blocks that it holds."""
    blocks: Int32s
    """Blocks that it holds."""
    hashed: Int32s
    """Blocks of these that have a hash."""
    given: Int64s
    """Tokens that the current step computes of it."""
    hit: Int64s
    """Tokens that it had when it was last admitted: hit, or moved back."""
    first_hit: Int64s
    """Tokens hit at its first admission."""
    preemptions: Int32s
    rank: Int64s
    """Rank of its root, where a policy decides who leaves."""
    reached: Int64s
    """Most tokens that it had computed when it was preempted."""


class State(NamedTuple):
    """All of a simulated engine."""

    work: Work
    arrivals: Arrivals
    progress: Progress
    counts: Int64s
    """(COUNTS,) single numbers, by the names above."""
    clock: Float64s
    """(1,) seconds: when the next step starts."""
    running: Int32s
    """(S+1,) requests that run, in the order of their admission."""
    waiting: Heap
    """Requests that wait: by the order's key, then by tie."""
    pool: Pool
    """Physical blocks; its table holds every request's, at its chain's places."""
    references: Int32s
    """(C,) requests that hold each block; (N,) each node, where a policy decides who leaves."""
    capacity: Int64s
    """(1,) blocks."""
    table: Any
    """`kvsched.kernel.table.Table` of all nodes, where a policy decides who leaves; else none."""
    policy: Any
    """The policy's own arrays."""
    ran: Int32s
    """(S+1,) requests of the last step."""
    ran_tokens: Int32s
    """(S+1,) tokens of each."""
    preempted: Int32s
    """(S+1,) requests that the last step preempted, in order."""
    admitted: Int32s
    """(S+1,) requests that the last step admitted, in order."""
    phase: Int32s
    """(block_size+2,) where each phase's requests begin in ``by_phase``; used within a jump."""
    by_phase: Int32s
    """(S+1,) places in ``running`` by the step in which they need a block."""
    batch: Float64s
    """(BATCH,) sums over what a step computes, for its time."""
    log: Float64s
    """(L, LOG_COLUMNS) one row a step; of length 0 when nobody asked."""
    gate: Any = None
    """`kvsched.serve.admission.Gate`, where there are limits."""
    tier: Any = None
    """`kvsched.serve.swap.Tier`, where preempted requests move to one."""


def waiting_count(state: State) -> int:
    """Requests that wait: the heap's root may be a hole. O(1)."""
    return int(state.waiting.counts[SIZE] - state.waiting.counts[HOLE])


def new_progress(arrival_s: Float64s) -> Progress:
    """Return the state of requests that have not arrived. O(R)."""
    count = len(arrival_s)

    def whole(kind: Any = np.int64) -> Any:
        return np.zeros(count, kind)

    def moments() -> Float64s:
        return np.full(count, NEVER_S)

    return Progress(
        status=whole(np.int8),
        arrival_s=np.array(arrival_s, np.float64),
        scheduled_s=moments(),
        first_token_s=moments(),
        finished_s=moments(),
        tie=whole(),
        tokens=whole(),
        computed=whole(),
        blocks=whole(np.int32),
        hashed=whole(np.int32),
        given=whole(),
        hit=whole(),
        first_hit=whole(),
        preemptions=whole(np.int32),
        rank=whole(),
        reached=whole(),
    )


def _by_themselves(requests: int) -> Arrivals:
    """Return the arrivals of requests that are turns of no session. O(R)."""
    return Arrivals(
        firsts=np.arange(requests, dtype=np.int32),
        follows=np.full(requests, NONE, np.int32),
        think_s=np.zeros(requests),
        due=np.zeros(0, np.int32),
        ended=np.zeros(0, np.int32),
        ended_s=np.zeros(0),
    )


def new_state(
    work: Work,
    arrival_s: Float64s,
    known_arrivals: int,
    nodes: int,
    capacity: int,
    rules: Rules,
    log_rows: int = 0,
    blocks: int | None = None,
    table: Table | None = None,
    policy: Any = None,
    arrivals: Arrivals | None = None,
) -> State:
    """Return an engine without a request. O(R + B + N + C).

    ``nodes`` are those of ``work.chains``; the first ``known_arrivals`` that arrive by themselves
    have theirs in ``arrival_s``. Without ``arrivals`` all do, in order.
    The first ``blocks`` of the capacity are kept in memory: as many as are ever used, or more.
    With a ``table`` and a ``policy``'s arrays there is no pool.
    """
    blocks = capacity if blocks is None else blocks
    places = len(work.chains)
    if table is not None:
        blocks, nodes, places = 0, 0, 0
    requests = len(work.prompt)
    seats = min(rules.max_num_seqs, requests) + 1
    counts = np.zeros(COUNTS, np.int64)
    counts[FREE_BLOCKS] = capacity
    counts[KNOWN_ARRIVALS] = known_arrivals
    counts[ASKED] = requests
    counts[CURRENT] = NONE
    lists = [np.zeros(seats, np.int32) for _ in range(6)]
    return State(
        work=work,
        arrivals=_by_themselves(requests) if arrivals is None else arrivals,
        progress=new_progress(arrival_s),
        counts=counts,
        clock=np.zeros(1),
        running=lists[0],
        waiting=empty_heap(requests, requests),
        pool=empty_pool(blocks, nodes, places),
        references=np.zeros(blocks if table is None else len(table.parent), np.int32),
        capacity=np.array([capacity], np.int64),
        table=table,
        policy=policy,
        ran=lists[1],
        ran_tokens=lists[5],
        preempted=lists[2],
        admitted=lists[3],
        phase=np.zeros(rules.block_size + 2, np.int32),
        by_phase=lists[4],
        batch=np.zeros(BATCH),
        log=np.zeros((log_rows, LOG_COLUMNS)),
    )
