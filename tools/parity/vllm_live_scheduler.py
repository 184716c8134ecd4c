"""vLLM's Scheduler, as a running engine uses it, with a record of what it does.

`RecordingScheduler` decides nothing: it writes down when each request reached it, and each step,
whose requests are numbered as they came.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_workload import Step
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

FILE = "KVSCHED_PARITY_STEPS"
"""The variable that names the file which the record is appended to, a JSON line each."""


def number(request_id: str) -> int:
    """Return the request's own number: vLLM puts a suffix behind what it was sent with."""
    return int(request_id.partition("-")[0])


class RecordingScheduler(Scheduler):
    """Decides as vLLM's does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.kvsched_calls = 0
        self.kvsched_preempted: list[int] = []
        self.kvsched_numbers: dict[str, int] = {}
        self.kvsched_steps: deque[Step] = deque()
        self.kvsched_file = Path(os.environ[FILE]).open("w", encoding="utf-8")  # noqa: SIM115

    def kvsched_write(self, **row: Any) -> None:
        """Write a row."""
        self.kvsched_file.write(json.dumps(row, separators=(",", ":")) + "\n")
        self.kvsched_file.flush()

    def add_request(self, request: Request) -> None:
        """Note that a request has come."""
        self.kvsched_numbers[request.request_id] = len(self.kvsched_numbers)
        self.kvsched_write(arrived=number(request.request_id), step=self.kvsched_calls)
        super().add_request(request)

    def _preempt_request(self, request: Request, *given: Any, **named: Any) -> Any:
        self.kvsched_preempted.append(self.kvsched_numbers[request.request_id])
        return super()._preempt_request(request, *given, **named)

    def schedule(self, *given: Any, **named: Any) -> SchedulerOutput:
        """Note who runs, is admitted and is preempted."""
        self.kvsched_preempted = []
        output: SchedulerOutput = super().schedule(*given, **named)
        hits = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if name in cached.resumed_req_ids:
                hits[name] = computed
        ran = list(output.num_scheduled_tokens.items())
        numbers = self.kvsched_numbers
        self.kvsched_steps.append(
            Step(
                self.kvsched_calls,
                [(numbers[name], tokens) for name, tokens in ran],
                list(self.kvsched_preempted),
                [(numbers[name], hits[name]) for name, _ in ran if name in hits],
                [],
            )
        )
        self.kvsched_calls += 1
        return output

    def update_from_output(self, *given: Any, **named: Any) -> Any:
        """Write the step, with the free list after who ended in it has left."""
        found = super().update_from_output(*given, **named)
        step = self.kvsched_steps.popleft()
        queue = self.kv_cache_manager.block_pool.free_block_queue
        free = [block.block_id - 1 for block in queue.get_all_free_blocks()]
        if step.ran or step.preempted:
            self.kvsched_write(step=replace(step, free=free).text())
        return found
