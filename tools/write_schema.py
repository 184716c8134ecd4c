"""Write docs/result.schema.json from the result's types."""

from pathlib import Path

import msgspec

from kvsched.study.schema import result_schema

target = Path(__file__).parents[1] / "docs" / "result.schema.json"
target.write_bytes(msgspec.json.format(msgspec.json.encode(result_schema()), indent=1) + b"\n")
