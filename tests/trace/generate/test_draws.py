"""When sessions begin, what they draw, and how often: shares, popularity, arrivals, times."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from kvsched.trace.generate import (
    Bursts,
    Day,
    Poisson,
    Prompts,
    Spread,
    Stream,
    Tools,
    Turns,
    Workload,
    generate,
)
from kvsched.trace.model import Trace

CHAT = Stream(
    name="chat",
    turns=Turns(mean=4),
    prompts=Prompts(count=3, tokens=Spread(median=70, sigma=0.5, high=200)),
    first=Spread(median=60, sigma=1.0, low=1, high=500),
    text=Spread(median=20, sigma=1.0, low=1, high=500),
    output=Spread(median=40, sigma=1.0, low=0, high=500),
)
SMALL = Workload(name="small", requests=400, rate=2.0, block_size=16, streams=(CHAT,))


def test_zipf_makes_the_first_prompt_the_most_popular() -> None:
    prompts = Prompts(count=10, exponent=1.0, tokens=Spread(median=16))
    stream = msgspec.structs.replace(CHAT, prompts=prompts, turns=Turns(mean=1))
    trace = generate(msgspec.structs.replace(SMALL, requests=5000, streams=(stream,)), 2)
    roots = np.sort(np.bincount(trace.chains[trace.starts[:-1]]))[::-1][:10] / 5000
    harmonic = sum(1 / k for k in range(1, 11))
    assert roots == pytest.approx([1 / k / harmonic for k in range(1, 11)], abs=0.03)


def test_tools_come_faster_than_people() -> None:
    tools = Tools(share=0.9, time_s=Spread(median=1), tokens=Spread(median=300))
    stream = msgspec.structs.replace(CHAT, tools=tools, think_s=Spread(median=100))
    trace = generate(msgspec.structs.replace(SMALL, rate=0.001, streams=(stream,)), 4)
    assert trace.delay_s is not None
    delays = trace.delay_s[~np.isnan(trace.delay_s)]
    assert set(delays) == {1.0, 100.0}
    assert (delays == 1.0).mean() == pytest.approx(0.9, abs=0.05)


def test_streams_have_their_shares_types_and_priorities() -> None:
    other = msgspec.structs.replace(CHAT, name="other", share=0.25, priority=3, turns=Turns(mean=1))
    chat = msgspec.structs.replace(CHAT, share=0.75)
    workload = msgspec.structs.replace(SMALL, requests=8000, streams=(chat, other), warm_up_s=600.0)
    trace = generate(workload, 4)
    assert trace.type is not None
    assert trace.type.names == ("chat", "other")
    assert trace.type.codes.mean() == pytest.approx(0.25, abs=0.03)
    assert trace.priority is not None
    assert (trace.priority == trace.type.codes * 3).all()
    assert generate(SMALL, 4).priority is None


def windows(trace: Trace, length_s: float) -> np.ndarray:
    return np.bincount((trace.time_s // length_s).astype(int))[:-1]


def test_arrivals_have_the_spread_they_claim() -> None:
    single = msgspec.structs.replace(CHAT, turns=Turns(mean=1))

    def dispersion(arrivals: Poisson | Bursts) -> float:
        workload = msgspec.structs.replace(
            SMALL, requests=6000, streams=(single,), arrivals=arrivals
        )
        trace = generate(workload, 9)
        assert trace.duration_s == pytest.approx(3000, rel=0.25)
        counts = windows(trace, 10)
        return float(counts.var() / counts.mean())

    assert dispersion(Poisson()) == pytest.approx(1, abs=0.25)
    assert dispersion(Bursts(ratio=10, share=0.1, length_s=20)) > 4


def test_a_day_is_busiest_in_its_middle() -> None:
    single = msgspec.structs.replace(CHAT, turns=Turns(mean=1))
    workload = msgspec.structs.replace(
        SMALL, requests=20_000, rate=20_000 / 86_400, streams=(single,), arrivals=Day(amplitude=0.8)
    )
    hours = windows(generate(workload, 9), 3600)[:24]
    middle = np.arange(len(hours)) + 0.5
    expected = 20_000 / 24 * (1 - 0.8 * np.cos(2 * np.pi * middle / 24))
    assert hours == pytest.approx(expected, abs=5 * np.sqrt(expected.max()))


def test_times_lie_on_the_grid() -> None:
    times = generate(msgspec.structs.replace(SMALL, time_grid_s=3.0), 4).time_s
    assert (times % 3 == 0).all()
    fine = generate(SMALL, 4).time_s
    assert (np.rint(fine * 1000) / 1000 == fine).all()
