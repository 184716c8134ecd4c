"""An anonymized trace gives the same study, and names nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from labelled import LABELS, labelled, plain, with_another_chain

from kvsched.foundation.errors import UsageError
from kvsched.study.run import Options, study
from kvsched.trace.anonymize import anonymize
from kvsched.trace.check import structural_fault
from kvsched.trace.columns import write_columns
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.merge import merge_traces
from kvsched.trace.model import Labels, Origin, Trace
from kvsched.trace.slice import slice_trace

SALT = b"a salt that nobody else has seen"
NAMES_OF_GROUPS = ("session", "tenant", "type")


@pytest.fixture(scope="module")
def chat() -> Trace:
    """A workload with sessions, tenants, types and models."""
    made = generate(preset("chat", requests=700), 5)
    rng = np.random.Generator(np.random.PCG64(1))
    codes = [rng.integers(-1, 3, len(made)).astype(np.int32) for _ in range(3)]
    labels = [
        Labels(column, tuple(f"{kind}-of-{name}" for name in ("alice", "bob", "carol")))
        for column, kind in zip(codes, ("tenant", "type", "model"), strict=True)
    ]
    return dataclasses.replace(made, tenant=labels[0], type=labels[1], model=labels[2])


def without_names(trace: Trace) -> dict[str, Any]:
    """A whole study as plain values, but for the fields listed here: keys, names, digest."""
    result = study(trace, 300, options=Options(points=3, policies=("lru", "lfu")))
    found = msgspec.to_builtins(result)
    for field in ("source", "digest", "notes", "settings"):
        del found["trace"][field]
    for prefix in found["hottest"]:
        del prefix["key"], prefix["label"]
    for group in NAMES_OF_GROUPS:
        rows = found["anatomy"]["by"][group]
        for row in rows:
            if row["label"] != "(none)" and not row["label"].endswith(" others"):
                del row["label"]
        # Groups of equal tokens stand in the order of their names.
        found["anatomy"]["by"][group] = sorted(rows, key=json.dumps)
    return found


def test_the_study_is_the_same(chat: Trace) -> None:
    found = without_names(chat)
    assert without_names(anonymize(chat, SALT)) == found
    assert without_names(anonymize(with_another_chain(chat), SALT)) != found
    later = dataclasses.replace(chat, time_s=chat.time_s * 1.01)
    assert without_names(anonymize(later, SALT)) != found


@settings(deadline=None, max_examples=100, derandomize=True)
@given(trace=labelled())
def test_only_keys_and_names_change(trace: Trace) -> None:
    changed = anonymize(trace, SALT)
    assert structural_fault(changed) is None
    for name, column in trace.columns().items():
        if name != "key":
            assert np.array_equal(column, changed.columns()[name], equal_nan=True), name
    assert len(np.unique(changed.key)) == trace.nodes
    mapped: dict[str, str] = {}
    for before, after in zip(plain(trace), plain(changed), strict=True):
        for label in LABELS:
            if before[label] is None:
                assert after[label] is None
            else:
                assert mapped.setdefault(before[label], after[label]) == after[label]
                assert before[label] != after[label]
    assert len(set(mapped.values())) == len(mapped)


def file_with_names(folder: Path) -> Path:
    path = folder / "acme-production.jsonl"
    row = {"input_length": 600, "output_length": 5, "hash_ids": [987654321, 123456789]}
    names = {"session_id": "alice", "tenant": "acme", "type": "chat", "model": "secret-7b"}
    rows = [
        {"timestamp": 1_700_000_000_000, **row, **names},
        {"timestamp": 1_700_000_009_000, **row, **names, "session_id": "bob"},
        {"timestamp": 1_700_000_009_500, "colour": "bad"},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


HIDDEN = (b"acme", b"alice", b"bob", b"chat", b"secret", b"1700000", b"colour")


def written(trace: Trace, folder: Path) -> bytes:
    path = folder / "out.kvtrace"
    write_columns(trace, path)
    return path.read_bytes()


def test_no_name_is_left_in_the_file(tmp_path: Path) -> None:
    trace = load_trace(file_with_names(tmp_path), skip_bad_rows=True)
    plainly = written(trace, tmp_path)
    keys = tuple(int(key).to_bytes(8, "little") for key in trace.key)
    for part in (trace, slice_trace(trace, names={"session": ["bob"]})):
        data = written(anonymize(part, SALT), tmp_path)
        for secret in (*HIDDEN, *keys, trace.digest.encode()):
            assert secret not in data, secret
    for secret in (*HIDDEN[:5], *keys, trace.digest.encode()):
        assert secret in plainly, "the original shows what is looked for"
    kept = written(anonymize(trace, SALT, ["model"]), tmp_path)
    assert b"secret-7b" in kept
    assert b"chat" not in kept


def test_notes_keep_their_numbers_and_lose_names(tmp_path: Path) -> None:
    trace = load_trace(file_with_names(tmp_path), skip_bad_rows=True)
    assert anonymize(trace, SALT).origin == Origin(
        "anonymized",
        "mooncake",
        "ms",
        (
            "timestamps are ms since 1970, by their size",
            "1 bad row was left out",
            "block ids and the names of tenant, session, type, model are salted hashes; "
            "the source is not named",
        ),
    )
    odd = dataclasses.replace(
        trace, origin=Origin("a", "b", "s", ("alice wrote this",), {"session_arrivals": "alice"})
    )
    found = anonymize(odd, SALT, ["type", "model"]).origin
    assert found.notes[0] == "1 note about the source left out"
    assert found.notes[1].startswith("block ids and the names of tenant, session are")
    assert found.settings == {}


def test_the_notes_of_real_traces_are_known(shared_traces: Path) -> None:
    weka = load_trace(shared_traces / "weka")
    found = anonymize(weka, SALT).origin
    assert found.notes[:2] == weka.origin.notes[:2]
    assert found.notes[2] == "50 nested requests of subagents left out"
    assert found.settings == {
        "sessions": 52,
        "session_arrivals": "zero",
        "include_subagents": False,
    }


def test_equal_ids_after_other_prefixes_differ(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 1536, "output_length": 1}
    chains = [[5, 5, 5], [6, 5, 5]]
    path.write_text("".join(json.dumps({**row, "hash_ids": c}) + "\n" for c in chains))
    trace = load_trace(path)
    assert trace.key.tolist() == [5, 5, 5, 6, 5, 5]
    assert len(set(anonymize(trace, SALT).key.tolist())) == 6
    twice = merge_traces([trace, trace])
    assert len(set(anonymize(twice, SALT).key.tolist())) == 12, "roots of one id that are apart"


def test_the_salt_decides(chat: Trace) -> None:
    first, again = anonymize(chat, SALT), anonymize(chat, SALT)
    other = anonymize(chat, SALT + b"!")
    assert first.digest == again.digest != other.digest
    assert not np.isin(first.key, other.key).any()
    assert not set(first.session.names) & set(other.session.names)  # type: ignore[union-attr]


def test_parts_anonymized_with_one_salt_can_be_joined(tmp_path: Path) -> None:
    trace = load_trace(file_with_names(tmp_path), skip_bad_rows=True)
    parts = [anonymize(slice_trace(trace, requests=(at, at + 1)), SALT) for at in (0, 1)]
    joined = merge_traces(parts, offsets_s=[0, 9], share_blocks=True)
    assert joined.digest == anonymize(trace, SALT).digest
    parts[1] = anonymize(slice_trace(trace, requests=(1, 2)), b"another salt")
    assert merge_traces(parts, offsets_s=[0, 9], share_blocks=True).nodes == 4


def test_wrong_use(chat: Trace) -> None:
    with pytest.raises(UsageError, match="the salt is empty"):
        anonymize(chat, b"")
    with pytest.raises(UsageError, match="'session' cannot be kept: only type and model can"):
        anonymize(chat, SALT, ["session"])
