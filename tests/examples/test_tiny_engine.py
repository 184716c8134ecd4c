"""Real keys and values, reused: logits are those from scratch, unless something is left out.

The judge is a plain decoder in float64 that knows no blocks and no cache.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_engine import Engine, Sequence
from tiny_llama import TinyLlama

from kvsched.cache import Lease, Move

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 2e-5
"""Logits have a deviation of 1; float32 and the order of sums were seen to move them by 2e-6."""
WRONG = 0.1
"""From here on nobody would call it rounding: 50,000 times as much."""

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model() -> TinyLlama:
    return TinyLlama()


# The judge


def norm(x: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def rope(x: Any) -> Any:
    """Rotate (T, heads, head_dim): pair i of position t by t / 10,000^(i / pairs), as complex."""
    pairs = x.shape[-1] // 2
    turns = np.exp(1j * np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(pairs) / pairs))
    turned = (x[..., :pairs] + 1j * x[..., pairs:]) * turns[:, None]
    return np.concatenate([turned.real, turned.imag], -1)


def dense_logits(model: TinyLlama, tokens: list[int]) -> Any:
    """Return (T, vocab) logits of a whole text, computed at once."""
    length, groups = len(tokens), model.heads // model.kv_heads
    x = model.embedding.double().numpy()[tokens]
    for layer in model.layers:
        w = {name: weight.double().numpy() for name, weight in layer.items()}
        h = norm(x)
        q = rope((h @ w["q"]).reshape(length, model.heads, -1))
        k = rope((h @ w["k"]).reshape(length, model.kv_heads, -1))
        v = (h @ w["v"]).reshape(length, model.kv_heads, -1)
        seen = np.zeros_like(q)
        for head in range(model.heads):
            scores = q[:, head] @ k[:, head // groups].T / np.sqrt(model.head_dim)
            scores = np.where(np.tri(length) == 1, scores, -np.inf)
            chances = np.exp(scores - scores.max(-1, keepdims=True))
            chances /= chances.sum(-1, keepdims=True)
            seen[:, head] = chances @ v[:, head // groups]
        x = x + seen.reshape(length, -1) @ w["o"]
        h = norm(x)
        gate = h @ w["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]
    return norm(x) @ model.head.double().numpy()


def error(model: TinyLlama, sequence: Sequence) -> float:
    """Return the largest difference between a sequence's logits and those from scratch."""
    assert not sequence.failure
    assert len(sequence.logits) == len(sequence.output) == sequence.max_new
    wanted = dense_logits(model, sequence.tokens[:-1])[sequence.prompt_length - 1 :]
    return float(np.abs(torch.stack(sequence.logits).double().numpy() - wanted).max())


def text(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)  # noqa: S311  # prompts, not secrets
    return [draw.randrange(256) for _ in range(length)]


def served(engine: Engine, *prompts: list[int], **how: Any) -> list[Sequence]:
    """Run prompts to their end, all together."""
    asked = [engine.add(prompt, **how) for prompt in prompts]
    engine.run()
    engine.cache.check()
    return asked


# One thing at a time


def test_a_prompt_alone_is_computed_right(model: TinyLlama) -> None:
    (alone,) = served(Engine(model, blocks=16), text(21, 0))
    assert error(model, alone) < TOLERANCE


def test_the_judge_notices_a_changed_token(model: TinyLlama) -> None:
    (alone,) = served(Engine(model, blocks=16), text(21, 0))
    alone.tokens[3] ^= 1
    assert error(model, alone) > WRONG


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 64])
def test_a_prefix_is_reused(model: TinyLlama, budget: int) -> None:
    engine = Engine(model, blocks=32, token_budget=budget)
    served(engine, text(18, 0))
    before = engine.tokens_run
    (again,) = served(engine, text(18, 0) + text(9, 1))
    # Four full blocks of the first prompt's 18 tokens are there; 11 and 7 tokens are left to run.
    assert engine.tokens_run - before == 27 - 16 + 7
    assert error(model, again) < TOLERANCE


def test_a_reused_prefix_gives_the_same_bits_where_the_shapes_are_the_same(
    model: TinyLlama,
) -> None:
    prompt = text(32, 0)
    cold, warm = (Engine(model, blocks=32, token_budget=16) for _ in range(2))
    served(warm, prompt[:16], max_new=1)
    (computed,), (reused,) = served(cold, prompt), served(warm, prompt)
    assert reused.tokens == computed.tokens
    assert torch.equal(torch.stack(reused.logits), torch.stack(computed.logits))


def test_a_whole_prompt_that_hits_is_computed_at_its_last_token(model: TinyLlama) -> None:
    engine = Engine(model, blocks=32)
    first, second = (served(engine, text(16, 0), max_new=4)[0] for _ in range(2))
    assert engine.tokens_run == (16 + 3) + (1 + 3)
    assert second.tokens == first.tokens
    assert error(model, second) < TOLERANCE


def test_one_corrupted_block_changes_the_logits(model: TinyLlama) -> None:
    engine = Engine(model, blocks=32)
    prompt = text(18, 0)
    served(engine, prompt)
    for block in range(4):
        held = engine.pool.clone()
        engine.pool[:, :, block] += 0.5 * torch.randn(engine.pool[:, :, block].shape)
        (again,) = served(engine, prompt)
        assert error(model, again) > WRONG
        engine.pool.copy_(held)
    (again,) = served(engine, prompt)
    assert error(model, again) < TOLERANCE


def test_the_next_turn_reuses_what_was_generated(model: TinyLlama) -> None:
    engine = Engine(model, blocks=32)
    (first,) = served(engine, text(10, 0), max_new=11)
    before = engine.tokens_run
    (turn,) = served(engine, first.tokens + text(5, 1), max_new=6)
    # Of 21 tokens the last was never computed: five full blocks are there.
    assert engine.tokens_run - before == (26 - 20) + 5
    assert error(model, turn) < TOLERANCE


def test_requests_that_come_together_share_what_one_of_them_computes(model: TinyLlama) -> None:
    engine = Engine(model, blocks=64, token_budget=8)
    prompts = [text(24, 0) + text(5, seed) for seed in range(1, 5)]
    together = served(engine, *prompts, max_new=3)
    assert engine.tokens_run == 24 + 4 * (5 + 2)
    assert max(error(model, each) for each in together) < TOLERANCE


def test_another_salt_reuses_nothing(model: TinyLlama) -> None:
    engine = Engine(model, blocks=64)
    served(engine, text(18, 0), options={"cache_salt": "one"})
    for options in ({"cache_salt": "two"}, {}, {"lora_name": "x"}, {"tenant": "t"}):
        before = engine.tokens_run
        (other,) = served(engine, text(18, 0), max_new=1, options=options)
        assert engine.tokens_run - before == 18
        assert error(model, other) < TOLERANCE


def test_parallel_samples_share_the_prompt_and_part_ways(model: TinyLlama) -> None:
    torch.manual_seed(0)
    engine = Engine(model, blocks=32)
    served(engine, text(18, 0), samples=4, temperature=2.0)
    assert len(engine.finished) == 4
    assert len({tuple(each.tokens) for each in engine.finished}) == 4
    assert engine.tokens_run == 18 + 4 * 7
    assert max(error(model, each) for each in engine.finished) < TOLERANCE


def test_what_left_is_computed_again(model: TinyLlama) -> None:
    engine = Engine(model, blocks=8)
    for seed in (0, 1, 0):
        (each,) = served(engine, text(22, seed), max_new=5)
        assert error(model, each) < TOLERANCE
    # Seven blocks of eight went to the second: the first's head stayed.
    assert engine.tokens_run == 3 * (22 + 4) - 4


@pytest.mark.parametrize("write", ["back", "through"])
def test_what_left_comes_back_from_the_second_tier(model: TinyLlama, write: str) -> None:
    engine = Engine(model, blocks=8, host_blocks=32, write=write)
    served(engine, text(22, 0), max_new=5)
    served(engine, text(22, 1), max_new=5)
    before = engine.tokens_run
    (again,) = served(engine, text(22, 0), max_new=5)
    assert engine.tokens_run - before == (22 - 20) + 4
    assert engine.cache.metrics()["vllm:external_prefix_cache_hits_total"] > 0
    assert error(model, again) < TOLERANCE


def test_what_is_preempted_goes_on_where_it_was(model: TinyLlama) -> None:
    engine = Engine(model, blocks=12)
    together = served(engine, *(text(10, seed) for seed in range(3)), max_new=12)
    assert engine.preemptions > 0
    assert engine.tokens_run > 3 * (10 + 11)
    assert max(error(model, each) for each in together) < TOLERANCE


def test_a_request_whose_hit_is_lost_starts_again(model: TinyLlama) -> None:
    engine = Engine(model, blocks=32, token_budget=4)
    writer, reader = engine.add(text(20, 0)), engine.add(text(20, 0))
    engine.step()
    assert reader.lease is not None
    assert reader.lease.waits_for_blocks == 4
    engine._preempt(writer)
    assert reader.lease.lost_from == 1
    engine.run()
    engine.cache.check()
    assert error(model, writer) < TOLERANCE
    assert error(model, reader) < TOLERANCE


def test_what_can_never_fit_is_turned_away(model: TinyLlama) -> None:
    engine = Engine(model, blocks=4)
    never = engine.add(text(17, 0))
    grows = engine.add(text(15, 0), max_new=12)
    engine.run()
    assert "at most 4" in never.failure
    assert "at most 4" in grows.failure
    assert len(grows.output) == 2
    assert engine.cache.free_blocks == 4


# All at once


def traffic(model: TinyLlama, engine: Engine, seed: int) -> float:
    """Serve conversations that come, share, fork, queue and are preempted; return the error."""
    draw = random.Random(seed)  # noqa: S311  # prompts, not secrets
    torch.manual_seed(seed)
    stems = [text(draw.randrange(4, 20), seed) for seed in range(3)]
    asked: list[Sequence] = []
    for _ in range(14):
        stem = draw.choice([*stems, *(each.tokens for each in asked if len(each.tokens) < 28)])
        asked.append(
            engine.add(
                stem + text(draw.randrange(1, 9), draw.randrange(1000)),
                draw.randrange(1, 8),
                samples=draw.choice([1, 1, 1, 3]),
                temperature=1.0,
                options={
                    "cache_salt": draw.choice([None, None, None, "salt"]),
                    "priority": draw.choice([0, 0, 1]),
                },
            )
        )
        for _ in range(draw.randrange(6)):
            engine.step()
            engine.cache.check()
    engine.run()
    engine.cache.check()
    assert engine.cache.free_blocks == engine.cache.capacity_blocks
    assert len(engine.finished) >= len(asked)
    return max(error(model, each) for each in engine.finished)


@pytest.mark.parametrize("write", ["back", "through"])
def test_everything_at_once(model: TinyLlama, write: str) -> None:
    seen = dict.fromkeys(("load", "offload", "copy"), 0)
    preemptions = 0
    for seed in range(6):
        engine = Engine(model, blocks=18, token_budget=12, chunk=5, host_blocks=20, write=write)
        carry = engine._carry

        def counted(moves: list[Move], carry: Any = carry) -> None:
            for move in moves:
                seen[move.kind] += 1
            carry(moves)

        engine._carry = counted  # type: ignore[method-assign]
        assert traffic(model, engine, seed) < TOLERANCE
        preemptions += engine.preemptions
    assert min(*seen.values(), preemptions) > 0


def without(kind: str) -> Callable[[Engine], None]:
    def change(engine: Engine) -> None:
        carry = engine._carry
        engine._carry = lambda moves: carry([each for each in moves if each.kind != kind])

    return change


def backwards(engine: Engine) -> None:
    carry = engine._carry
    engine._carry = lambda moves: carry(moves[::-1])


def late(engine: Engine) -> None:
    """Each step's moves are carried a step later."""
    carry, due = engine._carry, [[]]

    def wait(moves: list[Move]) -> None:
        due.append(moves)
        carry(due.pop(0))

    engine._carry = wait


def shifted(engine: Engine) -> None:
    """One block of a sequence is another's."""
    piece = engine._piece

    def wrong(sequence: Sequence, count: int) -> Any:
        made = piece(sequence, count)
        return made._replace(blocks=made.blocks.roll(1))

    engine._piece = wrong


BROKEN = {
    "no copy": without("copy"),
    "no load": without("load"),
    "no offload": without("offload"),
    "moves backwards": backwards,
    "moves a step late": late,
    "blocks in another order": shifted,
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_left_out_shows(model: TinyLlama, fault: str) -> None:
    worst = 0.0
    for seed in range(6):
        engine = Engine(model, blocks=18, token_budget=12, chunk=5, host_blocks=20)
        BROKEN[fault](engine)
        worst = max(worst, traffic(model, engine, seed))
    assert worst > WRONG


def test_not_waiting_for_others_shows(model: TinyLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [text(24, 0) + text(5, seed) for seed in range(1, 5)]
    together = served(Engine(model, blocks=64, chunk=6), *prompts)
    assert max(error(model, each) for each in together) < TOLERANCE
    monkeypatch.setattr(Lease, "waits_for_blocks", 0)
    together = served(Engine(model, blocks=64, chunk=6), *prompts)
    assert max(error(model, each) for each in together) > WRONG


def test_it_runs_as_a_script() -> None:
    ended = subprocess.run(
        [sys.executable, "examples/tiny_engine.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("turn 0: 136 prompt tokens so far, 72 not computed again")
