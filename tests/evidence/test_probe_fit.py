"""The bisection against memory of a known size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.evidence.probe import fit as fit_module
from kvsched.evidence.probe.backend import OutOfMemory
from kvsched.evidence.probe.fit import largest_fit
from kvsched.evidence.probe.shape import BlockShape, ShapeSettings, block_shape

SHAPE = block_shape(ShapeSettings(kv_heads=1, head_dim=4, layers=1, block_tokens=1))
EACH = SHAPE.tensor_bytes


class Piece:
    def __init__(self, memory: Simulated) -> None:
        self.memory = memory
        memory.used += EACH

    def __del__(self) -> None:
        self.memory.used -= EACH


class Simulated:
    """``capacity`` bytes; keeps the most that was ever asked for at once."""

    object_bytes = 0

    def __init__(self, capacity: int) -> None:
        self.capacity, self.used, self.most = capacity, 0, 0

    def limit(self, extra_bytes: int | None) -> None: ...
    def release_cache(self) -> None: ...
    def touch(self, block: list[Piece]) -> None: ...

    def allocate(self, shape: BlockShape, blocks: int = 1) -> list[Piece]:
        self.most = max(self.most, self.used + EACH)
        if self.used + EACH > self.capacity:
            raise OutOfMemory
        return [Piece(self)]


def check(capacity: int, share: int) -> None:
    memory: Any = Simulated(capacity)
    found = largest_fit(memory, SHAPE, share)
    assert found.largest_blocks == min(capacity, share) // EACH
    assert memory.most <= share
    assert memory.used == 0
    assert all(blocks * EACH <= share for blocks, _ in found.trials)
    assert len(found.trials) <= 1 + (share // EACH).bit_length()
    assert found.limited_by == ("share" if share // EACH <= capacity // EACH else "allocator")


def test_objects_take_part_of_the_share() -> None:
    memory: Any = Simulated(1000 * EACH)
    memory.object_bytes = 3 * EACH
    assert largest_fit(memory, SHAPE, 100 * EACH).largest_blocks == 25


@given(capacity=st.integers(0, 200 * EACH), share=st.integers(0, 200 * EACH))
def test_bisection_is_exact_and_never_asks_beyond_the_share(capacity: int, share: int) -> None:
    check(capacity, share)


def test_the_check_notices_a_bisection_that_asks_for_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached = fit_module._reached
    monkeypatch.setattr(fit_module, "_reached", lambda b, s, n: reached(b, s, n + 1) - 1)
    with pytest.raises(AssertionError):
        check(200 * EACH, 100 * EACH)


def test_tiny_blocks_end_at_the_most_that_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_module, "MOST_FITTED", 50)
    memory: Any = Simulated(200 * EACH)
    found = largest_fit(memory, SHAPE, 100 * EACH)
    assert (found.largest_blocks, found.limited_by) == (50, "most that is tried")
