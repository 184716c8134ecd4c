"""Write the JSON Schemas in docs/ from the types of a study's files."""

from pathlib import Path

import msgspec

from kvsched.study.schema import schemas

for name, schema in schemas().items():
    target = Path(__file__).parents[1] / "docs" / name
    target.write_bytes(msgspec.json.format(msgspec.json.encode(schema), indent=1) + b"\n")
