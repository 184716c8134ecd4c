"""Two studies side by side, and whether their difference is more than each trace's own."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from kvsched.foundation.errors import InputError
from kvsched.report.comparison import print_comparison, render_comparison
from kvsched.study import variation
from kvsched.study.compare import Change, Comparison, compare
from kvsched.study.files import encode, is_result, read_result, write_study
from kvsched.study.result import StudyResult
from kvsched.study.run import Options, study
from kvsched.trace.generate import generate, preset
from kvsched.trace.model import Trace


def chat(seed: int, **changes: float) -> StudyResult:
    options = Options(points=4, policies=("fifo",))
    return study(generate(preset("chat", requests=2500, **changes), seed), 2500, options=options)


@pytest.fixture(scope="module")
def base() -> StudyResult:
    return chat(1)


@pytest.fixture(scope="module")
def other() -> StudyResult:
    options = Options(points=4, policies=("fifo",))
    return study(generate(preset("rag", requests=2500), 1), 2500, options=options)


def named(changes: tuple[Change, ...]) -> dict[str, Change]:
    return {change.name: change for change in changes}


def test_a_study_does_not_differ_from_itself(base: StudyResult) -> None:
    found = compare(base, base)
    for change in (*found.workload, *found.anatomy, *found.policies):
        assert change.difference in (0, None), change.name
        assert change.beyond_variation is not True, change.name
    assert "both are of the same trace" in found.warnings
    assert all(curve.a == curve.b for curve in found.curves)


@pytest.fixture(scope="module")
def pieces() -> list[StudyResult]:
    """Five pieces of one steady trace, each from an empty cache."""
    trace = generate(preset("chat", requests=12_000), 5)
    options = Options(points=2, policies=())
    return [
        study(piece_of(trace, low, low + 2000), 2500, options=options)
        for low in range(2000, 12_000, 2000)
    ]


def piece_of(trace: Trace, low: int, high: int) -> Trace:
    """Requests from ``low`` to ``high`` over the same forest, without names."""
    blank = dict.fromkeys(("session", "tenant", "type", "model", "turn", "priority"))
    starts = trace.starts[low : high + 1]
    return dataclasses.replace(
        trace,
        time_s=trace.time_s[low:high] - trace.time_s[low],
        input_tokens=trace.input_tokens[low:high],
        output_tokens=trace.output_tokens[low:high],
        starts=starts - starts[0],
        chains=trace.chains[starts[0] : starts[-1]].copy(),
        deadline_s=None,
        delay_s=None,
        **blank,
    )


def test_pieces_of_one_trace_are_within_its_own_variation(pieces: list[StudyResult]) -> None:
    pairs = list(itertools.combinations(pieces, 2))
    beyond = [named(compare(a, b).anatomy)["hit"].beyond_variation for a, b in pairs]
    # A 95% interval is left once in twenty by chance; windows are not quite independent.
    assert sum(bool(each) for each in beyond) <= len(pairs) // 5, beyond


def test_another_workload_is_beyond_it(base: StudyResult, other: StudyResult) -> None:
    found = compare(base, other)
    hit = named(found.anatomy)["hit"]
    assert hit.beyond_variation
    assert hit.low is not None
    assert hit.high is not None
    assert hit.difference is not None
    assert hit.low < hit.difference < hit.high
    assert "more than the traces' own variation" in found.sentences[0]
    assert named(found.workload)["prompt of a request"].beyond_variation


def test_swapping_the_sides_turns_every_difference(base: StudyResult, other: StudyResult) -> None:
    forth, back = named(compare(base, other).anatomy), named(compare(other, base).anatomy)
    for name, change in forth.items():
        assert change.difference is not None
        assert back[name].difference == -change.difference
        assert back[name].beyond_variation == change.beyond_variation


def test_classes_are_those_of_the_studies(base: StudyResult, other: StudyResult) -> None:
    found = named(compare(base, other).anatomy)
    row = base.anatomy.overall
    for name in ("hit", "compulsory", "tail", "capacity", "regret"):
        assert found[name].a == getattr(row, name) / row.tokens
    assert found["reusable"].a == (row.hit + row.capacity + row.regret) / row.tokens
    parts = ("hit", "compulsory", "tail", "capacity", "regret")
    assert sum(found[name].b or 0.0 for name in parts) == pytest.approx(1.0, abs=1e-12)


def test_without_windows_nothing_is_said_of_variation(base: StudyResult) -> None:
    by = {name: rows for name, rows in base.anatomy.by.items() if name != "window"}
    blind = msgspec.structs.replace(base, anatomy=msgspec.structs.replace(base.anatomy, by=by))
    found = compare(blind, base)
    assert all(change.beyond_variation is None for change in found.anatomy)
    assert "own variation is not known" in found.sentences[0]


def test_resampling_one_window_only_would_call_chance_a_change(
    pieces: list[StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bootstrap that draws no windows makes every difference look real."""
    base, twin = pieces[:2]
    assert not named(compare(base, twin).anatomy)["hit"].beyond_variation
    monkeypatch.setattr(
        variation,
        "_resampled",
        lambda pairs, seed: (pairs.sum(axis=0)[:1] / pairs.sum(axis=0)[1:]).repeat(
            variation.RESAMPLES
        ),
    )
    assert named(compare(base, twin).anatomy)["hit"].beyond_variation


def test_what_makes_two_studies_hard_to_compare_is_said(base: StudyResult) -> None:
    options = Options(points=4, policies=(), policy="fifo")
    trace = generate(preset("chat", requests=2500, block_size=32), 1)
    found = compare(base, study(trace, 900, options=options))
    said = " ".join(found.warnings)
    assert "the capacities differ: 40,000 tokens in A, 28,800 in B" in said
    assert "the policies differ: lru in A, fifo in B" in said
    assert "the blocks differ: 16 tokens in A, 32 in B" in said


def test_the_capacity_that_makes_up_for_it_does(base: StudyResult, other: StudyResult) -> None:
    sentence = compare(base, other).sentences[-1]
    tokens = int(sentence.split("at most ")[1].split(" tokens")[0].replace(",", ""))
    wanted = next(row for row in base.policies if row.policy == "lru").token_share
    assert wanted is not None
    trace = generate(preset("rag", requests=2500), 1)
    options = Options(points=2, policies=())
    found = study(trace, tokens // trace.block_size, options=options)
    row = next(row for row in found.policies if row.policy == "lru")
    assert row.token_share is not None
    assert row.token_share >= wanted


def test_it_is_shown_and_the_same_each_time(base: StudyResult, other: StudyResult) -> None:
    found = compare(base, other)
    assert encode(found) == encode(compare(base, other))
    assert msgspec.json.decode(encode(found), type=Comparison) == found
    page = render_comparison(found)
    assert page == render_comparison(found)
    assert found.sentences[1].replace("'", "&#39;") in page
    console = Console(file=io.StringIO(), width=80)
    print_comparison(found, console)
    said = console.file.getvalue()
    assert "rate, requests/s" in said
    assert "…" not in said.split("own variation: the middle")[0].replace(" … ", "")


def test_names_are_escaped(base: StudyResult) -> None:
    evil = "<script>window.broken=1</script>"
    trace = msgspec.structs.replace(base.trace, source=evil)
    page = render_comparison(compare(msgspec.structs.replace(base, trace=trace), base))
    assert "<script>window" not in page


def test_results_are_read_back(base: StudyResult, tmp_path: Path) -> None:
    write_study(base, tmp_path, "<html>")
    for place in (tmp_path, tmp_path / "result.json"):
        assert is_result(place)
        assert encode(read_result(place)) == encode(base)
    assert not is_result(tmp_path / "report.html")
    assert not is_result(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data[: len(data) // 2], "no study's result"),
        (lambda data: data.replace(b'"schema_version": 2', b'"schema_version": 9'), "schema 9"),
        (lambda data: data.replace(b'"requests"', b'"reqests"'), "no study's result"),
        (lambda data: b"\xff" + data, "no study's result"),
    ],
)
def test_a_damaged_result_is_refused(
    base: StudyResult,
    tmp_path: Path,
    change: object,
    fault: str,
) -> None:
    write_study(base, tmp_path, "<html>")
    file = tmp_path / "result.json"
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(InputError, match=fault):
        read_result(file)


BROKEN: dict[str, tuple[Callable[[StudyResult], dict[str, object]], str]] = {
    "no policies": (lambda r: {"policies": ()}, "policy lru is not among its policies"),
    "unknown policy": (lambda r: {"policy": "none"}, "policy none is not among its policies"),
    "no curves": (lambda r: {"curves": ()}, "it has no curves"),
    "empty curve": (
        lambda r: {"curves": (replace(r.curves[0], capacity_blocks=()), *r.curves[1:])},
        "is empty",
    ),
    "short curve": (
        lambda r: {"curves": (replace(r.curves[0], hit_tokens=(1,)), *r.curves[1:])},
        "lists of different lengths",
    ),
    "falling curve": (
        lambda r: {
            "curves": (replace(r.curves[0], capacity_blocks=r.curves[0].capacity_blocks[::-1]),)
        },
        "do not rise",
    ),
    "negative count": (
        lambda r: {"trace": replace(r.trace, prompt_tokens=-1)},
        "prompt_tokens is negative: -1",
    ),
    "negative group": (
        lambda r: {
            "anatomy": replace(
                r.anatomy, by={"window": tuple(replace(x, hit=-5) for x in r.anatomy.by["window"])}
            )
        },
        "hit is negative: -5",
    ),
    "too large": (
        lambda r: {"trace": replace(r.trace, duration_s=1e308)},
        "duration_s is out of range",
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_result_that_no_study_wrote_is_refused(
    base: StudyResult, tmp_path: Path, name: str
) -> None:
    changes, words = BROKEN[name]
    file = tmp_path / "result.json"
    file.write_bytes(encode(base))
    assert encode(read_result(file)) == encode(base)
    file.write_bytes(encode(replace(base, **changes(base))))
    with pytest.raises(InputError) as caught:
        read_result(file)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")
