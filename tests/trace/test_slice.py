"""A part of a trace is its requests as they were, over nodes of its own."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelled import labelled, plain, same_sharing, with_another_chain

from kvsched.foundation.errors import UsageError
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Trace
from kvsched.trace.pick import pick
from kvsched.trace.slice import slice_trace

QUICK = settings(deadline=None, max_examples=150, derandomize=True)


def rows_kept(trace: Trace, keep: list[bool]) -> list[dict[str, object]]:
    rows = [row for row, kept in zip(plain(trace), keep, strict=True) if kept]
    first = rows[0]["time"]
    for row in rows:
        row["time"] -= first
        if row["deadline_s"] is not None:
            row["deadline_s"] -= first
    return rows


@QUICK
@given(trace=labelled(), data=st.data())
def test_the_part_is_the_requests_as_they_were(trace: Trace, data: st.DataObject) -> None:
    count = len(trace)
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    keep[data.draw(st.integers(0, count - 1))] = True
    order = np.flatnonzero(keep).astype(np.int64)
    part = pick(trace, order, trace.origin)
    assert structural_fault(part) is None
    assert plain(part) == rows_kept(trace, keep)
    old = np.concatenate(
        [trace.chains[trace.starts[r] : trace.starts[r + 1]] for r in order] or [[]]
    )
    assert same_sharing(part, dataclasses.replace(part, chains=old))
    _, first = np.unique(part.chains, return_index=True)
    assert part.nodes == len(first), "every node is in some chain"
    assert (np.diff(first) > 0).all(), "numbered in order of first appearance"
    if trace.unequal:
        assert part.tokens[part.chains].tolist() == trace.tokens[old].tolist()


def test_the_check_of_sharing_can_fail() -> None:
    trace = dataclasses.replace(slice_trace(load_rows([[1, 2], [1, 2]]), first=2), session=None)
    assert same_sharing(trace, trace)
    assert not same_sharing(trace, with_another_chain(trace))


def load_rows(chains: list[list[int]], folder: Path | None = None) -> Trace:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as made:
        path = (folder or Path(made)) / "rows.jsonl"
        path.write_text(
            "".join(
                json.dumps(
                    {
                        "timestamp": 1000 * at,
                        "input_length": 512 * len(chain),
                        "output_length": 5,
                        "hash_ids": chain,
                        "session_id": f"s{at % 2}",
                    }
                )
                + "\n"
                for at, chain in enumerate(chains)
            )
        )
        return load_trace(path)


@QUICK
@given(trace=labelled(), data=st.data())
def test_conditions_together(trace: Trace, data: st.DataObject) -> None:
    low, high = sorted(data.draw(st.tuples(st.integers(0, 2000), st.integers(0, 2000))))
    first = data.draw(st.integers(1, 5))
    wanted = data.draw(st.sampled_from([None, "session ä", "session b"]))
    names = {} if wanted is None else {"session": [wanted]}
    keep = []
    for row in plain(trace):
        fits = low <= row["time"] < high + 1 and wanted in (None, row["session"])
        keep.append(fits and sum(keep) < first)
    if wanted is not None and trace.session is None:
        with pytest.raises(UsageError, match="no request has a session"):
            slice_trace(trace, from_s=low, to_s=high + 1, names=names)
    elif not any(keep):
        with pytest.raises(UsageError, match=r"is left|no session is called"):
            slice_trace(trace, from_s=low, to_s=high + 1, first=first, names=names)
    else:
        part = slice_trace(trace, from_s=low, to_s=high + 1, first=first, names=names)
        assert plain(part) == rows_kept(trace, keep)


def test_all_of_it_is_the_same_trace(shared_traces: Path) -> None:
    whole = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    part = slice_trace(whole, first=len(whole))
    assert part.digest == whole.digest
    assert part.origin == whole.origin


def test_a_part_is_what_reading_its_lines_gives(shared_traces: Path, tmp_path: Path) -> None:
    source = shared_traces / "mooncake" / "conversation_trace.jsonl"
    part = slice_trace(load_trace(source), requests=(3000, 4500))
    lines = source.read_bytes().splitlines(keepends=True)[3000:4500]
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(lines))
    assert part.digest == load_trace(path).digest
    path.write_bytes(b"".join(lines[1:]))
    assert part.digest != load_trace(path).digest


def test_a_size_is_the_first_one_kept() -> None:
    trace = load_rows([[1, 2], [1, 2]])
    other = dataclasses.replace(trace, input_tokens=np.array([1012, 600]))
    assert slice_trace(other, requests=(1, 2)).tokens.tolist() == [512, 88]


def test_what_was_cut_is_told() -> None:
    trace = load_rows([[1], [2], [1, 3], [4]])
    part = slice_trace(trace, from_s=1, to_s=3)
    assert part.origin.notes == (
        "cut to 2 of 4 requests: from 1 s, before 3 s",
        "the clock starts 1 s after the first request of the whole trace",
        "blocks that only requests cut away had used before count as new",
    )
    assert part.origin.settings["first_timestamp_s"] == 1.0
    assert slice_trace(trace, first=2).origin.notes == ("cut to 2 of 4 requests: the first 2",)
    named = slice_trace(trace, names={"session": ["s0"]})
    assert named.session == Labels(named.session.codes, ("s0",))  # type: ignore[union-attr]
    assert "session s0" in named.origin.notes[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"from_s": 5, "to_s": 5}, "no window"),
        ({"from_s": float("nan")}, "no window"),
        ({"requests": (3, 3)}, "A:B"),
        ({"requests": (-1, 3)}, "A:B"),
        ({"requests": (4, 9)}, "is left"),
        ({"first": 0}, "at least 1"),
        ({"names": {"session": ["x"]}}, "no session is called 'x' (there is s0, s1)"),
        ({"names": {"tenant": ["x"]}}, "no request has a tenant"),
        ({"names": {"colour": ["x"]}}, "label 'colour' is not known"),
    ],
)
def test_wrong_parts(options: dict[str, object], words: str) -> None:
    trace = load_rows([[1], [2], [1, 3], [4]])
    with pytest.raises(UsageError) as caught:
        slice_trace(trace, **options)  # type: ignore[arg-type]
    assert words in str(caught.value)
