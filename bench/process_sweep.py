"""A whole process: read a trace, sweep it, print the points as JSON.

Arguments: the trace, policies and capacities, both with commas.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from kvsched.replay.sweep import sweep
from kvsched.trace.load import load_trace

trace = load_trace(sys.argv[1])
found = sweep(trace, sys.argv[2].split(","), [int(each) for each in sys.argv[3].split(",")])
print(json.dumps([dataclasses.asdict(point) for point in found]))
