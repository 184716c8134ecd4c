"""What goes out as Mooncake JSONL comes back as the same workload."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from labelled import labelled, plain, same_sharing, with_another_chain, with_own_sizes

from kvsched.foundation.errors import UsageError
from kvsched.study.run import Options, study
from kvsched.trace.check import structural_fault
from kvsched.trace.generate import generate, preset
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace
from kvsched.trace.mooncake_export import write_mooncake

QUICK = settings(
    deadline=None,
    max_examples=120,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def back(trace: Trace, folder: Path, uncovered: str = "cut") -> tuple[Trace, tuple[str, ...]]:
    path = folder / "out.jsonl"
    notes = write_mooncake(trace, path, uncovered)
    # The notes say how it is to be read.
    unit = "ms" if any("--time-unit ms" in note for note in notes) else None
    copy = load_trace(path, time_unit=unit, block_size=trace.block_size)
    assert structural_fault(copy) is None
    return copy, notes


@QUICK
@given(trace=labelled(unequal=False))
def test_round_trip(trace: Trace, tmp_path: Path) -> None:
    if not trace.references:
        return
    copy, notes = back(trace, tmp_path)
    for name in ("time_s", "output_tokens", "starts", "chains", "parent", "depth", "tokens"):
        assert getattr(copy, name).tolist() == getattr(trace, name).tolist(), name
    assert copy.input_tokens.tolist() == trace.chain_tokens.tolist()
    for before, after in zip(plain(trace), plain(copy), strict=True):
        for name in ("session", "tenant", "type", "model", "turn", "priority", "delay_s"):
            assert before[name] == after[name], name
    cut = int((trace.input_tokens - trace.chain_tokens).sum())
    assert any(note.startswith(f"{cut} prompt tokens of") for note in notes) == (cut > 0)
    assert any("deadlines" in note for note in notes) == (trace.deadline_s is not None)


@QUICK
@given(trace=labelled(unequal=False))
def test_fresh_ids_keep_the_prompts(trace: Trace, tmp_path: Path) -> None:
    copy, _ = back(trace, tmp_path, "fresh")
    assert copy.input_tokens.tolist() == trace.input_tokens.tolist()
    uses = np.bincount(copy.chains, minlength=copy.nodes)
    old = []
    for at in range(len(trace)):
        low, blocks = int(copy.starts[at]), int(trace.chain_blocks[at])
        old += range(low, low + blocks)
        assert (uses[copy.chains[low + blocks : copy.starts[at + 1]]] == 1).all()
    assert same_sharing(trace, dataclasses.replace(copy, chains=copy.chains[old]))
    assert int(copy.chain_tokens.sum()) == int(trace.input_tokens.sum())


def test_a_real_trace_comes_back_as_it_was(shared_traces: Path, tmp_path: Path) -> None:
    trace = load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")
    copy, notes = back(trace, tmp_path)
    assert notes == ()
    assert copy.digest == trace.digest
    assert back(with_another_chain(trace), tmp_path)[0].digest != trace.digest


def test_sessions_of_full_blocks(shared_traces: Path, tmp_path: Path) -> None:
    trace = load_trace(sorted((shared_traces / "weka").glob("*.json"))[0])
    copy, notes = back(trace, tmp_path)
    assert copy.chains.tolist() == trace.chains.tolist()
    assert copy.parent.tolist() == trace.parent.tolist()
    assert copy.time_s.tolist() == trace.time_s.tolist()
    assert copy.chain_tokens.tolist() == trace.chain_tokens.tolist()
    missing = int((trace.input_tokens - trace.chain_tokens).sum())
    assert missing > 0
    assert notes[0].startswith(f"{missing:,} prompt tokens of ")
    assert notes[1] == "blocks have 64 tokens, Mooncake's own 512: read it with --block-size 64"


def study_of(trace: Trace) -> dict[str, Any]:
    """A whole study, but for what names the file, and for keys, which become node numbers."""
    found = msgspec.to_builtins(study(trace, 300, options=Options(points=3, policies=("lru",))))
    for field in ("source", "format", "digest", "time_unit", "notes", "settings"):
        del found["trace"][field]
    for prefix in found["hottest"]:
        del prefix["key"]
    return found


def test_the_study_is_the_same(tmp_path: Path) -> None:
    made = generate(preset("chat", requests=600), 5)
    trace = dataclasses.replace(made, time_s=np.round(made.time_s, 3))
    copy, _ = back(trace, tmp_path)
    assert study_of(copy) == study_of(trace)
    assert study_of(back(with_another_chain(trace), tmp_path)[0]) != study_of(trace)


def test_times_are_rounded_and_it_is_told(tmp_path: Path) -> None:
    made = generate(preset("chat", requests=200), 5)
    assert not any("rounded" in note for note in back(made, tmp_path)[1])
    made = dataclasses.replace(made, time_s=made.time_s * 1.0001)
    copy, notes = back(made, tmp_path)
    rounded = int((np.round(made.time_s, 3) != made.time_s).sum())
    assert rounded > 0
    assert f"{rounded} times were rounded to whole milliseconds" in notes
    assert np.abs(copy.time_s - made.time_s).max() <= 0.0005 + 1e-9


def test_the_sources_clock_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "dated.jsonl"
    row = {"input_length": 600, "output_length": 5, "hash_ids": [7, 8]}
    times = [1_700_000_000_123, 1_700_000_000_999]
    path.write_text("".join(json.dumps({"timestamp": t, **row}) + "\n" for t in times))
    trace = load_trace(path)
    out = tmp_path / "out.jsonl"
    assert write_mooncake(trace, out) == ()
    assert [json.loads(line)["timestamp"] for line in out.read_text().splitlines()] == times
    assert load_trace(out).origin.settings == trace.origin.settings


def test_times_that_hide_their_unit(tmp_path: Path) -> None:
    path = tmp_path / "far.jsonl"
    row = {"input_length": 5, "output_length": 5, "hash_ids": [0]}
    path.write_text(
        "".join(json.dumps({"timestamp": t, **row}) + "\n" for t in (0, 2_000_000_000_000))
    )
    trace = load_trace(path, time_unit="ms")
    copy, notes = back(trace, tmp_path)
    assert notes == ("the times do not show their unit: read it with --time-unit ms",)
    assert copy.digest == trace.digest


def test_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    line = {
        "timestamp": 7,
        "input_length": 1000,
        "output_length": 5,
        "hash_ids": [0, 1],
        "session_id": "a",
        "tenant": "é",
        "type": "t",
        "model": "m",
        "turn": 1,
        "priority": -2,
        "delay": 12.5,
    }
    bare = {"timestamp": 9, "input_length": 0, "output_length": 0, "hash_ids": [], "priority": 0}
    path.write_text(json.dumps(line) + "\n" + json.dumps(bare) + "\n")
    out = tmp_path / "out.jsonl"
    write_mooncake(load_trace(path), out)
    assert [json.loads(text) for text in out.read_text().splitlines()] == [line, bare]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_packed(suffix: str, tmp_path: Path) -> None:
    trace = generate(preset("chat", requests=50), 5)
    plainly, packed = tmp_path / "a.jsonl", tmp_path / f"a.jsonl{suffix}"
    write_mooncake(trace, plainly)
    write_mooncake(trace, packed)
    unpack = gzip.decompress if suffix == ".gz" else zstandard.ZstdDecompressor().stream_reader
    data = unpack(packed.read_bytes())
    assert (data if suffix == ".gz" else data.read()) == plainly.read_bytes()
    first = packed.read_bytes()
    write_mooncake(trace, packed)
    assert packed.read_bytes() == first


def test_what_cannot_be_written(tmp_path: Path) -> None:
    trace = generate(preset("chat", requests=20), 5)
    out = tmp_path / "out.jsonl"
    with pytest.raises(UsageError, match="sizes of their own"):
        write_mooncake(with_own_sizes(trace), out)
    with pytest.raises(UsageError, match="'x': use cut or fresh"):
        write_mooncake(trace, out, "x")
    bare = dataclasses.replace(
        trace,
        starts=np.zeros(len(trace) + 1, np.int64),
        chains=np.empty(0, np.int32),
    )
    with pytest.raises(UsageError, match="--uncovered fresh"):
        write_mooncake(bare, out)
    with pytest.raises(UsageError, match="cannot be written"):
        write_mooncake(trace, tmp_path / "none" / "out.jsonl")
    assert not list(tmp_path.iterdir())
    copy, _ = back(bare, tmp_path, "fresh")
    assert copy.nodes == copy.references > 0
