"""Many runs: the grid, its fronts, threads, what is kept and goes on; nothing changes the bytes."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from serving import plain

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.serve import points as points_of
from kvsched.serve.points import Ask, Figures, Point, Records, figures_of, identity, run_points
from kvsched.serve.served import Asking, serve
from kvsched.serve.summary import Objective
from kvsched.serve.sweep import SweepResult, front, parse_sweep, point_table, shown, sweep

TRACE = plain([(2, 9), (3, 30), (1, 4), (4, 20)] * 5, session=None)
ASKED = Asking(
    model="llama-3.1-8b", gpu="h100", num_gpu_blocks_override=12, band=False,
    objective=Objective(ttft_s=0.1),
)  # fmt: skip
GRID = parse_sweep(["max-num-seqs=1,2,8", "eviction-policy=free-list,lfu"])


def swept(grid: Any = None, asked: Asking = ASKED, **more: Any) -> SweepResult:
    return sweep(TRACE, asked, grid or GRID, **{"compiled": False, "threads": 1, **more})


def raw(result: SweepResult) -> bytes:
    return msgspec.json.encode(result)


WHOLE = raw(swept())


def test_a_point_is_the_run_alone() -> None:
    result = swept()
    assert len(result.points) == 6
    assert [point.settings for point in result.points[:3]] == [
        {"max_num_seqs": 1, "eviction_policy": "free-list"},
        {"max_num_seqs": 1, "eviction_policy": "lfu"},
        {"max_num_seqs": 2, "eviction_policy": "free-list"},
    ]
    for point in result.points:
        changes: dict[str, Any] = dict(point.settings)
        alone = serve(TRACE, dataclasses.replace(ASKED, **changes), compiled=False).result
        assert point.figures == figures_of(alone.summary)
    assert result.rate == "goodput_s"
    assert len({point.figures for point in result.points}) > 2, "the settings matter"
    assert "max_num_seqs" not in result.asked
    assert result.asked["model"] == "llama-3.1-8b"
    assert swept(asked=dataclasses.replace(ASKED, objective=None)).rate == "output_tokens_s"


def test_it_follows_the_published_schema() -> None:
    docs = Path(__file__).resolve().parents[2] / "docs"
    schema = json.loads((docs / "sweep.schema.json").read_text())
    data = json.loads(WHOLE)
    jsonschema.validate(data, schema)
    del data["points"][0]["fault"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema)


def test_the_band_is_in_the_points() -> None:
    result = swept({"max_num_seqs": (2,)}, dataclasses.replace(ASKED, band=True))
    (point,) = result.points
    assert set(point.bands) == {"low", "high"}
    assert point.figures is not None
    low, high = (point.bands[band].ttft_p99_s or 0 for band in ("low", "high"))
    assert low < (point.figures.ttft_p99_s or 0) < high


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_no_byte(threads: int) -> None:
    assert raw(swept(threads=threads)) == WHOLE


def test_compiled_is_plain() -> None:
    grid = {"max_num_seqs": (1, 2, 8)}
    assert raw(swept(grid, compiled=True, threads=2)) == raw(swept(grid))


def interrupted_after(count: int) -> Any:
    def told(_what: str, done: int, _all: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    return told


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Ask]:
    """Every point that is really run."""
    made: list[Ask] = []
    real = points_of.run_point

    def counted(trace: Any, ask: Ask, compiled: bool | None = None) -> Point:
        made.append(ask)
        return real(trace, ask, compiled)

    monkeypatch.setattr(points_of, "run_point", counted)
    return made


@pytest.mark.parametrize("count", [1, 4, 5])
def test_an_interrupted_sweep_goes_on(tmp_path: Path, runs: list[Ask], count: int) -> None:
    path = tmp_path / "points.jsonl"
    with pytest.raises(KeyboardInterrupt):
        swept(records=Records(path), report=interrupted_after(count))
    kept = Records(path)
    assert kept.notes == []
    assert len(kept.points) == count
    runs.clear()
    assert raw(swept(records=kept)) == WHOLE
    assert len(runs) == 6 - count
    runs.clear()
    assert raw(swept(records=Records(path), threads=3)) == WHOLE
    assert runs == [], "all is there"
    assert path.read_bytes().count(b"\n") == 6


@pytest.mark.parametrize("cut", [1, 30])
def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path, runs: list[Ask], cut: int) -> None:
    path = tmp_path / "points.jsonl"
    swept(records=Records(path))
    path.write_bytes(path.read_bytes()[: -cut - 1])
    kept = Records(path)
    assert kept.notes == [f"{path}, row 6: damaged, its point is run again"]
    runs.clear()
    assert raw(swept(records=kept)) == WHOLE
    assert len(runs) == 1
    after = Records(path)
    assert len(after.points) == 6
    assert len(after.notes) == 1, "the torn line stays, and spoils no other"


@given(cut=st.integers(0, 4000))
@given_settings(max_examples=15, deadline=None)
def test_a_kill_at_any_byte_changes_nothing(cut: int) -> None:
    grid = {"max_num_seqs": (1, 2, 8)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "points.jsonl"
        whole = raw(swept(grid, records=Records(path)))
        data = path.read_bytes()
        path.write_bytes(data[: min(cut, len(data))])
        kept = Records(path)
        torn = not data[: min(cut, len(data))].endswith(b"\n") and cut > 0
        assert len(kept.notes) <= int(torn)
        assert raw(swept(grid, records=kept)) == whole


def test_a_file_that_is_none_of_ours_spoils_nothing(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    path.write_bytes(b'{"identity": 3}\n\xff\xfe\nhello\n')
    kept = Records(path)
    assert len(kept.notes) == 3
    assert raw(swept(records=kept)) == WHOLE
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UsageError, match="is no file"):
        Records(folder)
    with pytest.raises(KvschedError, match="cannot be written"):
        swept(records=Records(tmp_path / "nowhere" / "points.jsonl"))


def test_a_point_with_other_digits_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    swept(records=Records(path))
    text = path.read_text()
    path.write_text(text.replace('"finished":', '"finished":1', 1))
    kept = Records(path)
    assert len(kept.notes) == 1
    assert raw(swept(records=kept)) == WHOLE


CHANGES: list[dict[str, Any]] = [
    {"max_num_seqs": 3}, {"num_gpu_blocks_override": 11}, {"scheduling_policy": "spf"},
    {"eviction_policy": "lfu"}, {"speedup": 2.0}, {"rate": 3.0}, {"rate": 3.0, "seed": 1},
    {"concurrency": 2}, {"data_parallel_size": 2}, {"routing": "round-robin"},
    {"max_waiting": 3}, {"pause_above": 0.5}, {"swap_space": 1.0, "swap_bandwidth": 2.0},
    {"swap_space": 1.0, "swap_bandwidth": 3.0}, {"horizon_s": 9.0}, {"gpu": "a100-80gb"},
    {"objective": None}, {"objective": Objective(ttft_s=0.2)}, {"band": True},
    {"enable_prefix_caching": False}, {"watermark": 0.1}, {"kv_cache_dtype": "fp8"},
]  # fmt: skip


def test_everything_that_decides_a_point_is_in_its_name() -> None:
    asked = [ASKED, *(dataclasses.replace(ASKED, **change) for change in CHANGES)]
    names = [identity(TRACE, each) for each in asked]
    assert len(set(names)) == len(names)
    other = dataclasses.replace(TRACE, output_tokens=TRACE.output_tokens + 1)
    assert identity(other, ASKED) not in names
    assert identity(TRACE, dataclasses.replace(ASKED)) == names[0]


def test_a_name_that_forgets_a_setting_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = points_of.identity

    def forgets(trace: Any, asking: Asking) -> str | None:
        return real(trace, dataclasses.replace(asking, max_num_seqs=1))

    monkeypatch.setattr(points_of, "identity", forgets)
    path = tmp_path / "points.jsonl"
    swept(records=Records(path))
    assert raw(swept(records=Records(path))) != WHOLE


def test_what_is_a_users_own_is_run_again(tmp_path: Path, runs: list[Ask]) -> None:
    own = Path(__file__).resolve().parents[2] / "examples" / "patient_shortest.py"
    order = f"{own}:PatientShortest"
    grid = {"scheduling_policy": ("fcfs", order)}
    path = tmp_path / "points.jsonl"
    first = swept(grid, records=Records(path))
    assert len(Records(path).points) == 1
    runs.clear()
    assert swept(grid, records=Records(path)) == first
    assert len(runs) == 1
    assert first.points[1].settings == {"scheduling_policy": "patient_shortest.py:PatientShortest"}


def test_what_cannot_be_is_refused_and_a_combination_is_a_fault() -> None:
    grid = {"max_num_seqs": (2, 64), "max_num_batched_tokens": (32, 128)}
    result = swept(grid)
    assert [point.fault is None for point in result.points] == [True, True, False, True]
    assert "at least max_num_seqs" in str(result.points[2].fault)
    assert 2 not in (*result.front_ttft, *result.front_latency)
    with pytest.raises(UsageError, match="--sweep max-num-seqs=4000: max_num_batched_tokens"):
        swept({**grid, "max_num_seqs": (2, 4000)})
    with pytest.raises(UsageError, match="--sweep eviction-policy=nah: unknown policy"):
        swept({"eviction_policy": ("lru", "nah")})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-num-seqs", "write key=a,b,c"),
        ("max-seqs=3", "no such setting"),
        ("objective=3", "no such setting"),
        ("max-num-seqs=3,x", "'x' is not a whole number"),
        ("speedup=nan", "'nan' is not a number"),
        ("sessions=maybe", "not true or false"),
        ("max-num-seqs=3,3", "given twice"),
        ("max-num-seqs=3 max_num_seqs=4", "given twice"),
        ("eviction-policy=lru,", "an empty value"),
        ("", "names no setting"),
        (f"seed={','.join(map(str, range(101)))} max-waiting={','.join(map(str, range(100)))}",
         "more than 10,000 points"),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse_sweep([text])
    assert "\n" not in str(caught.value)


def test_keys_are_the_options() -> None:
    found = parse_sweep(
        ["--max-num-seqs=none,4 horizon=2", "sessions=on,false rate=inf", "gpu=h100"]
    )
    assert found == {
        "max_num_seqs": (None, 4), "horizon_s": (2.0,), "sessions": (True, False),
        "rate": (float("inf"),), "gpu": ("h100",),
    }  # fmt: skip
    assert shown(float("inf")) == "inf"
    assert shown("/a/b/own.py:Mine:key=2") == "own.py:Mine:key=2"
    assert shown("lfu:a=1") == "lfu:a=1"


def made(rate: float | None, latency: float | None, overloaded: bool = False) -> Point:
    figures = Figures(
        requests=1, finished=1, rejected=0, unfinished=0, duration_s=1.0, requests_s=rate,
        output_tokens_s=rate, goodput_s=rate, goodput_share=None, ttft_p50_s=None,
        ttft_p99_s=latency, tpot_p50_s=None, tpot_p99_s=None, latency_p50_s=None,
        latency_p99_s=latency, hit_ratio=None, preemptions=0, overloaded=overloaded,
    )  # fmt: skip
    return Point(settings={}, figures=figures, bands={}, fault=None)


def test_a_front_by_hand() -> None:
    points = [made(5, 2), made(3, 1), made(5, 3), made(2, 1), made(9, 1, overloaded=True)]
    points += [made(None, 1), Point(settings={}, figures=None, bands={}, fault="no")]
    assert front(points, "goodput_s", "ttft_p99_s") == (1, 0)
    twice = [made(1, 1), made(1, 1)]
    assert front(twice, "goodput_s", "ttft_p99_s") == (0, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
@given_settings(max_examples=100, deadline=None)
def test_a_front_is_what_nobody_beats(given_points: list[tuple[int, int]]) -> None:
    points = [made(rate, latency) for rate, latency in given_points]
    on = front(points, "goodput_s", "latency_p99_s")

    def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
        return one != other and one[0] >= other[0] and one[1] <= other[1]

    for at, each in enumerate(given_points):
        beaten = any(beats(other, each) for other in given_points)
        assert beaten is (at not in on)
    latencies = [given_points[at][1] for at in on]
    assert latencies == sorted(latencies)


def test_the_table_has_a_row_a_point() -> None:
    table = point_table(swept({"rate": (1.0, float("inf")), "max_num_seqs": (1, 64)}).points)
    assert table["point"] == [0, 1, 2, 3]
    assert table["rate"] == ["1.0", "1.0", "inf", "inf"], "of one kind"
    assert table["max_num_seqs"] == [1, 64, 1, 64]
    assert {len(column) for column in table.values()} == {4}
    assert all(value is not None for value in table["ttft_p99_s"])


def test_points_come_in_the_order_asked_for() -> None:
    asks = [Ask({"n": n}, dataclasses.replace(ASKED, max_num_seqs=n)) for n in (8, 1, 2)]
    found = run_points(TRACE, asks, threads=3, compiled=False)
    assert [point.settings["n"] for point in found] == [8, 1, 2]
