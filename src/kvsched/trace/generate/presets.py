"""Workloads by name, each modelled on traffic that was published or measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsched.foundation.errors import UsageError
from kvsched.trace.generate.settings import changed, check
from kvsched.trace.generate.workload import (
    Day,
    Documents,
    Prompts,
    Spread,
    Stream,
    Tools,
    Turns,
    Workload,
)

PRESETS: dict[str, str] = {
    "chat": (
        "Production chat in 16-token blocks: lengths like Azure's conversation trace of 2023 "
        "(mean prompt 1,155, answer 211 tokens; Azure public data set), reuse as reported in "
        "'KVCache Cache in the Wild' (ATC'25): just over half of the blocks at best, skewed to "
        "few of them, four fifths of it within ten minutes, single-turn requests included"
    ),
    "day": "The sessions of `chat`, whole ones from eight tenants, over one day, busiest at noon",
    "mooncake-conversation": (
        "Kimi's chat as in Mooncake's conversation trace (FAST'25): 512-token blocks, an hour, "
        "3 s clock, mean prompt 12,035 and answer 343 tokens, at best 36.6% of blocks reused"
    ),
    "mooncake-toolagent": (
        "Kimi's tools and agents as in Mooncake's tool-and-agent trace (FAST'25): 512-token "
        "blocks, mean prompt 8,596 and answer 182 tokens, at best 59% of blocks reused, long "
        "shared system prompts"
    ),
    "weka-coding-agents": (
        "Coding agents as in 52 sessions of Weka's kv-cache-tester: 64-token blocks, about 60 "
        "requests a session, mean prompt 94,747 and answer 411 tokens, at best 96.2% of blocks "
        "reused, half of it within 17 s"
    ),
    "rag": (
        "Questions over retrieved passages as in RAGPulse: mean prompt 2,944 and answer 283 "
        "tokens, six passages of 266 tokens behind a system prompt, drawn anew each turn, two "
        "requests a session"
    ),
}


def preset(name: str, **overrides: Any) -> Workload:
    """Return the workload called ``name`` (see `PRESETS`), settings replaced by ``overrides``.

    Overrides are fields of `Workload`, ``duration_s``, and, as ``**{"chat.text.median": 80}``,
    paths below a stream. Raises UsageError: unknown name, unknown setting, value out of range.
    """
    if name not in _MAKERS:
        raise UsageError(f"no preset {name!r}; presets are {', '.join(_MAKERS)}")
    workload = changed(_MAKERS[name](), overrides)
    check(workload)
    return workload


def _chat_streams() -> tuple[Stream, ...]:
    output = Spread(median=160, sigma=0.8, low=1, high=1000)
    return (
        Stream(
            name="chat",
            share=0.63,
            turns=Turns(mean=4.8, shape="lognormal", sigma=0.8, most=60),
            prompts=Prompts(
                count=40,
                exponent=1.1,
                tokens=Spread(median=240, sigma=0.7, low=30, high=2000),
            ),
            first=Spread(median=160, sigma=1.3, low=4, high=8000),
            text=Spread(median=60, sigma=1.2, low=2, high=4000),
            output=output,
            think_s=Spread(median=400, sigma=1.7, low=2, high=7200),
        ),
        Stream(
            name="api",
            share=0.23,
            prompts=Prompts(
                count=200,
                exponent=1.1,
                tokens=Spread(median=450, sigma=0.7, low=50, high=4000),
            ),
            first=Spread(median=180, sigma=1.1, low=4, high=8000),
            text=Spread(median=1, low=1),
            output=Spread(median=140, sigma=0.85, low=1, high=1000),
        ),
        Stream(
            name="single",
            share=0.14,
            first=Spread(median=600, sigma=0.9, low=8, high=12000),
            text=Spread(median=1, low=1),
            output=output,
        ),
    )


def _chat() -> Workload:
    return Workload(
        name="chat",
        requests=15_000,
        rate=5.5,
        block_size=16,
        tenants=4,
        tenant_exponent=1.0,
        context_limit=16_384,
        warm_up_s=3600,
        streams=_chat_streams(),
    )


def _day() -> Workload:
    return Workload(
        name="day",
        requests=19_200,
        rate=20_000 / 86_400,
        arrivals=Day(amplitude=0.8),
        block_size=16,
        tenants=8,
        context_limit=16_384,
        streams=_chat_streams(),
    )


def _mooncake_conversation() -> Workload:
    prompts = Prompts(count=1, tokens=Spread(median=0, high=0))
    output = Spread(median=297, sigma=0.55, low=1, high=2000)
    first = Spread(median=4900, sigma=1.16, low=20, high=120_000)
    return Workload(
        name="mooncake-conversation",
        requests=12_031,
        rate=12_031 / 3_537,
        block_size=512,
        preamble_tokens=880,
        context_limit=126_195,
        time_grid_s=3,
        warm_up_s=3600,
        streams=(
            Stream(
                name="chat",
                share=0.54,
                turns=Turns(mean=2.5, shape="lognormal", sigma=1.0, most=60),
                prompts=prompts,
                first=first,
                text=Spread(median=30, sigma=2.8, low=1, high=60_000),
                output=output,
                think_s=Spread(median=140, sigma=1.15, low=15, high=3600),
            ),
            Stream(
                name="single",
                share=0.46,
                prompts=prompts,
                first=first,
                text=Spread(median=1, low=1),
                output=output,
            ),
        ),
    )


def _mooncake_toolagent() -> Workload:
    return Workload(
        name="mooncake-toolagent",
        requests=23_608,
        rate=23_608 / 3_600,
        block_size=512,
        context_limit=126_195,
        time_grid_s=3,
        warm_up_s=1800,
        streams=(
            Stream(
                name="tool",
                share=0.57,
                prompts=Prompts(
                    count=30,
                    exponent=1.0,
                    tokens=Spread(median=3900, sigma=0.5, low=600, high=20_000),
                ),
                first=Spread(median=500, sigma=1.0, low=10, high=20_000),
                text=Spread(median=1, low=1),
                output=Spread(median=54, sigma=1.15, low=1, high=2000),
            ),
            Stream(
                name="agent",
                share=0.25,
                turns=Turns(mean=5, shape="lognormal", sigma=0.8, most=60),
                prompts=Prompts(
                    count=10, tokens=Spread(median=2000, sigma=0.6, low=100, high=10_000)
                ),
                tools=Tools(
                    share=0.7,
                    time_s=Spread(median=4, sigma=1.0, low=0.2, high=120),
                    tokens=Spread(median=500, sigma=1.2, low=5, high=20_000),
                ),
                first=Spread(median=3000, sigma=1.2, low=20, high=100_000),
                text=Spread(median=60, sigma=1.5, low=2, high=20_000),
                output=Spread(median=200, sigma=0.8, low=1, high=2000),
            ),
            Stream(
                name="single",
                share=0.18,
                first=Spread(median=6900, sigma=1.1, low=20, high=120_000),
                text=Spread(median=1, low=1),
                output=Spread(median=220, sigma=0.8, low=1, high=2000),
            ),
        ),
    )


def _weka_coding_agents() -> Workload:
    return Workload(
        name="weka-coding-agents",
        requests=3_110,
        rate=0.3,
        block_size=64,
        context_limit=180_000,
        on_limit="truncate",
        streams=(
            Stream(
                name="agent",
                turns=Turns(mean=60, shape="lognormal", sigma=0.75, most=400),
                tools=Tools(
                    share=0.85,
                    time_s=Spread(median=7, sigma=0.7, low=2, high=600),
                    tokens=Spread(median=380, sigma=1.6, low=1, high=40_000),
                ),
                first=Spread(median=39_000, sigma=0.85, low=15_000, high=175_000),
                text=Spread(median=150, sigma=1.8, low=2, high=40_000),
                output=Spread(median=235, sigma=1.03, low=50, high=13_000),
                think_s=Spread(median=110, sigma=1.5, low=4, high=27_000),
            ),
        ),
    )


def _rag() -> Workload:
    return Workload(
        name="rag",
        requests=7_106,
        rate=7_106 / 604_603,
        arrivals=Day(amplitude=0.8),
        block_size=16,
        context_limit=8_192,
        streams=(
            Stream(
                name="rag",
                turns=Turns(mean=1.78, most=12),
                prompts=Prompts(
                    count=3, exponent=2.0, tokens=Spread(median=1400, sigma=0.05, high=1500)
                ),
                documents=Documents(
                    count=3_235,
                    exponent=0.7,
                    tokens=Spread(median=272, sigma=0.3, low=64, high=512),
                    each=6,
                    every="turn",
                    share=0.78,
                ),
                first=Spread(median=17, sigma=0.6, low=2, high=200),
                text=Spread(median=6, sigma=0.6, low=2, high=200),
                output=Spread(median=215, sigma=0.75, low=5, high=2200),
                think_s=Spread(median=34, sigma=1.2, low=5, high=30_000),
            ),
        ),
    )


_MAKERS: dict[str, Callable[[], Workload]] = {
    "chat": _chat,
    "day": _day,
    "mooncake-conversation": _mooncake_conversation,
    "mooncake-toolagent": _mooncake_toolagent,
    "weka-coding-agents": _weka_coding_agents,
    "rag": _rag,
}
