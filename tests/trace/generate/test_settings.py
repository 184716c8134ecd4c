"""Wrong settings: one line that names the setting and what it may be."""

from __future__ import annotations

import msgspec
import pytest

from kvsched.foundation.errors import UsageError
from kvsched.trace.generate import Bursts, Stream, Workload, generate, preset

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("requests", 0, "requests must be from 1 to 100000000, not 0"),
        ("requests", -5, "requests must be from 1 to 100000000, not -5"),
        ("rate", 0, "rate must be from 1e-06 to 1000000, not 0"),
        ("rate", NAN, "rate must be from 1e-06 to 1000000, not nan"),
        ("rate", INF, "rate must be from 1e-06 to 1000000, not inf"),
        ("block_size", 0, "block_size must be from 1 to 1000000, not 0"),
        ("tenants", 0, "tenants must be from 1 to 1000000, not 0"),
        ("warm_up_s", -1, "warm_up_s must be from 0 to 1000000000, not -1"),
        ("answer_tokens_per_s", 0, "answer_tokens_per_s must be from 1e-06 to 1000000000, not 0"),
        ("chat.share", 1.5, "chat.share must be from 0 to 1, not 1.5"),
        ("chat.turns.mean", 0.5, "chat.turns.mean must be from 1 to 1000000, not 0.5"),
        ("chat.first.sigma", NAN, "chat.first.sigma must be from 0 to 6, not nan"),
        ("chat.prompts.count", 0, "chat.prompts.count must be from 1 to 10000000, not 0"),
        (
            "chat.first.low",
            9000,
            "chat.first.low must be from 0 to chat.first.high (8000), not 9000",
        ),
        (
            "context_limit",
            1500,
            "context_limit must be above 2000, the longest preamble, system prompt and documents "
            "of stream chat, not 1500",
        ),
        (
            "tenants",
            10**6,
            "chat.prompts.count must be from 1 to 10 with 1000000 tenants, not 40",
        ),
        ("requests", "many", "requests: Expected `int`, got `str`"),
        ("on_limit", "explode", "on_limit: Invalid enum value 'explode'"),
        ("arrivals", "tides", "arrivals must be poisson, bursts, day, not 'tides'"),
        ("duration_s", 0, "duration_s must be above 0 and at most 1000000000, not 0"),
        ("duration_s", NAN, "duration_s must be above 0 and at most 1000000000, not nan"),
        ("duration_s", "long", "duration_s must be a number, not 'long'"),
    ],
)
def test_the_message_names_the_setting_and_its_range(
    path: str, value: object, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        preset("chat", **{path: value})
    assert str(caught.value) == message


@pytest.mark.parametrize("path", ["colour", "chat", "chat.colour.deep", "nobody.text", "", "."])
def test_an_unknown_setting_lists_the_known_ones(path: str) -> None:
    with pytest.raises(UsageError, match=r"^no setting .*; settings are answer_tokens_per_s, "):
        preset("chat", **{path: 1})


def test_an_unknown_field_of_a_stream_is_named() -> None:
    with pytest.raises(UsageError, match="colour"):
        preset("chat", **{"chat.colour": 1})


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        preset("chatty")
    assert str(caught.value) == (
        "no preset 'chatty'; presets are chat, day, mooncake-conversation, mooncake-toolagent, "
        "weka-coding-agents, rag"
    )


def changed(**fields: object) -> Workload:
    return msgspec.structs.replace(preset("chat"), **fields)


def test_a_workload_built_by_hand_is_checked_as_well() -> None:
    with pytest.raises(UsageError, match=r"^requests must be from 1"):
        generate(changed(requests=0), 1)
    with pytest.raises(UsageError, match=r"^requests: Expected `int`, got `float`"):
        generate(changed(requests=1.5), 1)
    with pytest.raises(UsageError, match=r"^arrivals.ratio must be from 1 to 10000, not 0.1"):
        generate(changed(arrivals=Bursts(ratio=0.1)), 1)


def test_streams_must_be_there_and_differ() -> None:
    chat: Stream = preset("chat").streams[0]
    with pytest.raises(UsageError, match=r"^streams must have at least one"):
        generate(changed(streams=()), 1)
    with pytest.raises(UsageError, match=r"^streams: names must differ"):
        generate(changed(streams=(chat, chat)), 1)
    with pytest.raises(UsageError, match=r"^streams: the shares"):
        generate(changed(streams=(msgspec.structs.replace(chat, share=0),)), 1)


def test_too_much_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(UsageError, match=r"^requests, block_size: .* at most 2147483647"):
        generate(preset("weka-coding-agents", block_size=1, requests=40_000), 1)
    with pytest.raises(UsageError, match=r"^requests, rate, warm_up_s: "):
        generate(preset("chat", warm_up_s=1e9), 1)


def test_overrides_take_text_and_paths() -> None:
    workload = preset(
        "chat",
        requests="300",
        rate="2.5",
        arrivals="bursts",
        block_size="64",
        **{"chat.think_s.median": "9.5", "arrivals.ratio": 3},
    )
    assert (workload.requests, workload.rate, workload.block_size) == (300, 2.5, 64)
    assert workload.arrivals == Bursts(ratio=3)
    assert workload.streams[0].think_s.median == 9.5
    assert workload.streams[1:] == preset("chat").streams[1:]


def test_a_duration_scales_the_requests_or_sets_the_rate() -> None:
    chat = preset("chat")
    longer = preset("chat", duration_s=7200)
    assert (longer.requests, longer.rate) == (round(chat.rate * 7200), chat.rate)
    assert preset("chat", duration_s=100, requests=500).rate == 5
    assert preset("chat", duration_s=100, rate=3).requests == 300
    with pytest.raises(UsageError, match="at most two of them"):
        preset("chat", duration_s=100, rate=3, requests=5)
