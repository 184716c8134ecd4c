"""The JSON Schemas of evidence files, by the name under which each is published."""

from __future__ import annotations

from typing import Any

from kvsched.evidence.bench.compare import BenchComparison
from kvsched.evidence.bench.decide import Change
from kvsched.evidence.bench.measured import BenchResult
from kvsched.evidence.calibrate.files import calibration_schema
from kvsched.evidence.preflight.report import Preflight
from kvsched.evidence.probe.report import ProbeReport
from kvsched.evidence.record import Record
from kvsched.evidence.record_check import CHECKSUM, ID, MOMENT
from kvsched.foundation.schema import described_schema
from kvsched.serve.distribution import Distribution


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a record, as strict as a schema can be."""
    schema = described_schema(Record)
    record = schema["$defs"]["Record"]
    record["additionalProperties"] = False
    fields = record["properties"]
    fields["schema_version"]["const"] = 1
    fields["task"]["minLength"] = 1
    for name, pattern in (
        ("record_id", ID.pattern),
        ("created_at", MOMENT.pattern),
        ("checksum", f"({CHECKSUM.pattern})?"),
    ):
        fields[name]["pattern"] = f"^{pattern}$"
    return schema


def schemas() -> dict[str, dict[str, Any]]:
    """Return every schema by the file in `docs/` that publishes it."""
    return {
        "bench.schema.json": described_schema(BenchResult, Distribution),
        "bench-comparison.schema.json": described_schema(BenchComparison, Change),
        "preflight.schema.json": described_schema(Preflight),
        "probe.schema.json": described_schema(ProbeReport),
        "record.schema.json": record_schema(),
        "calibration.schema.json": calibration_schema(),
    }
