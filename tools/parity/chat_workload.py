"""Workloads for recordings of a running vLLM: conversations as tokens, and how they are served.

Plain Python without kvsched or an engine. Answers are given, not the model's: each is one token
over and over, the only one that its request may sample. So every prompt is known before the run,
and the recording is the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import workload
from serve_workload import Settings

BLOCK = 32
"""Tokens of a block: vLLM's CPU backend wants multiples of 32."""
COUNT = 500
"""Requests of a run."""
VOCABULARY = 128
LONGEST = 512
"""Tokens of prompt and answer of a conversation's last turn, about."""
TURN = (40, 90)
"""Tokens that a turn adds: enough for a full block of its own after any shared head."""


@dataclass(frozen=True)
class Turn:
    """One request of a conversation."""

    session: int
    tokens: tuple[int, ...]
    """The prompt."""
    output: int
    """Tokens that are generated."""
    answer: int
    """The one token that they are."""


@dataclass(frozen=True)
class Run:
    """One run: who is served, by which settings, how many at a time."""

    name: str
    seed: int
    settings: Settings
    concurrency: int
    longest_answer: int

    def turns(self) -> list[Turn]:
        """Return the requests in the order in which they are sent."""
        return conversations(self.seed, COUNT, self.longest_answer)


def conversations(seed: int, count: int, longest_answer: int) -> list[Turn]:
    """Make conversations that share four heads; a later turn repeats all before it.

    Some turns are asked again as they were; those after them repeat the answer all the same.
    """
    draw = random.Random(seed)  # noqa: S311  # a workload, not a secret

    def words(least: int, most: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(draw.randrange(least, most))]

    heads = [words(30, 160) for _ in range(4)]
    open_sessions: list[int] = []
    told: list[list[int]] = []
    last: dict[int, Turn] = {}
    made: list[Turn] = []
    while len(made) < count:
        if not open_sessions or draw.random() < 0.25:
            open_sessions.append(len(told))
            told.append(list(draw.choice(heads)))
        session = draw.choice(open_sessions[-10:])
        if session in last and draw.random() < 0.1:
            made.append(last[session])
            continue
        told[session] += words(*TURN)
        if draw.random() < 0.15:
            told[session] += [
                draw.randrange(VOCABULARY) for _ in range(-len(told[session]) % BLOCK)
            ]
        turn = Turn(
            session,
            tuple(told[session]),
            draw.choice([1, 2, BLOCK, draw.randrange(1, longest_answer)]),
            draw.randrange(VOCABULARY),
        )
        made.append(turn)
        last[session] = turn
        told[session] += [turn.answer] * turn.output
        if len(told[session]) > LONGEST:
            open_sessions.remove(session)
    return made


def named(turns: Sequence[Turn], block_size: int) -> list[workload.Request]:
    """Return the requests with a number for each full block of the prompt and all before it."""
    known: dict[tuple[int, ...], int] = {}
    requests = []
    for turn in turns:
        ends = range(block_size, len(turn.tokens) + 1, block_size)
        ids = tuple(known.setdefault(turn.tokens[:end], len(known)) for end in ends)
        requests.append(workload.Request(ids, len(turn.tokens), turn.output, turn.session))
    return requests


def _settings(blocks: int, seqs: int, tokens: int, **more: int) -> Settings:
    return Settings(
        block_size=BLOCK,
        blocks=blocks,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=1024,
        **more,
    )


RUNS = (
    Run("one", 1, _settings(56, 8, 256, long_prefill_token_threshold=64), 1, 40),
    Run("eight", 2, _settings(120, 8, 512), 8, 40),
    Run("eight-tight", 3, _settings(60, 6, 256), 8, 150),
    Run("eight-queued", 4, _settings(80, 4, 128, long_prefill_token_threshold=100), 8, 80),
)
"""Served in one process: one after another; beside others with room; so that requests are
preempted; so that they queue."""
SENT = Run("sent", 5, _settings(60, 8, 256), 8, 150)
"""Served by an engine in a process of its own, which eight clients send to as they please."""
