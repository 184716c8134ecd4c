"""The readers on real traces and on small ones: figures, round trips, options."""

from __future__ import annotations

import gzip
import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import zstandard

from kvsched.foundation.jit import compilation_enabled
from kvsched.trace.check import structural_fault
from kvsched.trace.columns import write_columns
from kvsched.trace.load import load_trace
from kvsched.trace.model import Trace


@pytest.fixture(scope="module")
def conversation(shared_traces: Path) -> Trace:
    return load_trace(shared_traces / "mooncake" / "conversation_trace.jsonl")


def test_conversation(conversation: Trace) -> None:
    assert structural_fault(conversation) is None
    assert (len(conversation), conversation.references) == (12_031, 288_500)
    assert conversation.nodes == 182_790
    assert int(conversation.chain_tokens.sum()) == 144_793_823
    assert conversation.origin.time_unit == "ms"
    assert conversation.origin.notes == ()
    assert len(np.unique(conversation.time_s)) == 1_180
    assert conversation.duration_s == 3_536.999


def test_synthetic(shared_traces: Path) -> None:
    trace = load_trace(shared_traces / "mooncake" / "synthetic_trace.jsonl")
    assert structural_fault(trace) is None
    assert (len(trace), trace.references, trace.nodes) == (3_993, 121_877, 43_924)


def test_weka(shared_traces: Path) -> None:
    trace = load_trace(shared_traces / "weka")
    assert structural_fault(trace) is None
    assert (len(trace), trace.references, trace.nodes) == (3_110, 4_602_577, 175_591)
    assert int(trace.chain_tokens.sum()) == 294_564_928
    assert trace.session is not None
    assert len(trace.session.names) == 52
    assert trace.origin.notes == (
        "the clocks of all 52 sessions start at 0",
        "4 rows without hash_ids left out",
        "50 nested requests of subagents left out (--include-subagents adds them)",
    )
    assert int((trace.parent < 0).sum()) == 55
    more = load_trace(shared_traces / "weka", include_subagents=True)
    assert len(more) == 3_160
    assert more.digest != trace.digest


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_round_trip(conversation: Trace, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"copy.kvtrace{suffix}"
    write_columns(conversation, path)
    copy = load_trace(path)
    assert copy.digest == conversation.digest
    assert copy.origin == conversation.origin
    del copy.__dict__["digest"]
    assert copy.digest == conversation.digest, "the columns themselves must be the same"
    first = path.read_bytes()
    write_columns(copy, path)
    assert path.read_bytes() == first


def _median(call: object, times: int = 7) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        result = call()  # type: ignore[operator]
        taken.append(time.perf_counter() - start)
        del result
    return statistics.median(taken)


def _ratio(path: Path) -> float:
    """Reading to a Trace against plain json.loads over the lines."""

    def plain() -> list[object]:
        with path.open() as file:
            return [json.loads(line) for line in file]

    return _median(lambda: load_trace(path)) / _median(plain)


@pytest.mark.skipif(not compilation_enabled(), reason="a ratio of compiled code")
def test_reading_is_faster_than_plain_json(shared_traces: Path) -> None:
    path = shared_traces / "mooncake" / "conversation_trace.jsonl"
    load_trace(path)  # compiles
    assert min(_ratio(path) for _ in range(3)) <= 0.8


def test_opening_columns_is_much_faster_than_reading(conversation: Trace, tmp_path: Path) -> None:
    path = tmp_path / "c.kvtrace"
    write_columns(conversation, path)
    source = tmp_path / "c.jsonl"
    source.write_bytes(as_mooncake(conversation))
    assert _median(lambda: load_trace(path)) < 0.5 * _median(lambda: load_trace(source), 3)


def as_mooncake(trace: Trace) -> bytes:
    lines = []
    for r in range(len(trace)):
        nodes = trace.chains[trace.starts[r] : trace.starts[r + 1]]
        lines.append(
            json.dumps(
                {
                    "timestamp": float(trace.time_s[r]) * 1000,
                    "input_length": int(trace.input_tokens[r]),
                    "output_length": int(trace.output_tokens[r]),
                    "hash_ids": trace.key[nodes].tolist(),
                }
            )
        )
    return "\n".join(lines).encode()


def rows(*changes: dict[str, object]) -> bytes:
    out = []
    for i, change in enumerate(changes):
        row = {"timestamp": i, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
        out.append(json.dumps({**row, **change}))
    return ("\n".join(out) + "\n").encode()


def load(tmp_path: Path, data: bytes, **options: object) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    trace = load_trace(path, **options)
    assert structural_fault(trace) is None
    return trace


def test_nodes_are_told_by_parent_and_key(tmp_path: Path) -> None:
    chains = [[1, 2], [2, 1], [1, 2], [1, 1], [5, 2]]
    trace = load(tmp_path, rows(*({"hash_ids": c} for c in chains)))
    assert trace.chains.tolist() == [0, 1, 2, 3, 0, 1, 0, 4, 5, 6]
    assert trace.parent.tolist() == [-1, 0, -1, 2, 0, -1, 5]
    assert trace.key.tolist() == [1, 2, 2, 1, 1, 5, 2]
    assert trace.tokens.tolist() == [512, 88, 512, 88, 88, 512, 88]


def test_another_size_is_told(tmp_path: Path) -> None:
    trace = load(tmp_path, rows({}, {"input_length": 700}, {"input_length": 701}))
    assert trace.tokens.tolist() == [512, 88]
    assert trace.chain_tokens.tolist() == [600, 700, 701]
    assert trace.origin.notes == ("2 blocks came again with another size; the first size is kept",)


def test_extra_fields(tmp_path: Path) -> None:
    data = rows(
        {"session_id": "a", "turn": 1, "priority": 3, "model": "m", "user_id": 7, "x": [1]},
        {"session_id": None, "delay": 250, "type": "chat"},
        {"session_id": "a", "turn": 2},
    )
    trace = load(tmp_path, data)
    assert trace.session is not None
    assert trace.session.codes.tolist() == [0, -1, 0]
    assert trace.tenant is not None
    assert trace.tenant.names == ("7",)
    assert trace.turn is not None
    assert trace.turn.tolist() == [1, -1, 2]
    assert trace.priority is not None
    assert trace.priority.tolist() == [3, 0, 0]
    assert trace.delay_s is not None
    assert trace.delay_s[1] == 0.25
    assert np.isnan(trace.delay_s[[0, 2]]).all()
    assert trace.type is not None
    assert trace.type.names == ("chat",)


@pytest.mark.parametrize(
    ("first", "step", "unit"),
    [
        (0, 3000, "ms"),
        (1_700_000_000, 3, "s"),
        (1_700_000_000_000, 3000, "ms"),
        (1_700_000_000_000_000, 3_000_000, "us"),
        (1_700_000_000_000_000_000, 3_000_000_000, "ns"),
    ],
)
def test_units_are_detected(tmp_path: Path, first: int, step: int, unit: str) -> None:
    data = rows(*({"timestamp": first + i * step} for i in range(4)))
    trace = load(tmp_path, data)
    assert trace.origin.time_unit == unit
    assert trace.time_s.tolist() == [0.0, 3.0, 6.0, 9.0]
    dated = (f"timestamps are {unit} since 1970, by their size",)
    assert trace.origin.notes == (dated if first else ())


def test_unit_and_block_size_can_be_named(tmp_path: Path) -> None:
    data = rows({"timestamp": 0.5}, {"timestamp": 2}, {"timestamp": 1.25})
    assert load(tmp_path, data, time_unit="s").time_s.tolist() == [0.0, 0.75, 1.5]
    assert "timestamps have fractions; read as ms, the format's unit" in (
        load(tmp_path, data).origin.notes
    )
    trace = load(tmp_path, rows({"input_length": 20}), block_size=16)
    assert (trace.block_size, trace.tokens.tolist()) == (16, [16, 4])


def test_whatever_is_harmless_is_read(tmp_path: Path) -> None:
    data = rows({}, {"hash_ids": [1, 3]})
    plain = load(tmp_path, data)
    same = {
        "no newline at the end": data.rstrip(),
        "blank lines at the end": data + b"\n\r\n  \n",
        "blank line between": data.replace(b"\n", b"\n\n"),
        "CRLF": data.replace(b"\n", b"\r\n"),
        "byte order mark": b"\xef\xbb\xbf" + data,
        "a key twice": data.replace(b'{"timestamp"', b'{"timestamp": 9, "timestamp"'),
        "white space": data.replace(b"[1, 2]", b"[ 1\t,  2 ]"),
        "gz": gzip.compress(data),
        "zst": zstandard.compress(data),
        "two members": gzip.compress(data[:50]) + gzip.compress(data[50:]) + b"\0" * 9,
        "two frames": zstandard.compress(data[:50]) + zstandard.compress(data[50:]),
    }
    for name, content in same.items():
        assert load(tmp_path, content).digest == plain.digest, name
    empty = load(tmp_path, rows({"input_length": 0, "hash_ids": []}))
    assert (len(empty), empty.nodes) == (1, 0)


def test_ids_of_64_bits(tmp_path: Path) -> None:
    below = load(tmp_path, rows({"hash_ids": [-(2**63), 2**63 - 1]}))
    assert below.key.tolist() == [-(2**63), 2**63 - 1]
    above = load(tmp_path, rows({"hash_ids": [2**64 - 1, 2**63]}))
    assert above.key.tolist() == [-1, -(2**63)]
    slow = load(tmp_path, rows({"hash_ids": [2**64 - 1, 2**63]}) + b"\n\n" + rows({}))
    assert slow.key.tolist()[:2] == [-1, -(2**63)]


def test_long_files_are_read_in_chunks(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 2**62, size=(2000, 100)).tolist()
    data = rows(*({"hash_ids": chain, "input_length": 51_000} for chain in ids))
    assert len(data) > 3 << 20
    many = load(tmp_path, data * 3)
    assert (len(many), many.nodes) == (6000, 200_000)
    bad = data * 2 + data.replace(b"51000", b"51201", 1)
    with pytest.raises(Exception, match="row 4001: more tokens"):
        load(tmp_path, bad)


def session(name: str, *requests: dict[str, object]) -> str:
    filled = [{"in": 130, "out": 3, "hash_ids": [1, 2], **request} for request in requests]
    return json.dumps({"id": name, "block_size": 64, "requests": filled})


def test_sessions_never_share(tmp_path: Path) -> None:
    nested = [{"t": 1.0, "in": 64, "out": 1, "hash_ids": [9], "type": "n"}]
    (tmp_path / "b.json").write_text(session("one", {"t": 0}, {"t": 5, "think_time": 1.5}))
    (tmp_path / "a.json.zst").write_bytes(
        zstandard.compress(
            session(
                "one",
                {"t": 0, "in": 128},
                {"t": 2, "hash_ids": None, "agent_id": "x", "requests": nested},
                {"t": 5, "in": 10},
            ).encode()
        )
    )
    (tmp_path / ".hidden.json").write_text("{}")
    trace = load_trace(tmp_path)
    assert structural_fault(trace) is None
    assert trace.time_s.tolist() == [0, 0, 5, 5]
    assert trace.chains.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert trace.input_tokens.tolist() == [128, 130, 128, 130]
    assert trace.session is not None
    assert trace.session.names == ("one", "one (b.json)")
    assert trace.session.codes.tolist() == [0, 1, 0, 1]
    assert trace.turn is not None
    assert trace.turn.tolist() == [1, 1, 2, 2]
    assert trace.origin.notes == (
        "the clocks of all 2 sessions start at 0",
        "1 row without hash_ids left out",
        "1 nested request of subagents left out (--include-subagents adds them)",
        "1 request says fewer tokens than the blocks hold; the blocks count",
        "1 session has the id of another file and kept apart from it",
    )
    copy = tmp_path / "copy.kvtrace.gz"
    write_columns(trace, copy)
    assert load_trace(copy).digest == trace.digest
    more = load_trace(tmp_path, include_subagents=True)
    assert more.time_s.tolist() == [0, 0, 3, 5, 5]
    assert more.session is not None
    assert more.session.names[more.session.codes[2]] == "one/x"


def test_poisson_arrivals_are_seeded_and_recorded(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.json").write_text(session(str(i), {"t": 0}, {"t": 1}))
    first = load_trace(tmp_path, session_arrivals="poisson:0.01", seed=4)
    again = load_trace(tmp_path, session_arrivals="poisson:0.01", seed=4)
    other = load_trace(tmp_path, session_arrivals="poisson:0.01", seed=5)
    assert first.digest == again.digest != other.digest
    assert first.origin.notes == ("sessions start as poisson:0.01 a second, seed 4",)
    assert first.origin.settings["seed"] == 4
    assert 50 < first.duration_s < 2000


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    for i in range(3):
        (tmp_path / f"{i}.json").write_text(session(str(i), {"t": 0}))
    load_trace(tmp_path, progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == sum(p.stat().st_size for p in tmp_path.iterdir())
