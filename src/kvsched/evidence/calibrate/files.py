"""The files of a calibration, and its record."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import msgspec

from kvsched.evidence.calibrate.result import Calibrated, Calibration, Error
from kvsched.foundation.files import whole_file
from kvsched.foundation.schema import described_schema
from kvsched.serve.distribution import Distribution
from kvsched.serve.fitted import Fit

RESULT = "calibration.json"
STEP_TIME = "step-time.json"
REQUESTS = "requests.jsonl"
REPORT = "report.html"
NOT_SAID = "the engine does not say how many tokens were cached"
NAMES = (RESULT, STEP_TIME, REQUESTS, REPORT)


def write_calibration(folder: Path, found: Calibrated, html: str) -> None:
    """Write all files of `NAMES` into ``folder``, or none.

    Raises UsageError and KvschedError as `whole_file`.
    """
    encoder = msgspec.json.Encoder()
    with contextlib.ExitStack() as stack:
        # Left in the reverse order: the result takes its name when all others have theirs.
        streams = {name: stack.enter_context(whole_file(folder / name)) for name in NAMES}
        streams[RESULT].write(_json(found.result))
        streams[STEP_TIME].write(_json(found.result.fit))
        streams[REQUESTS].writelines(encoder.encode(pair) + b"\n" for pair in found.pairs)
        streams[REPORT].write(html.encode("utf-8", "replace"))


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def record_fields(result: Calibration) -> dict[str, Any]:
    """Return what `new_record` takes of a calibration."""
    metrics: dict[str, float | int | None] = {}
    missing: dict[str, str] = {}

    def put(key: str, value: float | int | None, why: str) -> None:
        metrics[key] = value
        if value is None:
            missing[key] = why

    compared = sum(run.cached.compared for run in result.runs)
    different = sum(run.cached.different for run in result.runs)
    put("cached_tokens_differ_requests", different if compared else None, NOT_SAID)
    for run in result.runs:
        stem = re.sub(r"[^A-Za-z0-9]+", "_", run.name).strip("_")
        for name in ("ttft", "tpot"):
            error: Error | None = getattr(run, name)
            for part in ("error_p50", "error_p90", "request_error_p50"):
                value = None if error is None else getattr(error, part)
                put(f"{stem}_{name}_{part}", value, "no request kept back has one")
        metrics[f"{stem}_request_overhead_s"] = run.request_overhead_s
    digests = {run.workload_digest for run in result.runs}
    return {
        "task": "calibrate",
        "name": result.name,
        "evidence_level": "real_benchmark",
        "status": "ok",
        "decision": "accept" if result.goal_met else "tune",
        "reason": result.sentences[0],
        "config": {
            "fit_share": result.fit_share,
            "goal": result.goal,
            "runs": {run.name: {**run.engine, "arrivals": run.arrivals} for run in result.runs},
        },
        "environment": result.environment,
        "workload_digest": next(iter(digests)) if len(digests) == 1 else None,
        "metrics": metrics,
        "missing": missing,
        "detail": msgspec.to_builtins(result),
    }


def calibration_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of calibration.json."""
    return described_schema(Calibration, Distribution, Fit)
