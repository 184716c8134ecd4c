"""Random traces and settings for the timed simulation."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from factory import make_trace, traces
from hypothesis import strategies as st

from kvsched.serve.admission import AdmissionSettings
from kvsched.serve.cost import linear_cost
from kvsched.serve.result import Simulation
from kvsched.serve.settings import Settings
from kvsched.trace.model import Labels, Trace

COST = linear_cost(1.0, 0.01, 0.0001, 0.000001)
COLUMNS = (
    "status",
    "arrival_s",
    "scheduled_s",
    "first_token_s",
    "finished_s",
    "hit_tokens",
    "generated_tokens",
    "preemptions",
    "step_log",
)


@st.composite
def work(draw: st.DrawFn, requests: int = 12) -> Trace:
    """Draw a trace whose answers are from 0 to 90 tokens, so that running requests grow."""
    trace = draw(traces(requests=requests))
    count = len(trace)
    outputs = draw(st.lists(st.integers(0, 90), min_size=count, max_size=count))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 90.0]), min_size=count, max_size=count))
    return dataclasses.replace(
        trace,
        # An empty prompt is rejected, where the sequential replay lets it hold what it generates.
        input_tokens=np.maximum(trace.input_tokens, 1),
        output_tokens=np.array(outputs, np.int64),
        time_s=np.cumsum(np.array(gaps)),
    )


@st.composite
def settings(draw: st.DrawFn) -> Settings:
    seqs = draw(st.sampled_from([1, 2, 3, 8, 64]))
    return Settings(
        num_gpu_blocks=draw(st.integers(1, 40)),
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.sampled_from([0, 5, 30, 200])),
        max_model_len=draw(st.sampled_from([None, None, 60])),
        enable_chunked_prefill=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 9])),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        scheduler_reserve_full_isl=draw(st.booleans()),
        enable_prefix_caching=draw(st.booleans()),
        cache_generated=draw(st.booleans()),
    )


def same(one: Simulation, other: Simulation) -> bool:
    """Whether two results are equal to the last bit, but for steps that were jumped."""
    for name in COLUMNS:
        mine, its = getattr(one, name), getattr(other, name)
        if mine is None and its is None:
            continue
        if not np.array_equal(mine, its, equal_nan=mine.dtype.kind == "f"):
            return False
    return one.summary() == other.summary()


def plain(lengths: list[tuple[int, int]], gaps: list[int] | None = None, **more: Any) -> Trace:
    """Return requests of (blocks, tokens to generate) that share nothing; blocks of 16 tokens."""
    paths = [tuple(100 * at + block for block in range(n)) for at, (n, _) in enumerate(lengths)]
    trace = make_trace(paths, gaps or [0] * len(lengths), [0] * len(lengths))
    outputs = np.array([output for _, output in lengths], np.int64)
    return dataclasses.replace(trace, output_tokens=outputs, **more)


def in_sessions(trace: Trace, codes: list[int]) -> Trace:
    """Return the trace with the session of each request, -1 for none."""
    names = tuple(f"s{code}" for code in range(max(codes, default=-1) + 1))
    return dataclasses.replace(trace, session=Labels(np.array(codes, np.int32), names))


@st.composite
def limits(draw: st.DrawFn) -> AdmissionSettings:
    above = draw(st.sampled_from([None, 0.0, 0.3, 0.7]))
    pause = draw(st.sampled_from([None, 0.2, 0.5, 0.8]))
    below = None if pause is None else draw(st.sampled_from([None, 0.05, 0.2]))
    return AdmissionSettings(
        max_waiting=draw(st.sampled_from([None, None, 0, 1, 4])),
        max_waiting_tokens=draw(st.sampled_from([None, None, 0, 40, 200])),
        max_queue_s=draw(st.sampled_from([None, 0.5, 10.0, 100.0])),
        deadlines=draw(st.booleans()),
        degrade=None if above is None else "unstored",
        degrade_above=above,
        pause_above=pause,
        resume_below=below,
    )


@st.composite
def dated(draw: st.DrawFn) -> Trace:
    """Draw a trace of which some requests have deadlines, some of them before they come."""
    trace = draw(work())
    after = draw(
        st.lists(
            st.sampled_from([math.nan, -1.0, 3.0, 60.0]),
            min_size=len(trace),
            max_size=len(trace),
        )
    )
    return dataclasses.replace(trace, deadline_s=trace.time_s + np.array(after))
