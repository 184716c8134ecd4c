"""Bailian traces: content ids, sessions from chains of parents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsched.foundation.errors import InputError
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace


def load(tmp_path: Path, *changes: dict[str, object], **options: object) -> Trace:
    rows = []
    for i, change in enumerate(changes):
        row = {"chat_id": i, "parent_chat_id": -1, "timestamp": i / 2, "type": "text", "turn": 1}
        row |= {"input_length": 40, "output_length": 7, "hash_ids": [0, 1, 2]}
        rows.append(json.dumps(row | change))
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(rows) + "\n")
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    assert trace.origin.format == "bailian"
    return trace


def sessions(trace: Trace) -> list[str]:
    assert trace.session is not None
    return [trace.session.names[code] for code in trace.session.codes]


def test_by_hand(tmp_path: Path) -> None:
    """The published shape of a row: 502 tokens have 32 ids, the last block holds 6."""
    trace = load(
        tmp_path,
        {"input_length": 502, "output_length": 1494, "type": "thinking", "hash_ids": [*range(32)]},
        {"chat_id": 9, "parent_chat_id": 0, "turn": 2, "timestamp": 61.114},
    )
    assert trace.block_size == 16
    assert trace.time_s.tolist() == [0.0, 61.114]
    assert trace.input_tokens.tolist() == [502, 40]
    assert trace.output_tokens.tolist() == [1494, 7]
    assert (trace.references, trace.nodes) == (35, 32)
    assert int(trace.tokens[31]) == 6
    assert trace.type is not None
    assert trace.type.names == ("thinking", "text")
    assert trace.turn is not None
    assert trace.turn.tolist() == [1, 2]
    assert sessions(trace) == ["0", "0"]
    assert trace.origin.time_unit == "s"
    assert trace.origin.notes == ("1 block came again with another size; the first size is kept",)


def test_the_same_id_after_another_block_is_another_node(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        {"hash_ids": [7, 7, 8]},
        {"hash_ids": [8, 7, 7]},
        {"hash_ids": [7, 7, 8]},
    )
    assert trace.chains.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert trace.parent.tolist() == [-1, 0, 1, -1, 3, 4]
    assert trace.key.tolist() == [7, 7, 8, 8, 7, 7]
    # Ids alone would make two nodes of these six.
    assert len(set(trace.key.tolist())) == 2


def test_sessions_follow_the_chain_of_parents(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        {"chat_id": 5},
        {"chat_id": 6, "parent_chat_id": 5},
        {"chat_id": 20},
        {"chat_id": 7, "parent_chat_id": 6},
        {"chat_id": 8, "parent_chat_id": 5},
    )
    assert sessions(trace) == ["5", "5", "20", "5", "5"]
    assert trace.origin.notes == ()


def test_a_later_row_may_be_the_parent(tmp_path: Path) -> None:
    trace = load(tmp_path, {"chat_id": 2, "parent_chat_id": 1}, {"chat_id": 1}, {"chat_id": "x"})
    assert sessions(trace) == ["1", "1", "x"]


def test_a_parent_outside_the_trace_names_the_session(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        {"chat_id": 1, "parent_chat_id": 77},
        {"chat_id": 2, "parent_chat_id": 77},
        {"chat_id": 3, "parent_chat_id": 2},
    )
    assert sessions(trace) == ["77", "77", "77"]
    assert trace.origin.notes == (
        "2 rows have parents outside the trace, whose id names the session",
    )


def test_a_chat_id_twice_is_told(tmp_path: Path) -> None:
    trace = load(tmp_path, {"chat_id": 1}, {"chat_id": 1}, {"chat_id": 2, "parent_chat_id": 1})
    assert sessions(trace) == ["1", "1", "1"]
    assert trace.origin.notes == (
        "1 row has the chat_id of an earlier row; later turns follow the earlier one",
    )


def test_parents_in_a_circle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 2: .parent_chat_id. leads back to the same chat"):
        load(
            tmp_path,
            {},
            {"chat_id": 1, "parent_chat_id": 2},
            {"chat_id": 2, "parent_chat_id": 1},
        )
    with pytest.raises(InputError, match=r"row 1: .parent_chat_id. leads back"):
        load(tmp_path, {"chat_id": 1, "parent_chat_id": 1})


def test_prompts_must_end_in_their_last_block(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="row 2: more tokens than the ids can hold: 49"):
        load(tmp_path, {}, {"input_length": 49})
    assert load(tmp_path, {"input_length": 90}, block_size=32).tokens.tolist() == [32, 32, 26]
