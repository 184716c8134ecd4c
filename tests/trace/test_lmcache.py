"""LMCache's look-up logs: wide hashes, chunks of 256, rotated files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from kvsched.foundation.errors import InputError
from kvsched.trace import lmcache
from kvsched.trace.check import structural_fault
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace

UNLOGGED = "output lengths are not logged; they count as 0"


def lines(*changes: dict[str, object], start: float = 1711929600.0) -> bytes:
    rows = []
    for i, change in enumerate(changes):
        row = {"timestamp": start + i, "request_id": f"r{i}", "model_name": "m"}
        row |= {"chunk_size": 256, "seq_len": 700, "chunk_hashes": ["0x1", "0x2"]}
        row |= change
        rows.append(json.dumps({k: v for k, v in row.items() if v is not ...}))
    return ("\n".join(rows) + "\n").encode()


def load(tmp_path: Path, *changes: dict[str, object], **options: object) -> Trace:
    path = tmp_path / "lookup_hashes_20260401_143025_000003.jsonl"
    path.write_bytes(lines(*changes))
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    assert trace.origin.format == "lmcache"
    return trace


def test_by_hand(tmp_path: Path) -> None:
    trace = load(
        tmp_path,
        {},
        {"seq_len": 1024, "chunk_hashes": ["0x1", "0x2", "0x3", "0x4"]},
        {"seq_len": 255, "chunk_hashes": []},
    )
    assert trace.block_size == 256
    assert trace.time_s.tolist() == [0.0, 1.0, 2.0]
    assert trace.input_tokens.tolist() == [700, 1024, 255]
    assert trace.output_tokens.tolist() == [0, 0, 0]
    assert trace.chains.tolist() == [0, 1, 0, 1, 2, 3]
    assert trace.chain_tokens.tolist() == [512, 1024, 0]
    assert trace.tokens.tolist() == [256] * 4
    assert trace.model is not None
    assert trace.model.names == ("m",)
    assert trace.origin.notes == ("timestamps are s since 1970, by their size", UNLOGGED)


def test_hashes_of_every_form(tmp_path: Path) -> None:
    forms = ["0xff", "ff", "0XFF", 255, "-0x1", -1, "0x" + "ab" * 24 + "00000000000000ff"]
    same = [{"chunk_hashes": [form], "seq_len": 256} for form in forms]
    trace = load(tmp_path, *same)
    assert trace.chains.tolist() == [0, 0, 0, 0, 1, 1, 0]
    assert trace.key.tolist() == [255, -1]
    assert "hashes have more than 64 bits; their last 64 name the chunks" in trace.origin.notes
    high = load(tmp_path, {"chunk_hashes": ["0x8000000000000000"], "seq_len": 256})
    assert high.key.tolist() == [-(2**63)]


def test_text_times_are_sorted_as_numbers(tmp_path: Path) -> None:
    trace = load(
        tmp_path, {"timestamp": "9.5"}, {"timestamp": "10"}, {"timestamp": "1e2"}, {"timestamp": 11}
    )
    assert trace.time_s.tolist() == [0.0, 0.5, 1.5, 90.5]
    assert "1 row was out of time order and sorted" in trace.origin.notes
    assert sorted(["9.5", "10", "1e2"]) != ["9.5", "10", "1e2"]  # as text the order is another


def test_models_share_nothing(tmp_path: Path) -> None:
    trace = load(tmp_path, {}, {"model_name": "n"}, {"model_name": None}, {"model_name": "n"})
    assert trace.chains.tolist() == [0, 1, 2, 3, 4, 5, 2, 3]
    assert trace.model is not None
    assert trace.model.codes.tolist() == [0, 1, -1, 1]


def test_tokens_without_a_hash(tmp_path: Path) -> None:
    trace = load(tmp_path, {"seq_len": 768}, {"seq_len": 767}, {"seq_len": 400})
    assert trace.chain_tokens.tolist() == [512, 512, 400]
    assert "1 request has a chunk or more of tokens that no hash covers" in trace.origin.notes
    with pytest.raises(InputError, match="row 1: fewer tokens than the hashes need: 256, but 2"):
        load(tmp_path, {"seq_len": 256})


def test_chunk_sizes(tmp_path: Path) -> None:
    trace = load(tmp_path, {"chunk_size": ...}, {"chunk_size": 256})
    assert trace.block_size == 256
    assert "1 row does not say the chunk size; read as 256 tokens" in trace.origin.notes
    assert load(tmp_path, {"chunk_size": ...}, block_size=512).block_size == 512
    with pytest.raises(InputError, match=r'row 2: "chunk_size" is 512, the rows before have 256'):
        load(tmp_path, {}, {"chunk_size": 512})
    with pytest.raises(InputError, match=r'row 1: "chunk_size" is 256, --block-size is 64'):
        load(tmp_path, {}, block_size=64)
    skipped = load(tmp_path, {"chunk_size": 128, "seq_len": 10}, {}, skip_bad_rows=True)
    assert (skipped.block_size, len(skipped)) == (256, 1)


def test_a_folder_of_rotated_files(tmp_path: Path) -> None:
    (tmp_path / "lookup_hashes_b_000001.jsonl.gz").write_bytes(
        gzip.compress(lines({}, {"chunk_hashes": ["0x1", "0x3"]}, start=1711929700.0))
    )
    (tmp_path / "lookup_hashes_a_000000.jsonl").write_bytes(lines({}, {}))
    (tmp_path / "other.json").write_text("{}")
    told: list[tuple[int, int]] = []
    trace = load_trace(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert structural_fault(trace) is None
    assert trace.origin.format == "lmcache"
    assert trace.time_s.tolist() == [0.0, 1.0, 100.0, 101.0]
    assert trace.chains.tolist() == [0, 1, 0, 1, 0, 1, 0, 2]
    assert told[-1][0] == told[-1][1]
    (tmp_path / "lookup_hashes_c_000002.jsonl").write_bytes(lines({"seq_len": -1}))
    with pytest.raises(InputError, match=r"lookup_hashes_c_000002.jsonl, row 1: .seq_len. must"):
        load_trace(tmp_path)
    trace = load_trace(tmp_path, skip_bad_rows=True)
    assert len(trace) == 4
    assert trace.origin.notes[-1].startswith(
        '1 bad row was left out; the first: lookup_hashes_c_000002.jsonl, row 1: "seq_len"'
    )


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "lookup_hashes_a_000000.jsonl").write_bytes(lines({}))
    (tmp_path / "lookup_hashes_b_000001.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=r"lookup_hashes_b_000001\.jsonl: no such file"):
        load_trace(tmp_path)


def test_a_folder_without_logs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no look-up logs in the folder"):
        load_trace(tmp_path, "lmcache")


def test_hashes_as_written_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as one by one; white space, which `bytes.fromhex` takes, is no digit."""
    rng = np.random.default_rng(3)
    hashes = ["0x" + rng.bytes(32).hex() for _ in range(50)]
    at_once = load(tmp_path, {"chunk_hashes": hashes, "seq_len": 50 * 256})
    assert at_once.key[0] == np.array(int(hashes[0][-16:], 16), np.uint64).view(np.int64)
    monkeypatch.setattr(lmcache, "_of_256_bits", lambda _: None)
    assert load(tmp_path, {"chunk_hashes": hashes, "seq_len": 50 * 256}).digest == at_once.digest
    monkeypatch.undo()
    with pytest.raises(InputError, match="must be hexadecimal text"):
        load(tmp_path, {"chunk_hashes": ["0x" + " " + "a" * 63], "seq_len": 256})


def test_many_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 2**63, size=(3000, 2)).tolist()
    trace = load(tmp_path, *({"chunk_hashes": [hex(i) for i in chain]} for chain in ids))
    assert trace.key.tolist() == [i for chain in ids for i in chain]
