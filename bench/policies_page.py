"""Write docs/policies.md: every policy × every trace at hand × three capacities.

    python bench/policies_page.py

Hits are exact and the same on every machine; nanoseconds are of the machine that wrote the page.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inputs import InputMissingError, shared
from kvsched.foundation.files import write_whole
from kvsched.policy.base import Policy
from kvsched.policy.registry import make, names
from kvsched.replay.run import replay
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

PAGE = Path(__file__).resolve().parents[1] / "docs" / "policies.md"
SHARES = {"tight": 0.02, "medium": 0.1, "loose": 0.4}
"""Capacity over the trace's distinct blocks (tokens of them, where blocks are unequal)."""
BOUNDS = ("opt-fit", "opt")
VARIANTS = {"priority": "priority:head_tokens=1024"}
"""What is run for a policy whose default needs a column that hardly any trace has."""
RUNS = 3
LEAST_GAP = 1e-3
"""Of all references (or tokens); below it no share of the gap is stated."""

TRACES: dict[str, Callable[[], Trace]] = {
    "Mooncake conversation": lambda: load_trace(shared("mooncake", "conversation_trace.jsonl")),
    "Mooncake synthetic": lambda: load_trace(shared("mooncake", "synthetic_trace.jsonl")),
    "Weka coding agents": lambda: load_trace(shared("weka")),
    "RAGPulse": lambda: load_trace(shared("ragpulse")),
    "preset:chat": lambda: generate(preset("chat"), 0),
    "preset:rag": lambda: generate(preset("rag"), 0),
    "preset:weka-coding-agents": lambda: generate(preset("weka-coding-agents"), 0),
}


@dataclass(frozen=True)
class Cell:
    """One policy at one capacity on one trace."""

    hit_ratio: float
    """Hit blocks over block references; hit tokens over tokens where blocks are unequal."""
    gap_closed: float | None
    """(hits − LRU's) / (opt-fit's − LRU's); None where opt-fit gains next to nothing."""
    nanoseconds: float | None
    """A block reference, the least of several runs; None where it was not measured."""


Rows = dict[str, dict[str, Cell | str]]
"""By policy, by name of the capacity; a text says why there is no figure."""


def capacities(trace: Trace) -> dict[str, int]:
    """The three capacities, in the trace's own unit."""
    distinct = int(trace.tokens.sum()) if trace.unequal else trace.nodes
    return {name: max(1, round(share * distinct)) for name, share in SHARES.items()}


def policies() -> list[Policy]:
    """All built-in policies, the optima last."""
    found = [make(VARIANTS.get(name, name)) for name in names()]
    return sorted(found, key=lambda policy: policy.name in BOUNDS)


def measure(trace: Trace, timed: bool = True) -> Rows:
    """Replay every policy at the three capacities. Without ``timed``, hits alone."""
    hits: dict[tuple[str, str], tuple[int, float | None]] = {}
    lacking: dict[str, str] = {}
    for policy in policies():
        missing = policy.missing(trace)
        if missing:
            lacking[policy.label] = f"no `{missing[0]}`"
            continue
        for name, capacity in capacities(trace).items():
            seconds = []
            for _ in range(RUNS if timed else 1):
                started = time.perf_counter()
                result = replay(trace, policy, capacity)
                seconds.append(time.perf_counter() - started)
            found = result.hit_tokens if trace.unequal else result.hit_blocks
            least = 1e9 * min(seconds) / trace.references if timed else None
            hits[policy.label, name] = (found, least)
    total = int(trace.chain_tokens.sum()) if trace.unequal else trace.references
    rows: Rows = {}
    for policy in policies():
        label = policy.label
        rows[label] = {}
        for name in SHARES:
            if label in lacking:
                rows[label][name] = lacking[label]
                continue
            found, least = hits[label, name]
            lru, fit = hits["lru", name][0], hits["opt-fit", name][0]
            gap = (found - lru) / (fit - lru) if fit - lru > LEAST_GAP * total else None
            rows[label][name] = Cell(found / total, gap, least)
    return rows


def _cells(cell: Cell | str) -> list[str]:
    if isinstance(cell, str):
        return [cell, "–"]
    gap = "–" if cell.gap_closed is None else f"{100 * cell.gap_closed:.0f}%".replace("-", "−")
    return [f"{100 * cell.hit_ratio:.2f}%", gap]


def table(trace: Trace, rows: Rows) -> list[str]:
    """The table of one trace, as lines of Markdown."""
    unit = "tokens" if trace.unequal else "blocks"
    heads = [f"{name}: {size:,} {unit}" for name, size in capacities(trace).items()]
    lines = [
        "| policy | " + " | ".join(f"{head} | gap" for head in heads) + " | ns |",
        "| --- |" + " ---: | ---: |" * len(heads) + " ---: |",
    ]
    for label, cells in rows.items():
        shown = [text for name in SHARES for text in _cells(cells[name])]
        medium = cells["medium"]
        spent = None if isinstance(medium, str) else medium.nanoseconds
        lines.append(
            f"| {label} | {' | '.join(shown)} | {'–' if spent is None else f'{spent:.0f}'} |"
        )
    return lines


def _closed(found: dict[str, Rows], label: str) -> float | None:
    """The share of all gaps together that a policy closes, over the pairs that it ran on."""
    gained = whole = 0.0
    for rows in found.values():
        for name in SHARES:
            cell, lru, fit = (rows[each][name] for each in (label, "lru", "opt-fit"))
            if isinstance(cell, Cell) and isinstance(lru, Cell) and isinstance(fit, Cell):
                gained += cell.hit_ratio - lru.hit_ratio
                whole += fit.hit_ratio - lru.hit_ratio
    return gained / whole if whole else None


def lessons(found: dict[str, Rows]) -> Iterator[str]:
    """What the tables teach, every sentence computed from them."""
    labels = [label for label in next(iter(found.values())) if label not in BOUNDS]
    best: dict[str, int] = {}
    shown = 0
    for rows in found.values():
        for name in SHARES:
            ratios = {
                label: cell.hit_ratio
                for label in labels
                if isinstance(cell := rows[label][name], Cell)
            }
            top = max(ratios.values())
            shown += 1
            for label, ratio in ratios.items():
                if ratio == top:
                    best[label] = best.get(label, 0) + 1
    ranked = sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))
    verdict = "wins everywhere" if ranked[0][1] == shown and len(ranked) == 1 else None
    yield (
        (f"{ranked[0][0]} {verdict}. " if verdict else "No policy wins everywhere. ")
        + f"Of {shown} pairs of trace and capacity, the most hits are had by "
        + ", ".join(f"{label} in {count}" for label, count in ranked)
        + " (ties count for each)."
    )
    means = {label: closed for label in labels if (closed := _closed(found, label)) is not None}
    ahead = sorted((label for label in means if means[label] > 0), key=lambda each: -means[each])
    behind = [label for label in means if means[label] < 0]
    if ahead:
        yield (
            "All pairs together, these close some of the gap between LRU and opt-fit: "
            + ", ".join(f"{label} {100 * means[label]:.0f}%" for label in ahead)
            + "."
        )
    yield (
        f"{len(behind)} of {len(labels)} are worse than LRU, all pairs together: "
        + ", ".join(sorted(behind, key=lambda each: means[each]))
        + ". What wins in web caches, where an object is one thing, need not win where a hit is a "
        "prefix and the tail leaves first."
    )
    for name in SHARES:
        pairs = [
            (lru.hit_ratio, fit.hit_ratio)
            for rows in found.values()
            if isinstance(lru := rows["lru"][name], Cell)
            and isinstance(fit := rows["opt-fit"][name], Cell)
            and fit.hit_ratio > 0
        ]
        reached = statistics.mean(lru / fit for lru, fit in pairs)
        yield (
            f"At the {name} capacity LRU has {100 * reached:.0f}% of opt-fit's hits, on the mean "
            "of the traces."
        )


def render(found: dict[str, tuple[Trace, Rows]]) -> str:
    """The page."""
    lines = [
        "# Policies on real and generated traces",
        "",
        "Written by `python bench/policies_page.py`. Capacities are shares of a trace's distinct "
        "blocks: " + ", ".join(f"{name} {share:.0%}" for name, share in SHARES.items()) + ". The "
        "hit ratio is hit blocks over all block references (hit tokens over tokens where blocks "
        "are unequal), in a sequential replay from an empty cache, the partial tail counted. "
        "*gap* is the share of the distance from LRU to opt-fit that a policy closes; none is "
        "stated where opt-fit gains less than 0.1% of the references. *ns* is the "
        "time a block reference at the medium capacity, compiled, on the machine that wrote this "
        "page. `opt` and `opt-fit` know the future. Parameters are the defaults unless named.",
        "",
        "## What it teaches",
        "",
    ]
    lines += [
        f"- {lesson}" for lesson in lessons({name: rows for name, (_, rows) in found.items()})
    ]
    for name, (trace, rows) in found.items():
        lines += ["", f"## {name}", ""]
        lines.append(
            f"{len(trace):,} requests, {trace.references:,} block references, {trace.nodes:,} "
            f"distinct, digest `{trace.digest[:16]}`."
        )
        if trace.unequal:
            lines.append(
                "Blocks are unequal: opt-fit and opt are heuristics here, and can be beaten."
            )
        lines += ["", *table(trace, rows)]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure all traces and write the page."""
    found = {}
    for name, opened in TRACES.items():
        print(name, file=sys.stderr, flush=True)
        try:
            trace = opened()
        except InputMissingError as error:
            print(f"{error}: the page is not written", file=sys.stderr)
            return 1
        measure(trace, timed=False)  # compiled now
        found[name] = (trace, measure(trace))
    write_whole(PAGE, render(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
