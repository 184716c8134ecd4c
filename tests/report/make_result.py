"""Results to show: a real one, and one whose names are hostile."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np

from kvsched.study.result import StudyResult
from kvsched.study.run import Options, study
from kvsched.trace.generate import generate, preset

HOSTILE = (
    "<script>window.broken=1</script>",
    "</script><img src=x onerror=window.broken=1>",
    "{{7*7}}{% raw %}",
    "%{x} %{customdata}",
    "<b>bold</b><a href='javascript:window.broken=1'>link</a>",
    "\u202egnp.exe\u2066 & \u2028 '\" \x00\x1b[31m",
    "n" * 10_000,
)


def real_result(gpu: bool = True) -> StudyResult:
    trace = generate(preset("chat", requests=1500), 5)
    names = {"model": "llama-3.1-8b", "gpu": "h100"} if gpu else {}
    return study(trace, 1200, options=Options(points=5, command="kvsched study x"), **names)


def unequal_result() -> StudyResult:
    trace = generate(preset("chat", requests=300), 5)
    sizes = 3 + trace.key.view(np.uint64) % np.uint64(12)
    alike = dataclasses.replace(trace, tokens=sizes.astype(np.int32), block_size=0)
    return study(alike, 5000, options=Options(points=4, policies=("fifo",), command="x"))


def hostile_result() -> StudyResult:
    """Put every hostile name wherever a name of the trace's can stand."""
    result = real_result()
    rows = result.anatomy.by["session"]
    named = tuple(
        msgspec.structs.replace(row, label=HOSTILE[at % len(HOSTILE)])
        for at, row in enumerate(rows)
    )
    replace = msgspec.structs.replace
    hottest = tuple(
        replace(prefix, key=HOSTILE[at % len(HOSTILE)], label=HOSTILE[-1 - at % len(HOSTILE)])
        for at, prefix in enumerate(result.hottest)
    )
    by = dict.fromkeys(result.anatomy.by, named)
    return replace(
        result,
        trace=replace(result.trace, source=HOSTILE[1], notes=HOSTILE, format=HOSTILE[0]),
        anatomy=replace(result.anatomy, by=by),
        hottest=hottest,
        command=HOSTILE[1],
        curves=tuple(replace(curve, policy=curve.policy + HOSTILE[1]) for curve in result.curves),
    )
