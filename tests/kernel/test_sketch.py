"""The sketch of recent counts beside exact ones."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from mutants import edited

from kvsched.kernel import sketch as module
from kvsched.kernel.sketch import MOST, empty_sketch, sketch_add, sketch_count, sketch_forget

quick = settings(deadline=None, max_examples=100, derandomize=True)
NEVER = 1 << 40


def exact(nodes: list[int], sample: int) -> dict[int, int]:
    """Counts halved, with their sum, whenever the sum reaches the sample."""
    counts: dict[int, int] = {}
    added = 0
    for node in nodes:
        counts[node] = min(MOST, counts.get(node, 0) + 1)
        added += 1
        if added == sample:
            added //= 2
            counts = {each: count // 2 for each, count in counts.items()}
    return counts


def filled(nodes: list[int], sample: int, add: Any = sketch_add, counters: int = 0) -> Any:
    sketch = empty_sketch(counters, sample)
    for node in nodes:
        add(sketch, node)
    return sketch


@quick
@given(nodes=st.lists(st.integers(0, 30), max_size=300), sample=st.integers(1, 80))
def test_few_nodes_are_counted_exactly(nodes: list[int], sample: int) -> None:
    sketch = filled(nodes, sample)
    expected = exact(nodes, sample)
    assert {node: sketch_count(sketch, node) for node in range(31)} == {
        node: expected.get(node, 0) for node in range(31)
    }


@quick
@given(seed=st.integers(0, 1000))
def test_many_nodes_are_never_counted_too_low(seed: int) -> None:
    drawn = random.Random(seed)  # noqa: S311  # not for secrets
    nodes = [int(drawn.paretovariate(0.6)) % 20_000 for _ in range(4_000)]
    sketch = filled(nodes, NEVER)
    for node, count in exact(nodes, NEVER).items():
        assert count <= sketch_count(sketch, node) <= MOST


def test_more_counters_err_less() -> None:
    nodes = [node for node in range(6_000) for _ in range(1 + node % 2)]

    def error(counters: int) -> int:
        sketch = filled(nodes, NEVER, counters=counters)
        return sum(sketch_count(sketch, node) - 1 - node % 2 for node in range(6_000))

    small, medium, large = error(0), error(24_000), error(400_000)
    assert small > medium > large
    assert large < 6


def test_broken_sketches_are_seen() -> None:
    nodes = [node % 13 for node in range(200)]
    for before, after in (
        ("sketch.counters[row, cell] >>= 1", "sketch.counters[row, cell] >>= 2"),
        ("+= sketch.counts[HALF] - sketch.counts[SAMPLE]", "= 0"),
        ("if least < MOST:", "if least < MOST - 1:"),
        (">= sketch.counts[SAMPLE]", "> sketch.counts[SAMPLE]"),
    ):
        wrong = edited(sketch_add, module, before, after)
        for sample in (60, NEVER):
            expected = exact(nodes, sample)
            sketch = filled(nodes, sample, wrong)
            if any(sketch_count(sketch, node) != expected[node] for node in range(13)):
                break
        else:
            raise AssertionError(f"nobody noticed: {after}")


def test_a_number_given_to_another_has_counters_of_its_own() -> None:
    sketch, plain = empty_sketch(4096, NEVER, nodes=50), empty_sketch(4096, NEVER)
    for node in range(50):
        for each in (sketch, plain):
            sketch_add(each, node)
            sketch_add(each, node)
    assert (sketch.counters == plain.counters).all(), "until one is forgotten"
    sketch_forget(sketch, 7)
    assert [sketch_count(sketch, node) for node in (6, 7, 8)] == [2, 0, 2]
    sketch_add(sketch, 7)
    assert sketch_count(sketch, 7) == 1
