"""What holds for every generated trace."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kvsched.foundation.errors import UsageError
from kvsched.trace.generate import (
    PRESETS,
    Bursts,
    Day,
    Documents,
    Poisson,
    Prompts,
    Spread,
    Stream,
    Tools,
    Turns,
    Workload,
    generate,
    preset,
)
from kvsched.trace.model import Trace


def check_trace(trace: Trace, workload: Workload) -> None:
    """Every invariant, by plain means."""
    assert len(trace) == workload.requests
    assert trace.block_size == workload.block_size
    assert trace.time_s[0] == 0
    assert (np.diff(trace.time_s) >= 0).all()
    assert trace.starts[0] == 0
    assert trace.starts[-1] == trace.references
    assert (trace.chain_blocks >= 1).all()
    assert trace.input_tokens.max() <= workload.context_limit
    assert trace.input_tokens.min() >= 1
    assert trace.output_tokens.min() >= 0

    node = np.arange(trace.nodes)
    assert (trace.parent < node).all()
    roots = trace.parent < 0
    assert (trace.parent[roots] == -1).all()
    assert (trace.depth[roots] == 0).all()
    assert (trace.depth[~roots] == trace.depth[trace.parent[~roots]] + 1).all()
    assert trace.tokens.min() >= 1
    assert trace.tokens.max() <= workload.block_size
    # A partial block ends a prompt, so nothing stands on it.
    assert (trace.tokens[trace.parent[~roots]] == workload.block_size).all()

    first = trace.starts[:-1]
    expected = np.empty_like(trace.chains)
    expected[1:] = trace.chains[:-1]
    expected[first] = -1
    assert (trace.parent[trace.chains] == expected).all()
    covered = np.add.reduceat(trace.tokens[trace.chains].astype(np.int64), first)
    assert (covered == trace.input_tokens).all()
    # Numbered by first appearance: each new number is one above all before it.
    highest = np.maximum.accumulate(trace.chains)
    assert highest[0] == 0
    assert set(np.diff(highest)) <= {0, 1}
    assert highest[-1] == trace.nodes - 1
    check_sessions(trace)


def check_sessions(trace: Trace) -> None:
    assert trace.session is not None
    assert trace.turn is not None
    assert trace.delay_s is not None
    assert trace.tenant is not None
    assert trace.type is not None
    for labels in (trace.session, trace.tenant, trace.type):
        assert labels.codes.min() >= 0
        assert labels.codes.max() < len(labels.names)
        assert len(set(labels.names)) == len(labels.names)
    order = np.lexsort((np.arange(len(trace)), trace.session.codes))
    same = np.diff(trace.session.codes[order]) == 0
    assert (np.diff(trace.turn[order])[same] == 1).all()
    assert (np.diff(trace.tenant.codes[order])[same] == 0).all()
    assert (np.isnan(trace.delay_s) == (trace.turn == 1)).all()


def chains_of(trace: Trace) -> list[list[int]]:
    return [trace.chains[trace.starts[r] : trace.starts[r + 1]].tolist() for r in range(len(trace))]


def expected_reuse(trace: Trace) -> list[int]:
    """Blocks shared with the session's earlier request, or -1 at its first here."""
    last: dict[int, int] = {}
    found = []
    chains = chains_of(trace)
    assert trace.session is not None
    for r, code in enumerate(trace.session.codes.tolist()):
        shared = -1
        if code in last:
            shared = 0
            for a, b in zip(chains[last[code]], chains[r], strict=False):
                if a != b:
                    break
                shared += 1
        found.append(shared)
        last[code] = r
    return found


CHAT = Stream(
    name="chat",
    turns=Turns(mean=4),
    prompts=Prompts(count=3, tokens=Spread(median=70, sigma=0.5, high=200)),
    first=Spread(median=60, sigma=1.0, low=1, high=500),
    text=Spread(median=20, sigma=1.0, low=1, high=500),
    output=Spread(median=40, sigma=1.0, low=0, high=500),
)
SMALL = Workload(name="small", requests=400, rate=2.0, block_size=16, streams=(CHAT,))


def test_the_same_seed_gives_the_same_bytes() -> None:
    once, again = generate(SMALL, 7), generate(SMALL, 7)
    assert once.digest == again.digest
    assert once.origin == again.origin


def test_another_seed_gives_another_trace() -> None:
    assert len({generate(SMALL, seed).digest for seed in (0, 1, 2**64 - 1)}) == 3


def test_every_setting_is_part_of_the_origin() -> None:
    origin = generate(SMALL, 7).origin
    assert origin.format == "generated"
    assert origin.source == "small"
    settings = dict(origin.settings)
    assert settings.pop("seed") == 7
    assert msgspec.convert(settings, Workload) == SMALL


def test_a_preset_from_its_origin_gives_the_same_trace() -> None:
    trace = generate(preset("rag", requests=200), 3)
    settings = {name: value for name, value in trace.origin.settings.items() if name != "seed"}
    assert generate(msgspec.convert(settings, Workload), 3).digest == trace.digest


@pytest.mark.parametrize("name", PRESETS)
def test_invariants_of_presets(name: str) -> None:
    workload = preset(name, requests=1500)
    check_trace(generate(workload, 11), workload)


@pytest.mark.parametrize("name", PRESETS)
def test_plain_source_gives_the_compiled_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = preset(name, requests=60, warm_up_s=0, block_size=512)
    compiled = generate(workload, 5).digest
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    assert generate(workload, 5).digest == compiled


def test_the_next_turn_extends_the_full_blocks_of_the_turn_before() -> None:
    trace = generate(SMALL, 1)
    assert trace.session is not None
    last: dict[int, int] = {}
    continued = 0
    for r, shared in enumerate(expected_reuse(trace)):
        code = int(trace.session.codes[r])
        if shared >= 0:
            before = last[code]
            assert shared == trace.input_tokens[before] // 16
            grown = trace.input_tokens[r] - trace.input_tokens[before]
            assert grown >= trace.output_tokens[before] + 1
            continued += 1
        last[code] = r
    assert continued > 200


def test_a_turn_comes_after_the_answer_and_the_think_time() -> None:
    trace = generate(SMALL, 1)
    assert trace.session is not None
    assert trace.delay_s is not None
    last: dict[int, int] = {}
    for r, code in enumerate(trace.session.codes.tolist()):
        if code in last:
            before = last[code]
            waited = trace.output_tokens[before] / SMALL.answer_tokens_per_s + trace.delay_s[r]
            assert trace.time_s[r] - trace.time_s[before] == pytest.approx(waited, abs=0.002)
        last[code] = r


def test_one_system_prompt_is_shared_and_nothing_else_between_sessions() -> None:
    prompts = Prompts(count=1, tokens=Spread(median=100, low=100, high=100))
    stream = msgspec.structs.replace(CHAT, prompts=prompts, turns=Turns(mean=1))
    trace = generate(msgspec.structs.replace(SMALL, streams=(stream,)), 2)
    users = np.bincount(trace.chains, minlength=trace.nodes)
    assert (users[:6] == len(trace)).all()  # 100 tokens are six full blocks of 16
    assert (users[6:] == 1).all()


def test_nothing_is_reused_without_prompts_and_turns() -> None:
    stream = msgspec.structs.replace(CHAT, prompts=None, turns=Turns(mean=1))
    trace = generate(msgspec.structs.replace(SMALL, streams=(stream,), preamble_tokens=64), 2)
    assert trace.nodes == trace.references


def test_tenants_have_prompts_of_their_own_and_share_the_preamble() -> None:
    prompts = Prompts(count=1, tokens=Spread(median=64))
    stream = msgspec.structs.replace(CHAT, prompts=prompts)
    workload = msgspec.structs.replace(SMALL, streams=(stream,), tenants=5, preamble_tokens=32)
    trace = generate(workload, 2)
    check_trace(trace, workload)
    chains = chains_of(trace)
    assert trace.tenant is not None
    assert len({tuple(chain[:2]) for chain in chains}) == 1
    by_tenant = {
        (code, tuple(chain[2:6]))
        for code, chain in zip(trace.tenant.codes.tolist(), chains, strict=True)
    }
    assert len(by_tenant) == len({nodes for _, nodes in by_tenant}) == len(trace.tenant.names) == 5


def test_documents_drawn_anew_break_the_chain_before_the_conversation() -> None:
    documents = Documents(count=500, tokens=Spread(median=32), each=2, every="turn")
    prompts = Prompts(count=1, tokens=Spread(median=32))
    stream = msgspec.structs.replace(CHAT, prompts=prompts, documents=documents)
    workload = msgspec.structs.replace(SMALL, streams=(stream,))
    trace = generate(workload, 4)
    check_trace(trace, workload)
    later = [shared for shared in expected_reuse(trace) if shared >= 0]
    assert min(later) == 2
    assert np.mean(later) < 3
    once = msgspec.structs.replace(documents, every="session")
    stream = msgspec.structs.replace(stream, documents=once)
    kept = expected_reuse(generate(msgspec.structs.replace(workload, streams=(stream,)), 4))
    assert min(shared for shared in kept if shared >= 0) >= 6


def test_documents_shared_by_sessions_are_the_same_nodes() -> None:
    documents = Documents(count=3, tokens=Spread(median=32), each=2)
    stream = msgspec.structs.replace(CHAT, documents=documents, prompts=None, turns=Turns(mean=1))
    trace = generate(msgspec.structs.replace(SMALL, streams=(stream,)), 4)
    heads = {tuple(chain[:4]) for chain in chains_of(trace)}
    assert len(heads) == 9
    assert len({head[:2] for head in heads}) == 3


@pytest.mark.parametrize("on_limit", ["truncate", "restart", "end"])
def test_the_context_limit(on_limit: str) -> None:
    stream = msgspec.structs.replace(CHAT, turns=Turns(mean=40))
    workload = msgspec.structs.replace(
        SMALL, rate=0.02, streams=(stream,), context_limit=1000, on_limit=on_limit
    )
    trace = generate(workload, 4)
    check_trace(trace, workload)
    shrunk = [
        r for r, shared in enumerate(expected_reuse(trace)) if shared >= 0 and shared <= 200 // 16
    ]
    assert trace.turn is not None
    if on_limit == "end":
        assert trace.turn.max() < 40
    else:
        assert trace.turn.max() > 40
        assert shrunk
        middle = np.median(trace.input_tokens[shrunk])
        assert middle < 400 if on_limit == "restart" else middle > 400


@pytest.mark.parametrize(
    ("on_limit", "lengths"),
    [
        # 30 stand before, every turn adds 10, every answer 10: at most 100 fit.
        ("restart", [40, 60, 80, 100, 40, 60, 80, 100, 40]),
        ("truncate", [40, 60, 80, 100, 70, 90, 70, 90, 70]),
        ("end", [40, 60, 80, 100]),
    ],
)
def test_prompt_lengths_to_the_token(on_limit: str, lengths: list[int]) -> None:
    ten = Spread(median=10)
    stream = msgspec.structs.replace(
        CHAT,
        prompts=Prompts(count=1, tokens=Spread(median=30)),
        turns=Turns(mean=9, shape="lognormal", sigma=0.0),
        first=ten,
        text=ten,
        output=ten,
    )
    workload = msgspec.structs.replace(
        SMALL, rate=0.001, streams=(stream,), context_limit=100, on_limit=on_limit
    )
    trace = generate(workload, 4)
    assert trace.session is not None
    one = trace.input_tokens[trace.session.codes == 0]
    assert one.tolist() == lengths


def test_turns_at_one_instant_stay_in_order() -> None:
    none = Spread(median=0)
    stream = msgspec.structs.replace(CHAT, turns=Turns(mean=30), think_s=none, output=none)
    trace = generate(msgspec.structs.replace(SMALL, requests=3000, streams=(stream,)), 4)
    check_sessions(trace)
    assert (np.diff(trace.time_s) == 0).mean() > 0.9


def test_a_warm_up_begins_in_the_middle_of_sessions() -> None:
    warm = generate(msgspec.structs.replace(SMALL, warm_up_s=600.0), 4)
    assert warm.turn is not None
    assert warm.session is not None
    check_trace(warm, SMALL)
    _, first = np.unique(warm.session.codes, return_index=True)
    assert (warm.turn[first] > 1).sum() > 20


spreads = st.builds(
    Spread,
    median=st.floats(0, 300),
    sigma=st.floats(0, 2),
    low=st.floats(0, 1),
    high=st.floats(1, 400),
)
streams = st.builds(
    Stream,
    name=st.just("s"),
    turns=st.builds(
        Turns,
        mean=st.floats(1, 12),
        shape=st.sampled_from(["geometric", "lognormal"]),
        most=st.integers(1, 20),
    ),
    first=spreads,
    text=spreads,
    output=spreads,
    think_s=spreads,
    prompts=st.none() | st.builds(Prompts, count=st.integers(1, 5), tokens=spreads),
    documents=st.none()
    | st.builds(
        Documents,
        count=st.integers(1, 5),
        tokens=spreads,
        each=st.integers(1, 3),
        every=st.sampled_from(["session", "turn"]),
        share=st.floats(0, 1),
    ),
    tools=st.none() | st.builds(Tools, time_s=spreads, tokens=spreads),
)
workloads = st.builds(
    Workload,
    name=st.just("any"),
    requests=st.integers(1, 120),
    rate=st.floats(0.01, 100),
    streams=st.lists(streams, min_size=1, max_size=2).map(
        lambda found: tuple(
            msgspec.structs.replace(stream, name=f"s{i}") for i, stream in enumerate(found)
        )
    ),
    arrivals=st.sampled_from([Poisson(), Bursts(), Day(period_s=100.0)]),
    block_size=st.sampled_from([1, 3, 16, 512]),
    tenants=st.integers(1, 3),
    preamble_tokens=st.integers(0, 50),
    context_limit=st.sampled_from([2000, 2500, 10_000]),
    on_limit=st.sampled_from(["truncate", "restart", "end"]),
    warm_up_s=st.sampled_from([0.0, 50.0]),
    time_grid_s=st.sampled_from([0.0, 1.0]),
)


@hypothesis_settings(max_examples=120, deadline=None)
@given(workloads, st.integers(0, 2**64 - 1))
def test_invariants_of_any_settings(workload: Workload, seed: int) -> None:
    check_trace(generate(workload, seed), workload)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, None])
def test_a_seed_is_an_integer_of_64_bits(seed: object) -> None:
    with pytest.raises(
        UsageError, match=r"^seed must be an integer from 0 to 18446744073709551615"
    ):
        generate(SMALL, seed)  # type: ignore[arg-type]
