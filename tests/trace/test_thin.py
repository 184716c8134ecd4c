"""A sample laid from the rows of a file is the sample of the whole trace."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import BY_FORMAT, MOONCAKE, SAMPLES, Sample, json_lines

from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.jit import bind
from kvsched.trace import build, load, pieces, spool, thin
from kvsched.trace.build import build_trace
from kvsched.trace.formats import FORMATS
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Labels, Origin, Trace
from kvsched.trace.mooncake_export import write_mooncake
from kvsched.trace.raw import RawChains
from kvsched.trace.reading import Sampling
from kvsched.trace.sample import SampledTrace, SampleSettings, sample, step_hash


def one_in(number: int, seed: int = 0) -> Sampling:
    return Sampling(lambda _: number, seed)


def shown(trace: Trace) -> dict[str, Any]:
    """Everything that a sample holds."""
    assert isinstance(trace, SampledTrace)
    found: dict[str, Any] = {"kind": type(trace), "origin": trace.origin, "digest": trace.digest}
    arrays = dict(trace.columns())
    for name in ("path", "always", "reach", "whole_starts", "whole_tokens"):
        arrays[name] = getattr(trace, name)
    for name, array in arrays.items():
        found[name] = (array.dtype, np.nan_to_num(array, nan=-1.0).tolist())
    for name in ("settings", "whole_nodes", "whole_node_tokens", "block_size"):
        found[name] = getattr(trace, name)
    for name in ("tenant", "session", "type", "model"):
        labels: Labels | None = getattr(trace, name)
        found[name] = None if labels is None else (labels.codes.tolist(), labels.names)
    return found


Columns = dict[str, Any]


@st.composite
def rows(draw: st.DrawFn) -> Columns:
    """Columns as a reader has them: any order, scopes, ids that repeat, blocks of two sizes."""
    chains = draw(st.lists(st.lists(st.integers(-2, 3), max_size=7), min_size=1, max_size=14))
    count = len(chains)
    references = sum(map(len, chains))
    several = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    tails = np.array(draw(several), np.int64) + 1
    blocks = np.array([len(chain) for chain in chains], np.int64)
    unequal = draw(st.booleans())
    sizes = None
    if unequal:
        # Mostly one size an id, sometimes two.
        odd = draw(st.lists(st.integers(0, 12), min_size=references, max_size=references))
        keys = np.array([key for chain in chains for key in chain], np.int64)
        sizes = (20 + keys + (np.array(odd, np.int64) == 1)).astype(np.int32)
    return {
        "time_s": np.array(draw(several), np.float64),
        "input_tokens": 40 * blocks if unequal else np.maximum(16 * blocks - tails, tails),
        "output_tokens": np.arange(count),
        "starts": np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64),
        "keys": np.array([key for chain in chains for key in chain], np.int64),
        "sizes": sizes,
        "block_size": 0 if unequal else 16,
        "scope": draw(st.none() | several.map(lambda each: np.array(each, np.int32))),
        "session": Labels(np.arange(count, dtype=np.int32), tuple(map(str, range(count)))),
        "origin": Origin("made", "test", "s"),
    }


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    columns=rows(),
    number=st.integers(1, 5),
    seed=st.integers(0, 3),
    slots=st.integers(0, 4),
    most_in_memory=st.integers(0, 60),
)
def test_any_rows_give_the_sample_of_their_trace(
    columns: Columns, number: int, seed: int, slots: int, most_in_memory: int
) -> None:
    """Also with tables so small that hashes are counted in many ranges, and ids in a file."""
    sampling = one_in(number, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thin, "MOST_SLOTS", 2 << slots)
        patch.setattr(pieces, "PIECE", 5)
        patch.setattr(spool, "MOST_IN_MEMORY", most_in_memory)
        keys = spool.KeyColumn(sampling)
        keys.extend(columns["keys"])
        laid = build_trace(**columns | {"keys": keys.finish()}, sampling=sampling)
    whole = build_trace(**columns)
    if not whole.references:
        assert not isinstance(laid, SampledTrace)
        return
    assert shown(laid) == shown(sample(whole, number, seed))


def large(seed: int = 1, requests: int = 400) -> Columns:
    """Rows out of order in scopes, under one head that all requests of a scope share."""
    random = np.random.default_rng(seed)
    chains = [
        [7, 8, *random.integers(0, 4, size=random.integers(1, 9)).tolist()] for _ in range(requests)
    ]
    blocks = np.array([len(chain) for chain in chains], np.int64)
    return {
        "time_s": random.integers(0, 100, size=requests).astype(np.float64),
        "input_tokens": 16 * blocks - random.integers(0, 2, size=requests),
        "output_tokens": np.zeros(requests, np.int64),
        "starts": np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64),
        "keys": np.array([key for chain in chains for key in chain], np.int64),
        "block_size": 16,
        "scope": random.integers(0, 3, size=requests).astype(np.int32),
        "origin": Origin("made", "test", "s"),
    }


def compared(columns: Columns, number: int = 20, seed: int = 0) -> tuple[Any, Any]:
    laid = build_trace(**columns, sampling=one_in(number, seed))
    return shown(laid), shown(sample(build_trace(**columns), number, seed))


def test_heavy_nodes_scopes_and_rows_out_of_order() -> None:
    columns = large()
    for seed in range(4):
        laid, asked = compared(columns, seed=seed)
        assert laid == asked
        assert sum(asked["always"][1]) > 5
        assert any("out of time order" in note for note in laid["origin"].notes)
        assert any("another size" in note for note in laid["origin"].notes)


def test_the_comparison_catches_broken_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = large()

    def differ(*names: str) -> bool:
        laid, right = compared(columns)
        return all(laid[name] != right[name] for name in names)

    assert not differ("digest")
    with monkeypatch.context() as patch:  # heavy nodes are missed
        patch.setattr(thin, "_tally", _without_limit)
        assert differ("always", "chains", "digest")
    with monkeypatch.context() as patch:  # the hash is the key's alone
        names = {"step_hash": lambda above, key: HASH(0, key)}
        for name in ("_count", "_lay_piece"):
            plain = getattr(thin, name).function
            patch.setattr(thin, name, bind(plain, names, compiled=False))
        assert differ("whole_nodes", "path", "digest")
    with monkeypatch.context() as patch:  # scopes are forgotten
        patch.setattr(thin, "_places", lambda keys, scope: np.zeros(len(keys), np.int64))
        assert differ("whole_nodes", "path", "digest")
    with monkeypatch.context() as patch:  # chains are laid in the file's order
        patch.setattr(build, "thinned", _in_file_order)
        assert differ("starts", "chains", "digest")
    with monkeypatch.context() as patch:  # a range of hashes is left out
        patch.setattr(thin, "_LAST", 1 << 62)
        assert differ("whole_nodes", "whole_node_tokens", "digest")


_TALLY, _THINNED, HASH = thin._tally, thin.thinned, step_hash


def _without_limit(table: Any, limit: float, *others: Any) -> int:
    return _TALLY(table, 1e18, *others)


def _in_file_order(chains: RawChains, *others: Any) -> Any:
    return _THINNED(dataclasses.replace(chains, order=None), *others)


def test_plain_and_compiled_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = shown(build_trace(**large(requests=60), sampling=one_in(3)))
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
    assert shown(build_trace(**large(requests=60), sampling=one_in(3))) == compiled


def test_nodes_of_two_sizes_of_their_own_are_sampled_whole() -> None:
    """Where each node's size is its own, a second size cannot be told without the forest."""
    columns = large() | {"block_size": 0}
    references = len(columns["keys"])
    sizes = np.full(references, 9, np.int32)
    laid, asked = compared(columns | {"sizes": sizes})
    assert laid == asked
    columns["sizes"] = sizes + (np.arange(references) % 3 == 0).astype(np.int32)
    chains = RawChains(
        None, columns["starts"], columns["keys"], columns["sizes"], columns["input_tokens"], None, 0
    )
    assert thin.thinned(chains, SampleSettings(4)) is None
    laid, asked = compared(columns)
    assert laid == asked


@pytest.mark.parametrize("sample_file", SAMPLES, ids=lambda each: each.format)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_format(sample_file: Sample, number: int, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample_file.data)
    whole = sample_file.load(path)
    if not whole.references:
        with pytest.raises(UsageError, match="no block ids"):
            sample_file.load(path, sampling=one_in(number))
        return
    laid = sample_file.load(path, sampling=one_in(number))
    assert shown(laid) == shown(sample(whole, number))


READERS = {known.name for known in FORMATS} - {"columns", "azure", "burstgpt"}


@pytest.mark.parametrize("name", sorted(READERS))
def test_every_reader_of_rows_lays_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that does not hand on what is asked is sampled whole, which costs memory."""

    def refused(*_: Any) -> None:
        raise AssertionError("sampled whole")

    monkeypatch.setattr(load, "sample", refused)
    path = tmp_path / "trace"
    path.write_bytes(BY_FORMAT[name].data)
    assert isinstance(BY_FORMAT[name].load(path, sampling=one_in(2)), SampledTrace)
    path.write_bytes(BY_FORMAT["columns"].data)
    with pytest.raises(AssertionError, match="sampled whole"):
        load_trace(path, sampling=one_in(2))


def test_a_generated_trace_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "agents.jsonl.zst"
    write_mooncake(generate(preset("mooncake-toolagent", requests=3000), 2), path)
    for number in (10, 100):
        laid = load_trace(path, sampling=one_in(number, 5))
        asked = sample(load_trace(path), number, 5)
        assert shown(laid) == shown(asked)
        assert asked.always_kept > 10


def test_sessions_of_many_files_that_begin_together(tmp_path: Path) -> None:
    """Clocks in each file of its own, and ids that mean something there alone."""
    for number in range(6):
        requests = [
            {"t": float(i * (number + 1)), "in": 64 * i, "out": 1, "hash_ids": list(range(i))}
            for i in range(1, 9)
        ]
        scope = "local" if number % 3 else "global"
        session = {"id": f"s{number}", "block_size": 64, "hash_id_scope": scope}
        text = json.dumps(session | {"requests": requests})
        (tmp_path / f"trace_{number}.json").write_text(text)
    for arrivals in ("zero", "poisson:1"):
        laid = load_trace(tmp_path, session_arrivals=arrivals, sampling=one_in(3))
        whole = load_trace(tmp_path, session_arrivals=arrivals)
        assert shown(laid) == shown(sample(whole, 3))
    assert len(np.unique(whole.key[whole.parent < 0])) < int((whole.parent < 0).sum())


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    path, pipe = tmp_path / "trace.jsonl", tmp_path / "pipe"
    write_mooncake(generate(preset("chat", requests=500), 2), path)
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    laid = load_trace(pipe, block_size=16, sampling=one_in(10))
    writer.join()
    assert laid.digest == sample(load_trace(path, block_size=16), 10).digest


def test_bad_rows_and_the_rate_that_is_asked_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json_lines(MOONCAKE * 5) + b"{}\n" + json_lines(MOONCAKE))
    told: list[int] = []

    def rate(references: int) -> int:
        told.append(references)
        return 2

    with pytest.raises(InputError, match="row 16"):
        load_trace(path, sampling=Sampling(rate))
    assert told == []
    laid = load_trace(path, skip_bad_rows=True, sampling=Sampling(rate))
    whole = load_trace(path, skip_bad_rows=True)
    assert told == [whole.references]
    assert shown(laid) == shown(sample(whole, 2))
    assert any("1 bad row was left out" in note for note in laid.origin.notes)


def test_progress_goes_on_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin, "MOST_SLOTS", 64)
    monkeypatch.setattr(pieces, "PIECE", 100)
    told: list[tuple[int, int]] = []
    sampling = Sampling(lambda _: 5, progress=lambda done, total: told.append((done, total)))
    build_trace(**large(), sampling=sampling)
    done = [each for each, _ in told]
    assert {total for _, total in told} == {1000}
    assert len(done) > 100
    assert done[0] < 100
    assert done[-1] == 1000
    assert done == sorted(done)
