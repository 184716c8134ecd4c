"""Block ids beyond what is kept in memory: the same sample, read from a temporary file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import SAMPLES, Sample, json_lines

from kvsched.foundation.errors import KvschedError
from kvsched.trace import spool
from kvsched.trace.load import load_trace
from kvsched.trace.reading import Sampling
from kvsched.trace.sample import sample
from kvsched.trace.spool import KeyColumn, Spooled, in_memory

SAMPLING = Sampling(lambda _: 2)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MOST_IN_MEMORY", 3)
    monkeypatch.setattr(spool, "_STEP", 4)


def spooled(values: list[int], pieces: int = 3) -> Spooled:
    column = KeyColumn(SAMPLING)
    for piece in np.array_split(np.array(values, np.int64), pieces):
        column.extend(piece)
    assert len(column) == len(values)
    found = column.finish()
    assert isinstance(found, Spooled)
    return found


def test_ids_come_back_in_stretches_and_one_by_one() -> None:
    values = np.random.default_rng(1).integers(-(2**63), 2**63 - 1, size=50).tolist()
    found = spooled(values)
    assert len(found) == 50
    assert in_memory(found).tolist() == values
    piece = np.empty(7, np.int64)
    found.read_into(11, piece)
    assert piece.tolist() == values[11:18]
    places = np.array([49, 0, 3, 3, 17])
    assert found.take(places).tolist() == [values[place] for place in places]
    assert found.take(places[:0]).tolist() == []


def test_a_trace_read_whole_or_small_stays_in_memory() -> None:
    for sampling, values in ((None, range(50)), (SAMPLING, range(3))):
        column = KeyColumn(sampling)
        column.extend(np.array(values, np.int64))
        found = column.finish()
        assert isinstance(found, np.ndarray)
        assert found.tolist() == list(values)


@pytest.mark.parametrize("sample_file", SAMPLES, ids=lambda each: each.format)
def test_every_format(sample_file: Sample, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(sample_file.data)
    whole = sample_file.load(path)
    for rate in (1, 2) if whole.references else ():
        laid = sample_file.load(path, sampling=Sampling(lambda _, rate=rate: rate))
        assert laid.digest == sample(whole, rate).digest


def test_rows_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for row in range(200):
        ids = [1, *random.integers(2, 5, size=random.integers(0, 6)).tolist()]
        rows.append(
            {
                "timestamp": row + int(random.integers(0, 4)) * 5,
                "input_length": 512 * len(ids) - int(random.integers(0, 3)),
                "output_length": 1,
                "hash_ids": ids,
            }
        )
    path = tmp_path / "trace.jsonl"
    path.write_bytes(json_lines(rows))
    read: list[int] = []
    real = Spooled.read_into

    def watched(self: Spooled, first: int, out: Any) -> None:
        read.append(first)
        real(self, first, out)

    monkeypatch.setattr(Spooled, "read_into", watched)
    whole = load_trace(path, time_unit="s")
    laid = load_trace(path, time_unit="s", sampling=SAMPLING)
    assert laid.digest == sample(whole, 2).digest
    assert any("out of time order" in note for note in laid.origin.notes)
    # Twice over the rows, and those that stand together at once.
    assert 4 < len(read) < 400

    def shifted(self: Spooled, first: int, out: Any) -> None:
        real(self, max(first - 1, 0), out)

    monkeypatch.setattr(Spooled, "read_into", shifted)  # the comparison can fail
    assert load_trace(path, time_unit="s", sampling=SAMPLING).digest != laid.digest


def test_a_full_disk_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        return Path("/dev/full").open("r+b", buffering=0)

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(KvschedError, match=r"no space left on device \(TMPDIR names"):
        spooled(list(range(20)))


def test_a_file_that_is_cut_short_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = spooled(list(range(20)))
    found._file.truncate(80)
    with pytest.raises(KvschedError, match="cut short"):
        found.whole()
