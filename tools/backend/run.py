"""Measure a real vLLM on this machine's processors, and say what prediction is worth on it.

`run.py FOLDER --engine-python PYTHON [--trace TRACE] [--keep FOLDER]` (`make backend`). A small
llama with made-up weights is served by vLLM's own API server, started and stopped by
`kvsched bench`. Everything is written into FOLDER anew; with ``--keep`` the records and a page of
them are kept as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from page import write_page

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "num_hidden_layers": 6,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}
NAME = "tiny-llama"
BLOCK = 32
"""Tokens; the smallest that vLLM takes on a processor."""
SCALE = "1/16"
"""Of the trace's blocks of 512 tokens: then they are the engine's."""
REQUESTS = "6400:6560"
"""Of the conversation trace, in time order."""
PREFIXES, PREFIX_BLOCKS, SHARING = 8, 16, 64
"""Prefixes of so many blocks, and requests that begin with one of them."""
ENGINE = (
    "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager", "--dtype", "float32",
    "--block-size", str(BLOCK), "--num-gpu-blocks-override", "4001", "--max-model-len", "3072",
)  # fmt: skip
USUAL = ("--max-num-batched-tokens", "2048", "--max-num-seqs", "16")
VARIED = (
    ("--max-num-batched-tokens", "512", "--max-num-seqs", "16"),
    ("--max-num-batched-tokens", "2048", "--max-num-seqs", "4"),
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # One thread computes, and the system places it: server and client need the other cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@dataclass(frozen=True)
class Place:
    """Where things are."""

    folder: Path
    python: Path
    trace: Path | None

    @property
    def registry(self) -> Path:
        """The records of this run alone."""
        return self.folder / "records.sqlite"

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.folder / NAME


def kvsched(*arguments: str | Path) -> None:
    """Run a command of kvsched's as a user would; its output is shown. Raises SystemExit.

    An interruption reaches it too, and a request to end is passed on; it is waited for, since it
    stops the engine.
    """
    command = [sys.executable, "-m", "kvsched", *map(str, arguments)]
    print("$ kvsched", " ".join(map(str, arguments)), flush=True)
    started = time.monotonic()
    with subprocess.Popen(command) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise SystemExit(130) from None
        except SystemExit:
            # Asked to end: that reached this process alone.
            process.terminate()
            process.wait()
            raise
    print(f"# {time.monotonic() - started:.0f} s, exit {status}\n", flush=True)
    if status:
        raise SystemExit(status)


def bench(place: Place, task: str, name: str, *options: str, engine: tuple[str, ...] = ()) -> None:
    """Measure with an engine started for it, into FOLDER/NAME, and record it."""
    variables = [part for key, value in ENVIRONMENT.items() for part in ("--env", f"{key}={value}")]
    kvsched(
        "bench", task, "--launch", "vllm", "--python", place.python, "--model", place.model,
        *variables, *options, "--output-dir", place.folder / name, "--record", "--registry",
        place.registry, "--", *ENGINE, *engine,
    )  # fmt: skip


def shared_prefixes(path: Path) -> None:
    """Write requests that share prefixes: Mooncake rows of the engine's blocks, from a seed.

    Tails and answers are of different lengths: with equal ones all requests that run would end in
    one step, and the next come at once, as no traffic does.
    """
    random = Random(1)  # noqa: S311  # a workload, no secret
    rows = []
    for at in range(SHARING):
        tail = random.randrange(BLOCK, 8 * BLOCK)
        first = 1000 * (1 + random.randrange(PREFIXES))
        own = 1_000_000 * (at + 1)
        ids = [first + block for block in range(PREFIX_BLOCKS)]
        ids += [own + block for block in range(-(-tail // BLOCK))]
        row = {
            "timestamp": 100 * at,
            "input_length": PREFIX_BLOCKS * BLOCK + tail,
            "output_length": random.randrange(8, 33),
            "hash_ids": ids,
        }
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows), encoding="utf-8")


def prepare(place: Place) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Empty the folder, make the model and both workloads; return the options that name them."""
    if place.folder.exists():
        if any(place.folder.iterdir()) and not (place.model / "config.json").exists():
            raise SystemExit(f"{place.folder}: is not empty, and was not made by this script")
        shutil.rmtree(place.folder)
    place.model.mkdir(parents=True)
    (place.model / "config.json").write_text(json.dumps(MODEL, indent=1), encoding="utf-8")
    rows, shared = place.folder / "shared-prefixes.jsonl", place.folder / "shared-prefixes.kvtrace"
    shared_prefixes(rows)
    kvsched("trace", "convert", rows, "--block-size", str(BLOCK), "--output", shared)
    sharing = ("--trace", str(shared))
    if place.trace is None:
        print("no conversation trace here: a generated workload stands in for it", flush=True)
        return sharing, ("--trace", "preset:chat", "--limit", "160", "--max-prompt-tokens", "1536")
    part = place.folder / "conversation.kvtrace"
    kvsched("trace", "slice", place.trace, "--requests", REQUESTS, "--output", part)
    return sharing, ("--trace", str(part), "--scale", SCALE, "--output-scale", SCALE)


def measure(place: Place) -> None:
    """Run every benchmark: two workloads with prefix caching off and on, and scheduler settings."""
    sharing, talks = prepare(place)
    conversation = (*talks, "--max-model-len", "3072", "--max-output-tokens", "48")
    bench(place, "prefix-cache", "shared-prefix", *sharing, "--concurrency", "1,4,16", engine=USUAL)
    bench(
        place, "prefix-cache", "conversation", *conversation, "--concurrency", "1,4,16",
        engine=USUAL,
    )  # fmt: skip
    candidates = [part for each in VARIED for part in ("--candidate", " ".join(each))]
    bench(
        place, "scheduler", "scheduler", *conversation, "--concurrency", "16", "--baseline",
        " ".join(USUAL), *candidates,
    )  # fmt: skip


def judge(place: Place) -> None:
    """Fit step times, predict, and write the records down."""
    sides = [
        place.folder / workload / side
        for workload in ("conversation", "shared-prefix")
        for side in ("off", "on")
    ]
    scheduler = [each for each in (place.folder / "scheduler").iterdir() if each.is_dir()]
    kvsched(
        "calibrate", *sides, *sorted(scheduler), "--name", "all runs", "--output-dir",
        place.folder / "calibration", "--record", "--registry", place.registry,
    )  # fmt: skip
    for name in ("records.jsonl", "records.md", "records.html"):
        kvsched("records", "export", "--registry", place.registry, "--output", place.folder / name)
    kvsched("records", "verify", "--registry", place.registry)
    write_page(place.folder)


def keep(place: Place, kept: Path) -> None:
    """Keep the records and their page."""
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("records.jsonl", "README.md"):
        shutil.copyfile(place.folder / name, kept / name)
    print(f"kept in {kept}", flush=True)


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine-python", type=Path, required=True)
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace")
    parser.add_argument("--keep", type=Path, help="folder for what is kept")
    parser.add_argument("--judge-only", action="store_true", help="what was measured before")
    asked = parser.parse_args()
    # Not resolved: the environment's Python is a link.
    python = Path(os.path.abspath(asked.engine_python))  # noqa: PTH100  # resolve() leaves it
    place = Place(asked.folder.resolve(), python, asked.trace)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    if not asked.judge_only:
        measure(place)
    judge(place)
    if asked.keep is not None:
        keep(place, asked.keep)
    print(f"{(time.monotonic() - started) / 60:.1f} minutes in all", flush=True)


if __name__ == "__main__":
    main()
