"""Write the JSON Schemas in docs/ from the types of a study's files and of evidence."""

from pathlib import Path

import msgspec

from kvsched.evidence import schema as evidence
from kvsched.study import schema as study

for name, schema in (study.schemas() | evidence.schemas()).items():
    target = Path(__file__).parents[1] / "docs" / name
    target.write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n")
