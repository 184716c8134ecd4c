"""A small engine around `kvsched.KVCacheScheduler`: a paged cache and continuous batching.

    pip install "kvsched[torch]"
    python examples/tiny_engine.py

A step admits, schedules, runs and samples. docs/embedding.md walks through it.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tiny_llama import Piece, TinyLlama
from torch import Tensor

from kvsched import KVCacheScheduler
from kvsched.cache import Admission, Lease, Move, Outcome, Request, Ticket, TierSettings


@dataclass(eq=False)
class Sequence:
    """A prompt, and what is generated behind it."""

    tokens: list[int]
    max_new: int
    samples: int = 1
    """How many answers to generate in parallel."""
    temperature: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    """What else the scheduler is to know: tenant, cache_salt, priority, lifetime_s, ..."""
    prompt_length: int = 0
    lease: Lease | None = None
    computed: int = 0
    """Leading tokens whose keys and values are in place."""
    logits: list[Tensor] = field(default_factory=list)
    """(vocab,) for each token that was sampled."""
    failure: str = ""

    @property
    def output(self) -> list[int]:
        """Tokens that were generated."""
        return self.tokens[self.prompt_length :]


class Engine:
    """Runs many sequences at once: ``token_budget`` tokens a step at most, ``chunk`` of each."""

    def __init__(
        self,
        model: TinyLlama,
        *,
        blocks: int,
        block_size: int = 4,
        token_budget: int = 32,
        chunk: int = 16,
        host_blocks: int = 0,
        write: str = "back",
        **settings: Any,
    ) -> None:
        below = TierSettings(capacity_blocks=host_blocks, write=write) if host_blocks else None
        self.cache = KVCacheScheduler(
            blocks, block_size, second_tier=below, queue_moves=True, **settings
        )
        self.model, self.token_budget, self.chunk = model, token_budget, chunk
        self.pool = model.new_pool(blocks, block_size)
        self.host = model.new_pool(host_blocks, block_size)
        self.arrived: deque[Sequence] = deque()
        self.queued: list[tuple[Ticket, Sequence]] = []
        self.running: list[Sequence] = []
        self.finished: list[Sequence] = []
        self.steps = self.tokens_run = self.preemptions = 0

    def add(self, tokens: list[int], max_new: int = 8, **how: Any) -> Sequence:
        """Take a prompt in; it runs when there is room."""
        sequence = Sequence(list(tokens), max_new, prompt_length=len(tokens), **how)
        self.arrived.append(sequence)
        return sequence

    def run(self) -> None:
        """Step until nothing is left to do."""
        while self.arrived or self.queued or self.running:
            self.step()

    def step(self) -> None:
        """Admit, choose what to compute, compute it, and sample."""
        self._admit()
        chosen = self._schedule()
        self._carry(self.cache.take_moves())
        if chosen:
            logits = self.model.forward([self._piece(*each) for each in chosen], self.pool)
            self._advance(chosen, logits)
        self.steps += 1

    # Admission

    def _admit(self) -> None:
        while self.arrived:
            sequence = self.arrived.popleft()
            admission = self.cache.acquire(Request(token_ids=sequence.tokens, **sequence.options))
            if admission.outcome is Outcome.QUEUE:
                self.queued.append((admission.ticket, sequence))
            else:
                self._start(sequence, admission)
        self.cache.poll()
        for ticket, sequence in self.queued:
            if ticket.admission is not None:
                self._start(sequence, ticket.admission)
        self.queued = [each for each in self.queued if each[0].admission is None]

    def _start(self, sequence: Sequence, admission: Admission) -> None:
        if admission.outcome is not Outcome.ADMIT:
            sequence.failure = admission.reason
            self.finished.append(sequence)
            return
        lease = sequence.lease = admission.lease
        # The last token is computed in any case: its logits are what the next is drawn from.
        sequence.computed = min(lease.hit_tokens, len(sequence.tokens) - 1)
        self.running.append(sequence)

    # Choosing

    def _schedule(self) -> list[tuple[Sequence, int]]:
        """Return how many tokens each sequence computes, the oldest first."""
        chosen, budget = [], self.token_budget
        for sequence in list(self.running):
            lease = sequence.lease
            if budget == 0 or lease is None:  # preempted just now, for one before it
                continue
            if lease.lost_from is not None:
                self._preempt(sequence)
            elif not lease.waits_for_blocks and self._has_room(sequence):
                count = min(len(sequence.tokens) - sequence.computed, self.chunk, budget)
                chosen.append((sequence, count))
                budget -= count
        return chosen

    def _has_room(self, sequence: Sequence) -> bool:
        """Have a block for the newest token, at the expense of the youngest if need be."""
        lease = sequence.lease
        while lease.extend(sequence.tokens[lease.tokens :]).outcome is Outcome.REJECT:
            self._preempt(self.running[-1])
            if sequence.lease is None:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Give up a sequence's blocks; it starts again with what is still cached of it then."""
        # Not those that wait: the room is for the sequence that asked.
        self.cache.release(sequence.lease, failed=True, admit=False)
        sequence.lease = None
        self.running.remove(sequence)
        self.arrived.append(sequence)
        self.preemptions += 1

    # Computing

    def _piece(self, sequence: Sequence, count: int) -> Piece:
        lease, start = sequence.lease, sequence.computed
        blocks = torch.tensor(lease.block_ids)
        return Piece(sequence.tokens[start : start + count], start, blocks, lease.hit_tokens)

    def _carry(self, moves: list[Move]) -> None:
        """Carry bytes, in the order of the moves."""
        tiers = {
            "copy": (self.pool, self.pool),
            "offload": (self.pool, self.host),
            "load": (self.host, self.pool),
        }
        for move in moves:
            source, target = tiers[move.kind]
            target[:, :, move.target] = source[:, :, move.source]

    def _advance(self, chosen: list[tuple[Sequence, int]], logits: Tensor) -> None:
        for (sequence, count), row in zip(chosen, logits, strict=True):
            self.tokens_run += count
            sequence.computed += count
            sequence.lease.computed(sequence.computed)
            if sequence.computed == len(sequence.tokens):
                for each in [sequence, *self._fork(sequence)]:
                    self._append(each, row)

    def _fork(self, sequence: Sequence) -> list[Sequence]:
        """Return sequences that share a prompt's blocks, for its other samples."""
        others, sequence.samples = sequence.samples - 1, 1
        twins = [
            replace(sequence, tokens=list(sequence.tokens), lease=sequence.lease.fork(), logits=[])
            for _ in range(others)
        ]
        self.running.extend(twins)
        return twins

    def _append(self, sequence: Sequence, logits: Tensor) -> None:
        sequence.logits.append(logits)
        if sequence.temperature:
            chances = (logits / sequence.temperature).softmax(-1)
            sequence.tokens.append(int(torch.multinomial(chances, 1)))
        else:
            sequence.tokens.append(int(logits.argmax()))
        if len(sequence.output) == sequence.max_new:
            self.cache.release(sequence.lease)
            self.running.remove(sequence)
            self.finished.append(sequence)


def main() -> None:
    """Serve a conversation of a few turns, several at a time, and say what was saved."""
    torch.manual_seed(0)
    draw = random.Random(0)  # noqa: S311  # prompts, not secrets
    engine = Engine(TinyLlama(), blocks=48, host_blocks=96)

    def text(length: int) -> list[int]:
        return [draw.randrange(engine.model.vocab) for _ in range(length)]

    system = text(24)
    talks = [system + text(10) for _ in range(4)]
    for turn in range(3):
        asked = [engine.add(talk, samples=2, temperature=1.0) for talk in talks]
        engine.run()
        talks = [sequence.tokens + text(9) for sequence in asked]
        found = engine.cache.metrics()
        print(  # noqa: T201  # what the example shows
            f"turn {turn}: {found['vllm:prompt_tokens_total']:.0f} prompt tokens so far, "
            f"{found['vllm:prompt_tokens_cached_total']:.0f} not computed again "
            f"({found['vllm:external_prefix_cache_hits_total']:.0f} from host memory); "
            f"{engine.tokens_run} tokens in {engine.steps} steps, {engine.preemptions} preemptions"
        )


if __name__ == "__main__":
    main()
