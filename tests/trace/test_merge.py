"""Merged traces: every request as it was, on one clock, blocks apart or shared."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from labelled import labelled, plain, same_sharing, with_another_chain, with_own_sizes

from kvsched.foundation.errors import UsageError
from kvsched.trace.check import structural_fault
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.merge import merge_traces
from kvsched.trace.model import Labels, Trace
from kvsched.trace.pick import pick
from kvsched.trace.slice import slice_trace

QUICK = settings(deadline=None, max_examples=120, derandomize=True)


def moved(trace: Trace, offset: float) -> list[dict[str, object]]:
    rows = plain(trace)
    for row in rows:
        row["time"] += offset
        if row["deadline_s"] is not None:
            row["deadline_s"] += offset
    return rows


@QUICK
@given(data=st.data(), unequal=st.booleans())
def test_separate_traces_keep_every_request(data: st.DataObject, unequal: bool) -> None:
    count = data.draw(st.integers(2, 3))
    traces = [data.draw(labelled(unequal=unequal)) for _ in range(count)]
    traces = [named(trace, f"{at}") for at, trace in enumerate(traces)]
    offsets = [float(data.draw(st.integers(-50, 400))) for _ in traces]
    merged = merge_traces(traces, offsets_s=offsets)
    assert structural_fault(merged) is None
    rows = [
        row for t, by in zip(traces, offsets, strict=True) for row in moved(t, by - min(offsets))
    ]
    rows.sort(key=lambda row: row["time"])  # type: ignore[arg-type, return-value]
    if any(t.priority is not None for t in traces):
        rows = [{**row, "priority": row["priority"] or 0} for row in rows]
    assert plain(merged) == rows
    assert merged.nodes == sum(trace.nodes for trace in traces)
    apart = [pick(merged, np.flatnonzero(source_of(traces, offsets) == at), traces[at].origin)
             for at in range(count)]  # fmt: skip
    for trace, own in zip(traces, apart, strict=True):
        assert same_sharing(trace, own)
        if unequal:
            assert trace.tokens[trace.chains].tolist() == own.tokens[own.chains].tolist()


def named(trace: Trace, mark: str) -> Trace:
    """The trace with sessions whose names no other has."""
    if trace.session is None:
        return trace
    names = tuple(name + mark for name in trace.session.names)
    return dataclasses.replace(trace, session=Labels(trace.session.codes, names))


def source_of(traces: list[Trace], offsets: list[float]) -> np.ndarray:
    """Which trace each merged request comes from."""
    times = np.concatenate([t.time_s + by for t, by in zip(traces, offsets, strict=True)])
    which = np.repeat(np.arange(len(traces)), [len(trace) for trace in traces])
    return which[np.argsort(times, kind="stable")]


@QUICK
@given(whole=labelled(ties=False), data=st.data())
def test_parts_that_share_make_the_whole_again(whole: Trace, data: st.DataObject) -> None:
    count = len(whole)
    assume(count > 1)
    into = np.array(data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    into[0], into[data.draw(st.integers(1, count - 1))] = 0, 1
    orders = [np.flatnonzero(into == at).astype(np.int64) for at in (0, 1)]
    parts = [pick(whole, order, whole.origin) for order in orders]
    offsets = [float(whole.time_s[order[0]]) for order in orders]
    merged = merge_traces(parts, offsets_s=offsets, share_blocks=True)
    assert structural_fault(merged) is None
    assert plain(merged) == plain(whole)
    assert same_sharing(merged, whole)
    assert merged.nodes == whole.nodes
    apart = merge_traces(parts, offsets_s=offsets)
    common = set(parts_nodes(whole, orders[0])) & set(parts_nodes(whole, orders[1]))
    assert apart.nodes == whole.nodes + len(common)


def parts_nodes(trace: Trace, order: np.ndarray) -> list[int]:
    return [
        int(node) for r in order for node in trace.chains[trace.starts[r] : trace.starts[r + 1]]
    ]


def test_halves_of_a_real_trace_make_it_again(shared_traces: Path) -> None:
    whole = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    half = len(whole) // 2
    parts = [
        slice_trace(whole, requests=(0, half)),
        slice_trace(whole, requests=(half, len(whole))),
    ]
    merged = merge_traces(parts, align="absolute", share_blocks=True)
    assert merged.digest == whole.digest
    broken = [parts[0], with_another_chain(parts[1])]
    assert merge_traces(broken, align="absolute", share_blocks=True).digest != whole.digest
    assert merge_traces(parts, align="absolute").nodes == parts[0].nodes + parts[1].nodes


def rows(folder: Path, name: str, start: int, chains: list[list[int]], **names: str) -> Trace:
    path = folder / name
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": start + 1000 * at,
                    "input_length": 512 * len(chain),
                    "output_length": 5,
                    "hash_ids": chain,
                    **names,
                }
            )
            + "\n"
            for at, chain in enumerate(chains)
        )
    )
    return load_trace(path)


def test_clocks(tmp_path: Path) -> None:
    a = rows(tmp_path, "a.jsonl", 5000, [[1], [2]])
    b = rows(tmp_path, "b.jsonl", 5500, [[1], [2]])
    dated = rows(tmp_path, "c.jsonl", 1_700_000_000_000, [[1]])
    assert merge_traces([a, b]).time_s.tolist() == [0, 0, 1, 1]
    found = merge_traces([b, a], align="absolute")
    assert found.time_s.tolist() == [0, 0.5, 1, 1.5]
    assert found.origin.settings["first_timestamp_s"] == 5
    assert merge_traces([a, b], offsets_s=[10, -0.25]).time_s.tolist() == [0, 1, 10.25, 11.25]
    with pytest.raises(UsageError, match=r"c.jsonl counts from 1970, a.jsonl from a start of"):
        merge_traces([a, dated], align="absolute")
    made = generate(preset("chat", requests=20, block_size=512), 1)
    with pytest.raises(UsageError, match="chat does not say when it began"):
        merge_traces([a, made], align="absolute")
    with pytest.raises(UsageError, match="1 offset for 2 traces"):
        merge_traces([a, b], offsets_s=[1])
    with pytest.raises(UsageError, match="not both"):
        merge_traces([a, b], offsets_s=[1, 2], align="absolute")
    with pytest.raises(UsageError, match="not a finite number"):
        merge_traces([a, b], offsets_s=[1, float("inf")])
    with pytest.raises(UsageError, match="alignment 'end' is not known"):
        merge_traces([a, b], align="end")


def test_names_and_origin(tmp_path: Path) -> None:
    a = rows(tmp_path, "a.jsonl", 0, [[1], [2]], session_id="s", tenant="t", model="m")
    b = rows(tmp_path, "b.jsonl", 0, [[1]], session_id="s", model="m")
    apart = merge_traces([a, b, b], label_tenant=True)
    assert [row["session"] for row in plain(apart)] == ["s", "s (b.jsonl)", "s (b.jsonl 2)", "s"]
    assert [row["tenant"] for row in plain(apart)] == [
        *("a.jsonl/t", "b.jsonl", "b.jsonl 2", "a.jsonl/t"),
    ]
    assert {row["model"] for row in plain(apart)} == {"m"}
    assert apart.origin.source == "a.jsonl + b.jsonl + b.jsonl 2"
    assert apart.origin.notes == (
        "3 traces merged; all start together",
        "blocks of different traces are not shared",
        "2 sessions have the name of another trace's session and kept apart from it",
    )
    assert [each["digest"] for each in apart.origin.settings["merged"]] == [
        *(a.digest, b.digest, b.digest),
    ]
    shared = merge_traces([a, b], share_blocks=True, names=["x", "y"])
    assert {row["session"] for row in plain(shared)} == {"s"}
    assert [row["tenant"] for row in plain(shared)] == ["t", None, "t"]
    assert shared.nodes == 2
    assert "equal ids share blocks: 1 block is shared" in shared.origin.notes
    assert shared.origin.source == "x + y"


def test_another_size_is_told(tmp_path: Path) -> None:
    a = rows(tmp_path, "a.jsonl", 0, [[1]])
    b = dataclasses.replace(a, input_tokens=np.array([99]), tokens=np.array([99], np.int32))
    found = merge_traces([b, a], share_blocks=True)
    assert found.tokens.tolist() == [99]
    assert found.chain_tokens.tolist() == [99, 512]
    assert "1 block came again with another size; the first size is kept" in found.origin.notes


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    a = rows(tmp_path, "a.jsonl", 0, [[1], [2]])
    small = dataclasses.replace(a, block_size=64, input_tokens=np.array([64, 64]))
    with pytest.raises(UsageError, match=r"512 tokens in a.jsonl, 64 tokens in a.jsonl 2"):
        merge_traces([a, small])
    with pytest.raises(UsageError, match=r"512 tokens in a.jsonl, no common size in a.jsonl 2"):
        merge_traces([a, with_own_sizes(a)])
    with pytest.raises(UsageError, match="at least two"):
        merge_traces([a])
    local = merge_traces([a, a])
    with pytest.raises(UsageError, match=r"a.jsonl \+ a.jsonl 2: ids are local to its sessions"):
        merge_traces([a, local], share_blocks=True)
    assert merge_traces([a, local]).nodes == 6
