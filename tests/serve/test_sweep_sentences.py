"""What a sweep comes to in words: values that change nothing, and the best point."""

from __future__ import annotations

from typing import Any

import pytest
from serving import plain

from kvsched.serve.points import Figures, Point, Value
from kvsched.serve.served import Asking, serve
from kvsched.serve.sweep import parse_sweep, sweep
from kvsched.serve.sweep_sentences import conclusions, option_of, same_values, settings_text


def made(settings: dict[str, Value], rate: float | None, overloaded: bool | None = False) -> Point:
    figures = Figures(
        requests=1, finished=1, rejected=0, unfinished=0, duration_s=1.0, requests_s=rate,
        output_tokens_s=rate, goodput_s=rate, goodput_share=0.5, ttft_p50_s=None, ttft_p99_s=None,
        tpot_p50_s=None, tpot_p99_s=None, latency_p50_s=None, latency_p99_s=None, hit_ratio=None,
        preemptions=0, overloaded=overloaded,
    )  # fmt: skip
    none = Point(settings=settings, figures=None, bands={}, fault="no")
    return none if rate is None else Point(settings=settings, figures=figures, bands={}, fault=None)


def grid(rates: dict[tuple[int, float], float | None]) -> list[Point]:
    return [made({"max_num_seqs": n, "speedup": s}, rate) for (n, s), rate in rates.items()]


def test_values_that_change_nothing_are_named() -> None:
    rates: dict[tuple[int, float], float | None] = {
        (8, 1.0): 1.0, (8, 2.0): 2.0, (64, 1.0): 1.5, (64, 2.0): 3.0, (256, 1.0): 1.5,
        (256, 2.0): 3.0,
    }  # fmt: skip
    points = grid(rates)
    assert same_values(points, "max_num_seqs") == [[64, 256]]
    assert same_values(points, "speedup") == []
    assert conclusions(points, "goodput_s") == (
        "max-num-seqs: 64 and 256 give the same.",
        "Most requests a second that meet the objective: max-num-seqs=64 speedup=2 with 3, "
        "50.0% of all (1 more have as many).",
    )
    points = grid(rates | {(256, 1.0): 1.4})
    assert same_values(points, "max_num_seqs") == [], "one combination differs"
    points = grid(dict.fromkeys(rates, 1500.0))
    assert conclusions(points, "output_tokens_s")[:2] == (
        "max-num-seqs changes nothing: 8, 64 and 256 give the same.",
        "speedup changes nothing: 1 and 2 give the same.",
    )
    assert "with 1,500 (5 more" in conclusions(points, "output_tokens_s")[2]


def test_a_value_that_never_ran_is_like_no_other() -> None:
    points = grid({(8, 1.0): 1.0, (64, 1.0): None, (256, 1.0): None})
    assert same_values(points, "max_num_seqs") == []
    assert conclusions(grid({(8, 1.0): None}), "goodput_s") == ("No point could run.",)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([made({"seed": 1}, 2.0, True)], "Every point is overloaded"),
        ([made({"seed": 1}, 9.0, True), made({"seed": 2}, 2.0)],
         "objective, of those that are not overloaded: seed=2 with 2"),
        ([made({"seed": 1}, 2.0, None)], "; overload cannot be told."),
        ([made({"seed": 1}, 0.0)], "No point that is not overloaded has any requests"),
    ],
)  # fmt: skip
def test_the_best_point_is_named(points: list[Point], said: str) -> None:
    assert said in conclusions(points, "goodput_s")[-1]


def test_a_sweep_says_it() -> None:
    trace = plain([(2, 9), (3, 30)] * 10, session=None)
    asked = Asking(model="llama-3.1-8b", gpu="h100", band=False)
    result = sweep(trace, asked, parse_sweep(["max-num-seqs=2,64,256"]), compiled=False, threads=1)
    assert result.sentences == conclusions(result.points, result.rate)
    assert result.sentences[0] == "max-num-seqs: 64 and 256 give the same."


def test_options_are_named_as_the_command_has_them() -> None:
    assert option_of("horizon_s") == "horizon"
    assert option_of("max_queue_s") == "max-queue-s"
    text = settings_text({"horizon_s": None, "speedup": 2.0, "sessions": True, "rate": "inf"})
    assert text == "horizon=none speedup=2 sessions=true rate=inf"


@pytest.mark.parametrize(
    "more",
    [
        {"rate": 3.0},
        {"rate": 30.0},
        {"rate": 30.0, "data_parallel_size": 3},
        {"rate": 30.0, "horizon_s": 1.0},
        {"concurrency": 3},
        {"rate": 9.0, "num_gpu_blocks_override": 10},
        {"rate": 9.0, "num_gpu_blocks_override": 12, "pause_above": 0.5, "max_queue_s": 0.2},
    ],
)
def test_utilisation_is_that_of_the_step_log(more: dict[str, Any]) -> None:
    trace = plain([(2, 9), (3, 30)] * 30, session=None)
    asked = Asking(model="llama-3.1-8b", gpu="h100", band=False, **more)
    served = serve(trace, asked, compiled=False)
    summary = served.result.summary
    assert summary.timeline is not None
    assert summary.utilisation == pytest.approx(min(summary.timeline.busy, 1.0), rel=1e-9)
    if more == {"rate": 3.0}:
        assert summary.utilisation < 0.5, "not every run is busy: the two do not agree by chance"
