"""Readers give a sound trace or an InputError, never anything else; fast path = careful path.

Every registered format takes part, by its sample. Run once with 1,500 files (openai, weka) to
3,000 (mooncake, bailian, vllm-timed, lmcache) instead of 150, it found nothing that the shared
list of broken inputs had not.
"""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import SAMPLES, Sample

from kvsched.foundation.errors import InputError, UsageError
from kvsched.trace import build, lmcache, rows, weka
from kvsched.trace.check import structural_fault
from kvsched.trace.columns import write_columns
from kvsched.trace.cut import Cut
from kvsched.trace.ids import pack_ids, parse_id_lists
from kvsched.trace.load import load_trace
from kvsched.trace.model import Origin, Trace

QUICK = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NAMES = sorted({name.rsplit(".")[-1] for sample in SAMPLES for name in sample.fields} | {"other"})
TEXTS = ["0x1", "-0x", "1e5", "1e999", "nan", "2024-05-01", "0001-01-01T00:00", "\uff11\uff12", ""]
TEXTS += ["0x" + "ab " * 21 + "a", "0x" + "f" * 64, "0x" + "\u0663" * 64]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 3),
    st.floats(),
    st.text(max_size=4),
    st.just("\ud800"),
    st.sampled_from(TEXTS),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3), max_leaves=5)


def overwritten(draw: st.DrawFn, data: bytes) -> bytes:
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    return data


@st.composite
def weka_files(draw: st.DrawFn) -> bytes:
    requests = []
    for t in range(draw(st.integers(0, 4))):
        row: dict[str, object] = {"t": t, "in": 130, "out": 3, "type": "n", "hash_ids": [1, 2]}
        if draw(st.integers(0, 3)) == 0:
            names = [*row, "model", "think_time", "requests", "agent_id"]
            row[draw(st.sampled_from(names))] = draw(values)
        if draw(st.integers(0, 5)) == 0:
            row["requests"] = [{"t": 0, "in": 64, "out": 1, "hash_ids": [draw(st.integers(0, 3))]}]
        if draw(st.integers(0, 9)) == 0:
            del row[draw(st.sampled_from(list(row)))]
        requests.append(row)
    session: dict[str, object] = {"id": "s", "block_size": 64, "requests": requests}
    if draw(st.integers(0, 5)) == 0:
        session[draw(st.sampled_from([*session, "hash_id_scope"]))] = draw(values)
    return overwritten(draw, json.dumps(session).encode())


def attempt(path: Path, data: bytes, **options: object) -> Trace | str:
    path.write_bytes(data)
    try:
        trace = load_trace(path, **options)
    except InputError as error:
        told = str(error)
        if "\n" in told:
            raise ValueError("an error is one line") from error
        return told
    assert structural_fault(trace) is None
    assert len(trace) > 0
    return trace


def outcome(result: Trace | str) -> object:
    return result if isinstance(result, str) else (result.digest, result.origin)


def change(draw: st.DrawFn, holder: Any, depth: int) -> None:
    """Replace, drop or add something in a row, at the top or somewhere within."""
    keys = [*(holder if isinstance(holder, dict) else range(len(holder)))]
    deeper = [key for key in keys if isinstance(holder[key], dict | list) and holder[key]]
    if deeper and depth % 2:
        change(draw, holder[draw(st.sampled_from(deeper))], depth // 2)
    elif depth == 4 and keys:
        del holder[draw(st.sampled_from(keys))]
    elif depth == 8 and isinstance(holder, dict):
        holder[draw(st.sampled_from(NAMES))] = draw(values)
    elif keys:
        holder[draw(st.sampled_from(keys))] = draw(values)


@st.composite
def changed_rows(draw: st.DrawFn, sample: Sample) -> bytes:
    """The sample's rows, of which some have fields changed, dropped or added; bytes overwritten."""
    rows = [
        copy.deepcopy(draw(st.sampled_from(sample.rows))) for _ in range(draw(st.integers(1, 5)))
    ]
    for row in rows:
        for name, kind in sample.fields.items():
            if kind == "ids" and name in row and draw(st.booleans()):
                row[name] = [*row[name][:-1], draw(st.integers(0, 3))]
        for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2]))):
            change(draw, row, draw(st.integers(0, 9)))
    return overwritten(draw, sample.render(rows))


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.rows and s.text], ids=lambda s: s.format
)
@QUICK
@given(draw=st.data(), skip=st.booleans(), noise=st.integers(0, 9))
def test_every_format(
    sample: Sample,
    draw: st.DataObject,
    skip: bool,
    noise: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A sound trace or one line; the same row by row where the reader has a fast path."""
    path = tmp_path_factory.getbasetemp() / "fuzz"
    data = draw.draw(changed_rows(sample) if noise else st.binary(max_size=200))
    asked = {"format": sample.format, "skip_bad_rows": skip, **sample.options}
    fast = attempt(path, data, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "fast", lambda *_: None)
        patch.setattr(weka, "_fast", lambda *_: None)
        patch.setattr(Cut, "of", lambda *_: None)
        patch.setattr(lmcache, "_of_256_bits", lambda *_: None)
        careful = attempt(path, data, **asked)
    assert outcome(fast) == outcome(careful)
    with contextlib.suppress(UsageError):  # bytes may look like a format without these options
        attempt(path, data, **sample.options)


@QUICK
@given(
    data=st.one_of(weka_files(), st.binary(max_size=200)), skip=st.booleans(), all_=st.booleans()
)
def test_weka(
    data: bytes, skip: bool, all_: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.json"
    asked = {"format": "weka", "skip_bad_rows": skip, "include_subagents": all_}
    fast = attempt(path, data, **asked)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weka, "_fast", lambda *_: None)
        careful = attempt(path, data, **asked)
    assert outcome(fast) == outcome(careful)


@QUICK
@given(draw=st.data())
def test_columns(draw: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    source, path = folder / "sound.jsonl", folder / "sound.kvtrace"
    if not path.exists():
        row = {"timestamp": 0, "input_length": 600, "output_length": 5, "session_id": "a"}
        lines = [json.dumps({**row, "hash_ids": [1, i % 3]}) for i in range(5)]
        source.write_text("\n".join(lines))
        write_columns(load_trace(source), path)
    data = bytearray(path.read_bytes())
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    attempt(folder / "fuzz.kvtrace", bytes(data[: draw.draw(st.integers(0, len(data) * 2))]))


@QUICK
@given(text=st.text(alphabet="[]0123456789,- \n\t.e", max_size=30))
def test_id_lists_follow_json(text: str) -> None:
    counts = np.zeros(1, np.int64)
    parsed = parse_id_lists([text.encode()], counts)
    try:
        expected = json.loads(text) if text == text.strip() else None
    except ValueError:
        expected = None
    sound = isinstance(expected, list) and all(
        type(i) is int and -(2**63) <= i < 2**64 for i in expected
    )
    assert (parsed is not None) == sound
    if parsed is not None and isinstance(expected, list):
        keys, signs = pack_ids(expected)
        assert parsed[0].tolist() == keys.tolist()
        assert parsed[1] == signs
        assert counts[0] == len(expected)


@QUICK
@given(ids=st.lists(st.integers(-(2**63), 2**64 - 1), max_size=6))
def test_ids_of_any_size(ids: list[int]) -> None:
    counts = np.zeros(1, np.int64)
    parsed = parse_id_lists([json.dumps(ids).encode()], counts)
    assert parsed is not None
    keys, signs = pack_ids(ids)
    assert (parsed[0].tolist(), parsed[1]) == (keys.tolist(), signs)


chains = st.lists(st.lists(st.integers(-2, 3), max_size=5), min_size=1, max_size=12)


def plain_forest(chains: list[list[int]], scopes: list[int]) -> list[list[int]]:
    seen: dict[tuple[int, ...], int] = {}
    out = []
    for chain, scope in zip(chains, scopes, strict=True):
        paths = [(scope, *chain[: i + 1]) for i in range(len(chain))]
        out.append([seen.setdefault(path, len(seen)) for path in paths])
    return out


@pytest.mark.parametrize("compiled", ["0", "1"])
@QUICK
@given(chains=chains, draw=st.data())
def test_forest(compiled: str, chains: list[list[int]], draw: st.DataObject) -> None:
    """Against a dictionary of whole prefixes, in time order, with a table that must grow."""
    count = len(chains)
    scopes = draw.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
    times = draw.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    lengths = np.array([len(chain) for chain in chains], np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KVSCHED_COMPILED", compiled)
        patch.setattr(build, "_FIRST_TABLE", 16)
        trace = build.build_trace(
            time_s=np.array(times, np.float64),
            input_tokens=lengths * 16,
            output_tokens=np.ones(count, np.int64),
            starts=np.concatenate([[0], np.cumsum(lengths)]),
            keys=np.array([key for chain in chains for key in chain], np.int64),
            block_size=16,
            origin=Origin("x", "test", "s"),
            scope=np.array(scopes, np.int32),
        )
    assert structural_fault(trace) is None
    order = sorted(range(count), key=lambda i: times[i])
    expected = plain_forest([chains[i] for i in order], [scopes[i] for i in order])
    assert trace.chains.tolist() == [node for chain in expected for node in chain]
    assert trace.nodes == len(set(trace.chains.tolist()))
