"""A run's folder: written whole or not at all, and read back."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvsched.evidence.bench.compare import BenchComparison, Run
from kvsched.evidence.bench.exports import aiperf_export, vllm_export
from kvsched.evidence.bench.measured import BenchResult, RequestOutcome
from kvsched.evidence.bench.summary import per_request
from kvsched.foundation.errors import InputError, UsageError
from kvsched.foundation.files import whole_file
from kvsched.serve.distribution import distribution
from kvsched.serve.files import prepare_folder
from kvsched.trace.columns import write_columns
from kvsched.trace.model import Trace

RESULT = "result.json"
REQUESTS = "requests.jsonl"
WORKLOAD = "workload.kvtrace"
GAUGES = "gauges.jsonl"
REPORT = "report.html"
LOG = "engine.log"
NAMES = (RESULT, REQUESTS, GAUGES, "summary.json", "vllm-bench.json", REPORT)


def check_no_run(base: Path) -> None:
    """Raise UsageError where ``base`` holds runs already: others would be mixed with them."""
    held = next(iter(sorted(base.glob(f"**/{RESULT}"))), None) if base.is_dir() else None
    if held is not None:
        raise UsageError(f"{held.parent}: holds a measured run, which is never written over")


def prepare_run(folder: Path) -> None:
    """Make a run's folder. Raises UsageError where it holds one already: it is kept as it is."""
    if (folder / RESULT).exists():
        raise UsageError(f"{folder}: holds a measured run, which is never written over")
    prepare_folder(folder, (*NAMES, WORKLOAD))


def write_run(
    folder: Path,
    result: BenchResult,
    outcomes: Sequence[RequestOutcome],
    trace: Trace,
    samples: Mapping[str, Sequence[float | None]],
    html: str,
) -> None:
    """Write a run into ``folder``: all files or, but for a crash, none; `result.json` the last.

    ``samples`` are columns of gauges, ``at_s`` with them. Raises UsageError and KvschedError as
    `whole_file`.
    """
    write_columns(trace, folder / WORKLOAD)
    encoder = msgspec.json.Encoder()
    try:
        with contextlib.ExitStack() as stack:
            # Left in the reverse order: the result takes its name when all others have theirs.
            streams = {name: stack.enter_context(whole_file(folder / name)) for name in NAMES}
            streams[RESULT].write(_json(result))
            streams[REQUESTS].writelines(encoder.encode(one) + b"\n" for one in outcomes)
            rows = zip(*samples.values(), strict=True)
            streams[GAUGES].writelines(
                encoder.encode(dict(zip(samples, row, strict=True))) + b"\n" for row in rows
            )
            streams["summary.json"].write(_json(aiperf_export(result, outcomes)))
            streams["vllm-bench.json"].write(_json(vllm_export(result, outcomes)))
            streams[REPORT].write(html.encode("utf-8", "replace"))
            for stream in streams.values():
                stream.flush()
                os.fsync(stream.fileno())
    except BaseException:
        (folder / WORKLOAD).unlink(missing_ok=True)
        raise


def write_comparison(folder: Path, stem: str, found: BenchComparison, html: str) -> None:
    """Write STEM.json and STEM.html, both or none."""
    with contextlib.ExitStack() as stack:
        page = stack.enter_context(whole_file(folder / f"{stem}.html"))
        numbers = stack.enter_context(whole_file(folder / f"{stem}.json"))
        numbers.write(_json(found))
        page.write(html.encode("utf-8", "replace"))


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def read_run(folder: Path) -> Run:
    """Return the run of a folder. Raises InputError, which names file, row and fault.

    The result must be what its requests give.
    """
    result = _decoded(folder / RESULT, BenchResult)
    decoder = msgspec.json.Decoder(RequestOutcome)
    outcomes: list[RequestOutcome] = []
    where = folder / REQUESTS
    for row, line in enumerate(_bytes(where).splitlines(), start=1):
        try:
            outcomes.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(str(where), str(error), row) from error
        if outcomes[-1].index != row - 1:
            raise InputError(str(where), f"request {outcomes[-1].index}, not {row - 1}", row)
    if len(outcomes) != result.requests:
        raise InputError(
            str(where), f"{len(outcomes):,} requests, where result.json says {result.requests:,}"
        )
    unlike = _unlike(result, outcomes)
    if unlike is not None:
        raise InputError(str(where), f"{unlike} of its requests is not what result.json says")
    return Run(folder.name, result, tuple(outcomes))


def _unlike(result: BenchResult, outcomes: Sequence[RequestOutcome]) -> str | None:
    """Return the first figure that the requests do not give again, or None. O(R log R).

    Up to a rounding: another NumPy may add in another order.
    """
    errors = Counter(one.error for one in outcomes if one.error is not None)
    if result.errors != errors or result.completed != len(outcomes) - errors.total():
        return "the outcome"
    hits = [one.cached_tokens for one in outcomes if one.error is None]
    told = result.hit_rate.usage_hit_tokens
    if told is not None and (None in hits or sum(hit or 0 for hit in hits) != told):
        return "the number of hit tokens"
    with np.errstate(all="ignore"):
        columns = per_request(outcomes)
        for name in ("ttft_ms", "tpot_ms", "latency_ms"):
            one, other = distribution(columns[name]), getattr(result, name)
            if one is None or other is None:
                if one is not other:
                    return name
                continue
            pairs = zip(msgspec.structs.astuple(one), msgspec.structs.astuple(other), strict=True)
            if not all(np.allclose(a or 0.0, b or 0.0, rtol=1e-9, atol=1e-9) for a, b in pairs):
                return name
    return None


def run_folders(path: str) -> list[Path]:
    """Return the folder of a run, or those of the runs in a folder, by name with numbers in order.

    Raises InputError where there is none.
    """
    folder = Path(path)
    if (folder / RESULT).exists():
        return [folder]
    if not folder.is_dir():
        raise InputError(path, "is no folder" if folder.exists() else "no such folder")
    inner = [each.parent for each in folder.glob(f"*/{RESULT}")]
    if not inner:
        raise InputError(path, f"holds no run: neither {RESULT} nor folders with one")
    return sorted(inner, key=by_number)


def read_runs(path: str) -> list[Run]:
    """Return the runs of `run_folders`. Raises InputError, also where there is none."""
    return [read_run(folder) for folder in run_folders(path)]


def by_number(folder: Path) -> list[tuple[int, str]]:
    """Return a key that sorts folders by their path, with numbers in it as such."""
    parts = re.split(r"(\d+)", str(folder))
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error)) from error


def _decoded(path: Path, kind: type[BenchResult]) -> BenchResult:
    try:
        found = msgspec.json.decode(_bytes(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), str(error)) from error
    if found.schema_version != 1:
        raise InputError(str(path), f"schema version {found.schema_version} is not known")
    return found
