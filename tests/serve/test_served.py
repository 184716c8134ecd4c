"""A question answered whole: vLLM's defaults, the band, words, and the same bytes twice."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving import plain, same

import kvsched
from kvsched.catalog import find_accelerator, load_model
from kvsched.foundation.errors import InputError, UsageError
from kvsched.serve.cost import linear_cost
from kvsched.serve.roofline import roofline
from kvsched.serve.sentences import sentences
from kvsched.serve.served import Asking, Served, find_settings, serve, step_cost
from kvsched.serve.settings import Settings
from kvsched.serve.simulate import simulate
from kvsched.serve.summary import DEFINITIONS, Objective, summarise
from kvsched.serve.traffic import Traffic
from kvsched.trace.model import Trace

TRACE = plain([(2, 4), (1, 30), (3, 9)] * 4, [0, 1, 0, 2] * 3)
ASKED = Asking(model="llama-3.1-8b", gpu="h100")
FIT = """{
 "kind": "fitted", "unit": "seconds",
 "coefficients": {"step_s": 0.01, "token_s": 0.001},
 "residuals": {"ratio_p10": 0.5, "ratio_p50": 1.0, "ratio_p90": 3.0,
               "error_p50": 0.04, "error_p90": 0.1},
 "fitted_from": {"steps": 2000, "source": "somewhere"}
}"""


def answered(trace: Trace = TRACE, **more: Any) -> Served:
    return serve(trace, dataclasses.replace(ASKED, **more), compiled=False)


def told(**more: Any) -> Settings:
    return find_settings(dataclasses.replace(ASKED, **more), 16)[0]


def test_vllms_own_defaults() -> None:
    found = told()
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (1024, 8192)
    assert found.max_model_len == 131072, "the model's own"
    assert found.num_gpu_blocks == 28019 - 1, "what a study takes, less the null block"
    assert told(gpu="a100-80gb").max_num_batched_tokens == 2048
    assert told(max_num_batched_tokens=100).max_num_seqs == 100, "no more requests than tokens"
    assert told(max_model_len=4, max_num_seqs=8).max_num_batched_tokens == 32
    assert told(enable_chunked_prefill=False).max_num_batched_tokens == 131072
    whole = told(enable_chunked_prefill=False, max_num_batched_tokens=9000, max_model_len=9000)
    assert whole.max_num_batched_tokens == 9000
    with pytest.raises(UsageError, match=r"9,000\) must be at least max_model_len \(9,001\)"):
        told(enable_chunked_prefill=False, max_num_batched_tokens=9000, max_model_len=9001)
    with pytest.raises(UsageError, match=r"threshold \(50\) must be at most max_model_len \(49\)"):
        told(long_prefill_token_threshold=50, max_model_len=49)
    with pytest.raises(UsageError, match="must be at least max_num_seqs"):
        told(max_num_seqs=50, max_num_batched_tokens=40)


def test_blocks_are_those_of_the_memory_or_as_given() -> None:
    gpu = told()
    half = told(gpu_memory_utilization=0.45)
    assert half.num_gpu_blocks < gpu.num_gpu_blocks / 2
    assert told(num_gpu_blocks_override=500).num_gpu_blocks == 499, "one is vLLM's null block"
    for blocks in (1, True, 2.5):
        with pytest.raises(UsageError, match="num_gpu_blocks_override"):
            told(num_gpu_blocks_override=blocks)
    with pytest.raises(UsageError, match="blocks of one size"):
        find_settings(ASKED, 0)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match="how long a step takes is not known"):
        serve(TRACE, Asking(model="llama-3.1-8b"))
    step_time = roofline(load_model("llama-3.1-8b"), find_accelerator("h100"))
    with pytest.raises(UsageError, match="how many blocks there are is not known"):
        serve(TRACE, Asking(step_time=step_time))
    alone = Asking(step_time=step_time, num_gpu_blocks_override=90)
    assert serve(TRACE, alone, compiled=False).result.config["model"] is None


def test_the_middle_is_the_plain_simulation_with_the_roofline() -> None:
    served = answered(max_num_seqs=4)
    step_time = roofline(load_model("llama-3.1-8b"), find_accelerator("h100"))
    plain_run = simulate(
        TRACE, told(max_num_seqs=4), cost=step_cost(step_time, "mid"), step_log=True, compiled=False
    )
    assert same(served.simulation, plain_run)
    high = simulate(TRACE, told(max_num_seqs=4), cost=step_cost(step_time, "high"), compiled=False)
    assert served.result.bands["high"].duration_s == high.end_s
    # The seconds of the first step are the roofline's own, from its batch.
    assert served.simulation.step_log is not None
    expected = step_time.seconds([32, 16][:1], [0])["mid"]
    assert served.simulation.step_log[0, 1] == expected


def test_the_band_holds_the_middle() -> None:
    result = answered().result
    low, high = result.bands["low"], result.bands["high"]
    for name in ("ttft_s", "tpot_s", "latency_s"):
        parts = [getattr(run, name).p50 for run in (low, result.summary, high)]
        assert parts == sorted(parts)
        assert parts[0] < parts[2]
    assert low.timeline is None
    assert answered(band=False).result.bands == {}
    without = answered(band=False).result
    assert without.summary == result.summary


def test_a_file_of_coefficients(tmp_path: Path) -> None:
    file = tmp_path / "fit.json"
    file.write_text(FIT)
    served = serve(
        plain([(1, 1)]), Asking(step_time=file, num_gpu_blocks_override=9), compiled=False
    )
    assert served.simulation.end_s == pytest.approx(0.01 + 16 * 0.001)
    assert served.result.bands["high"].duration_s == pytest.approx(3 * 0.026)
    assert served.result.step_time.file == "fit.json", "without its folder"
    assert served.result.step_time.kind == "fitted"
    file.write_text(FIT.replace("0.001", "-1"))
    with pytest.raises(InputError, match=r"fit.json: coefficients.token_s: must be at least 0"):
        serve(TRACE, Asking(step_time=str(file), num_gpu_blocks_override=9))


def test_the_same_bytes_twice_and_others_for_another_setting() -> None:
    one, other = (msgspec.json.encode(answered().result) for _ in range(2))
    assert one == other
    assert msgspec.json.encode(answered(max_num_seqs=2).result) != one


def test_a_result_says_what_it_was_made_from() -> None:
    result = answered(
        concurrency=3, scheduling_policy="priority", eviction_policy="lfu",
        objective=Objective(ttft_s=0.5),
    ).result  # fmt: skip
    config = result.config
    assert config["model"] == "meta-llama/Llama-3.1-8B"
    assert (config["scheduling_policy"], config["eviction_policy"]) == ("priority", "lfu")
    assert (config["concurrency"], config["speedup"]) == (3, None)
    assert config["slo_ttft_s"] == 0.5
    assert config["max_num_seqs"] == 1024
    assert result.trace["digest"] == TRACE.digest
    assert result.definitions == DEFINITIONS
    assert answered().result.config["eviction_policy"] == "free-list"
    assert any("28019 blocks" in step for step in result.derivation)


def test_every_request_is_in_the_words() -> None:
    trace = plain([(2, 3), (9, 5), (2, 500), (1, 1)], [0, 0, 0, 900])
    late = answered(trace, num_gpu_blocks_override=40, horizon_s=2.0, band=False).result
    assert late.sentences[:3] == (
        f"2 of 4 requests finished in {late.summary.duration_s:,.4g} s.",
        "Unfinished: 1 request still ran at the end: number 2.",
        "Unfinished: 1 request had not arrived at the end: number 3.",
    )
    assert "fewer than 40 requests arrived" in late.sentences[3]
    small = answered(trace, num_gpu_blocks_override=9, band=False).result.sentences
    assert small[0].startswith("2 of 4 requests finished")
    assert small[1] == (
        "Rejected: 2 requests (it needs more blocks than there are): number 1, 2 in time order, "
        "from 0."
    )
    many = answered(plain([(9, 1)] * 7), num_gpu_blocks_override=9, band=False).result.sentences
    assert "number 0, 1, 2, 3, 4, … in time order" in many[1]


def test_overload_is_said_in_words_with_the_rate() -> None:
    trace = plain([(1, 8)] * 200)
    slow = Asking(
        step_time=roofline(load_model("llama-3.1-8b"), find_accelerator("h100")),
        num_gpu_blocks_override=100, max_num_seqs=1, band=False,
    )  # fmt: skip
    alone = serve(plain([(1, 8)]), slow, compiled=False).simulation.end_s
    for load, said in ((0.5, "Not overloaded: "), (3.0, "OVERLOADED: ")):
        times = alone / load * (trace.time_s + range(200))
        served = serve(dataclasses.replace(trace, time_s=times), slow, compiled=False)
        (sentence,) = (each for each in served.result.sentences if "verloaded" in each.lower())
        assert sentence.startswith(said)
    assert f"It finishes {1 / alone:,.3g} a second" in sentence
    assert "--speedup 0.33" in sentence


def test_the_band_s_ends_are_told_apart() -> None:
    trace = plain([(1, 8)] * 200)
    slow = dataclasses.replace(ASKED, num_gpu_blocks_override=100, max_num_seqs=1)
    alone = serve(plain([(1, 8)]), slow, compiled=False).result
    times = 1.7 * alone.summary.duration_s * (trace.time_s + range(200))
    result = serve(dataclasses.replace(trace, time_s=times), slow, compiled=False).result
    assert alone.bands["high"].duration_s > 1.8 * alone.summary.duration_s
    assert result.summary.overload.overloaded is False
    assert "With the high step time it is overloaded." in result.sentences
    assert "With the low step time" not in " ".join(result.sentences)


def test_the_public_name_takes_the_fields() -> None:
    served = kvsched.simulate(
        TRACE, model="llama-3.1-8b", gpu="h100", max_num_seqs=4, compiled=False
    )
    assert served.result == answered(max_num_seqs=4).result
    with pytest.raises(UsageError, match="no option max_seqs"):
        kvsched.simulate(TRACE, max_seqs=3)


def test_compiled_is_plain() -> None:
    compiled = serve(TRACE, dataclasses.replace(ASKED, band=False), compiled=True)
    assert compiled.result == answered(band=False).result


def test_bunched_times_and_a_full_engine_are_said() -> None:
    # 20 at each of 10 moments; the engine is never idle, and the queue does not grow without end.
    trace = plain([(2, 40)] * 200, [0 if at % 20 else 14 for at in range(200)])
    found = answered(trace, band=False).result
    bunched = "The trace has 10 times for 200 requests, up to 20 at one"
    assert any(each.startswith(bunched) for each in found.sentences)
    spread = answered(trace, band=False, rate=0.1).result
    assert not any("times for 200 requests" in each for each in spread.sentences)


def test_an_engine_at_its_limit_is_not_called_well() -> None:
    trace = plain([(2, 40)] * 200, [1] * 200)
    step = linear_cost(0.1)
    simulation = simulate(
        trace, Settings(2000, max_num_seqs=4), cost=step, step_log=True, compiled=False
    )
    summary = summarise(simulation)
    said = sentences(simulation, summary, {}, Traffic())
    busy = summary.timeline
    assert busy is not None
    assert busy.busy > 0.99
    assert summary.overload.overloaded is False
    assert any(each.startswith("Not overloaded, but at its limit") for each in said)
