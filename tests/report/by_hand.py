"""A study's result made by hand, for the report's tests: no replay, no trace, no catalogue."""

from __future__ import annotations

import math

from kvsched.study.result import (
    Anatomy,
    AnatomyRow,
    CapacitySummary,
    Ceiling,
    Curve,
    Histogram,
    Knee,
    PolicyRow,
    Prefix,
    Recommendation,
    Returned,
    Reuse,
    SeenOnce,
    StudyResult,
    Target,
    TraceSummary,
)
from kvsched.study.worth import Worth

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "{{7*7}}{% raw %}",
    "%{x} %{customdata} %{y:.1%}",
    "<b>bold</b><br><a href='javascript:alert(4)'>go</a>",
    "&lt;i&gt;&amp;&#60;u&#62;",
    "\u202egnp.exe\u202c \u2066abc\u2069 \u200bzero",
    "line\nbreak\ttab\x00nul\x1b[31mred",
    "[bold red]markup[/] [link=http://example.org]x[/link]",
    "x" * 10_000,
    "\u2028\u2029 separators",
    "東京 🚀 é",
)
BLOCK_BYTES = 2_097_152
PROMPT = 16_621_188
SLOPES = {"lru": 1.0, "fifo": 0.92, "lfu": 0.97, "decay": 1.06, "opt-fit": 1.9, "opt": 1.95}
CAPACITY = 28_019
CEILING = 8_774_256


def _hits(policy: str, blocks: int) -> int:
    """A curve that rises to the ceiling as real ones do."""
    return round(CEILING * min(1.0, (1 - math.exp(-blocks / 60_000)) * SLOPES[policy]))


def _gib(blocks: int, hardware: bool) -> float | None:
    return blocks * BLOCK_BYTES / 2**30 if hardware else None


def _curves() -> tuple[Curve, ...]:
    found = []
    for policy in SLOPES:
        count = 60 if policy == "lru" else 12
        blocks = sorted({CAPACITY} | {round(10 ** (5.7 * i / count)) for i in range(count + 1)})
        hits = [_hits(policy, each) for each in blocks]
        found.append(
            Curve(
                policy=policy,
                exact_everywhere=policy == "lru",
                capacity_blocks=tuple(blocks),
                hit_blocks=tuple(each // 16 for each in hits),
                hit_tokens=tuple(hits),
                evictions=tuple(max(0, 900_000 - each // 16) for each in hits),
            )
        )
    return tuple(found)


def _rows(hardware: bool) -> tuple[PolicyRow, ...]:
    lru, fit = _hits("lru", CAPACITY), _hits("opt-fit", CAPACITY)
    return tuple(
        PolicyRow(
            policy=policy,
            looks_ahead=policy.startswith("opt"),
            hit_blocks=_hits(policy, CAPACITY) // 16,
            hit_tokens=_hits(policy, CAPACITY),
            block_share=_hits(policy, CAPACITY) / PROMPT,
            token_share=_hits(policy, CAPACITY) / PROMPT,
            gap_closed=(_hits(policy, CAPACITY) - lru) / (fit - lru),
            evictions=735_375,
            prefill_seconds_saved=65.2 if hardware else None,
        )
        for policy in SLOPES
    )


def _anatomy_row(label: str, tokens: int, hit: float) -> AnatomyRow:
    hits, regret, capacity = int(tokens * hit), int(tokens * 0.2), int(tokens * 0.05)
    tail = tokens // 200
    return AnatomyRow(
        label=label,
        requests=max(1, tokens // 1100),
        tokens=tokens,
        hit=hits,
        compulsory=tokens - hits - regret - capacity - tail,
        tail=tail,
        capacity=capacity,
        regret=regret,
        luck=tokens // 1000,
    )


def _groups(names: tuple[str, ...]) -> dict[str, tuple[AnatomyRow, ...]]:
    depths = ("block 1", "block 2", "blocks 3–4", "blocks 5–8", "blocks 9–16", "blocks 17–32")
    return {
        "session": tuple(_anatomy_row(n, 90_000 - 70 * i, 0.3) for i, n in enumerate(names)),
        "tenant": tuple(_anatomy_row(n, 4_000_000, 0.25) for n in names[:3]),
        "depth": tuple(_anatomy_row(n, 2_000_000, 0.6 - i / 10) for i, n in enumerate(depths)),
        "window": tuple(
            _anatomy_row(f"{5 * i}–{5 * i + 5} min", 1_400_000, 0.1 + i / 60) for i in range(12)
        ),
    }


def _hottest(names: tuple[str, ...]) -> tuple[Prefix, ...]:
    return tuple(
        Prefix(
            key=name if i % 2 else str(430 + i),
            label=name,
            blocks=40 - i,
            tokens=16 * (40 - i),
            requests=523 - 9 * i,
            hits=520 - 20 * i,
            last_use_s=3270.0 - i,
        )
        for i, name in enumerate(names)
    )


def _targets(hardware: bool) -> tuple[Target, ...]:
    return tuple(
        Target(
            policy=policy,
            share=share,
            blocks=None if policy == "fifo" and share > 0.9 else round(60_000 * 2 * share),
            gib=None
            if policy == "fifo" and share > 0.9
            else _gib(round(120_000 * share), hardware),
            exact=policy == "lru",
        )
        for policy in SLOPES
        for share in (0.5, 0.8, 0.9, 0.95)
    )


def _worth() -> Worth:
    return Worth(
        requests=15_000,
        input_tokens=PROMPT,
        hit_tokens=_hits("lru", CAPACITY),
        output_tokens=3_000_000,
        model="meta-llama/Llama-3.1-8B",
        accelerator="H100-SXM",
        prefill_flops=2.41e17,
        prefill_flops_saved=6.46e16,
        decode_flops=4.97e16,
        prefill_seconds=243.0,
        prefill_seconds_saved=65.2,
        decode_seconds=384.0,
        decode_share=0.61,
        flops_gain_bound=1.29,
        gain_bound=1.12,
        ceiling_gain_bound=1.26,
        assumptions=("FLOPs are two for each parameter of a matrix that a token meets.",),
        warnings=("A higher hit rate can raise throughput by at most 8.0% more.",),
    )


def _trace(names: tuple[str, ...]) -> TraceSummary:
    return TraceSummary(
        source=names[0],
        format="mooncake",
        digest="6643c59cb5d48b87855536282c76b2dc87abf3a9019e2bd8d6024b13eb4da463",
        time_unit="ms",
        notes=(f"3 rows of {names[1]} were out of order and are sorted",),
        settings={"session_arrivals": "zero"},
        block_size=16,
        requests=15_000,
        duration_s=3276.0,
        blocks=1_030_000,
        distinct_blocks=497_446,
        prompt_tokens=PROMPT,
        chain_tokens=PROMPT,
        output_tokens=3_000_000,
        mean_input_tokens=1108.1,
        mean_output_tokens=200.0,
        longest_chain_blocks=1020,
        sessions=10_155,
        tenants=3,
    )


def make_result(*, hostile: bool = False, hardware: bool = True) -> StudyResult:
    """A realistic result; ``hostile`` names from the trace, or no ``hardware``: blocks alone."""
    names = HOSTILE if hostile else tuple(f"session-{i}" for i in range(1, 14))
    rows = _rows(hardware)
    worth = _worth() if hardware else None
    return StudyResult(
        kvsched="0.1.0",
        config={"policy": "lru", "capacity_blocks": CAPACITY},
        command=f"kvsched study '{names[0]}' --model llama-3.1-8b --gpu h100",
        experiment={},
        definitions={"hit": "the longest resident prefix", "opt-fit": "the best that a pool can"},
        optimum_is_exact=True,
        trace=_trace(names),
        capacity=CapacitySummary(
            blocks=CAPACITY,
            unit="blocks",
            tokens=16 * CAPACITY,
            gib=_gib(CAPACITY, hardware),
            bytes_per_block=BLOCK_BYTES if hardware else None,
            model="meta-llama/Llama-3.1-8B" if hardware else None,
            gpu="H100-SXM" if hardware else None,
            derivation=("H100-SXM: 79.65 GiB.", "The 54.73 GiB left hold 28019 blocks."),
        ),
        ceiling=Ceiling(
            hit_blocks=CEILING // 16,
            hit_tokens=CEILING,
            block_share=CEILING / PROMPT,
            token_share=CEILING / PROMPT,
        ),
        policy="lru",
        curves=_curves(),
        targets=_targets(hardware),
        knees=tuple(
            Knee(policy=p, blocks=99_000, gib=_gib(99_000, hardware), token_share=0.4)
            for p in SLOPES
        ),
        policies=rows,
        anatomy=Anatomy(
            policy="lru",
            overall=_anatomy_row("all", PROMPT, 0.272),
            bypass=14_000,
            by=_groups(names),
        ),
        reuse=Reuse(
            blocks=Histogram(edges=(0, 1, 10, 60, 600, 4000), counts=(300, 4000, 9000, 21_000, 50)),
            median_s=98.9,
            p90_s=792.0,
            p99_s=2000.0,
        ),
        hottest=_hottest(names),
        seen_once=SeenOnce(blocks=344_424, share=0.692, tokens=5_400_000),
        returned=Returned(blocks=265_948, share=0.362, tokens=4_260_000),
        worth=worth,
        recommendation=Recommendation(
            policy="decay",
            capacity_blocks=CAPACITY,
            sentences=(
                "Replace lru by decay at 28,019 blocks (54.7 GiB).",
                "It hits 28.5% of the prompt tokens; the best at this capacity is 47.6%.",
                "Uncertain: requests are replayed one after another.",
            ),
        ),
        warnings=() if worth is None else worth.warnings,
    )


def empty_result() -> StudyResult:
    """A result of a trace where nothing is used twice: no hits, no gap, no groups."""
    import msgspec

    base = make_result(hardware=False)
    row = AnatomyRow(
        label="all",
        requests=1,
        tokens=16,
        hit=0,
        compulsory=16,
        tail=0,
        capacity=0,
        regret=0,
        luck=0,
    )
    return msgspec.structs.replace(
        base,
        ceiling=Ceiling(hit_blocks=0, hit_tokens=0, block_share=0.0, token_share=0.0),
        curves=tuple(
            Curve(
                policy=policy,
                exact_everywhere=policy == "lru",
                capacity_blocks=(1,),
                hit_blocks=(0,),
                hit_tokens=(0,),
                evictions=(0,),
            )
            for policy in SLOPES
        ),
        policies=tuple(
            msgspec.structs.replace(each, hit_tokens=0, token_share=0.0, gap_closed=None)
            for each in base.policies
        ),
        targets=tuple(msgspec.structs.replace(t, blocks=None, gib=None) for t in base.targets),
        knees=tuple(
            msgspec.structs.replace(k, blocks=None, gib=None, token_share=None) for k in base.knees
        ),
        anatomy=Anatomy(policy="lru", overall=row, bypass=0, by={}),
        reuse=Reuse(
            blocks=Histogram(edges=(0, 1), counts=(0,)), median_s=None, p90_s=None, p99_s=None
        ),
        hottest=(),
    )
