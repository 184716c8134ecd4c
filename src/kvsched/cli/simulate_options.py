"""The options of `kvsched simulate`, in groups."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from kvsched.cli.options import (
    Allowance,
    KvCacheDtype,
    ModelName,
    TensorParallel,
    Utilization,
    WeightDtype,
)

COMPILING_TAKES = "some 10 s"
"""How long a loop with its hooks takes to compile, on a core of its own."""


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """The engine, in vLLM's names; what is not given is vLLM's own default of a server."""

    model: ModelName = None
    gpu: Annotated[str | None, typer.Option("--gpu", help="An accelerator of `kvsched gpus`.")] = (
        None
    )
    tensor_parallel_size: TensorParallel = 1
    gpu_memory_utilization: Utilization = 0.9
    kv_cache_dtype: KvCacheDtype = "auto"
    weight_dtype: WeightDtype = "auto"
    allowance_gib: Allowance = 2.0
    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option(
            "--num-gpu-blocks-override",
            help="Blocks, instead of what fits the memory; one is vLLM's null block.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            "--max-num-seqs", help="Requests that run at a time.", show_default="by device"
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens",
            help="Tokens that a step computes.",
            show_default="by device",
        ),
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            "--max-model-len",
            help="Tokens of prompt and answer; a prompt of so many is rejected.",
            show_default="the model's own",
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int,
        typer.Option(
            "--long-prefill-token-threshold",
            help="Tokens of one request in a step beside others; 0 for no limit.",
        ),
    ] = 0
    watermark: Annotated[
        float,
        typer.Option(
            "--watermark", help="Share of the blocks kept free when a request joins others."
        ),
    ] = 0.0
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Whether what is cached can be hit.",
        ),
    ] = True
    enable_chunked_prefill: Annotated[
        bool,
        typer.Option(
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
            help="Whether a prompt may be computed in parts.",
        ),
    ] = True
    cache_generated: Annotated[
        bool,
        typer.Option(
            "--cache-generated/--no-cache-generated",
            help="Whether the blocks that decoding fills are cached.",
        ),
    ] = True
    scheduling_policy: Annotated[
        str,
        typer.Option(
            "--scheduling-policy",
            metavar="NAME[:PARAMETER=VALUE]|path.py:Name|module:Name",
            help="Who is admitted first: fcfs, priority, lpm, spf, edf, tenant-fair, decode-order, "
            "or your own (docs/orders.md).",
        ),
    ] = "fcfs"
    eviction_policy: Annotated[
        str | None,
        typer.Option(
            "--eviction-policy",
            metavar="NAME[:PARAMETER=VALUE]|path.py:Name|module:Name",
            help="Which cached block leaves; `kvsched policies` lists them.",
            show_default="vLLM's own free list",
        ),
    ] = None
    data_parallel_size: Annotated[
        int, typer.Option("--data-parallel-size", help="Engines, each with these settings.")
    ] = 1
    routing: Annotated[
        str | None,
        typer.Option(
            "--routing",
            help="Which engine a request goes to: round-robin, least-loaded, cache-aware, "
            "prefix-aware.",
            show_default="least-loaded, as vLLM",
        ),
    ] = None
    swap_space: Annotated[
        float | None,
        typer.Option(
            "--swap-space",
            metavar="GIB",
            help="A second tier of so many GiB a GPU: preempted requests move there.",
            show_default="computed again",
        ),
    ] = None
    swap_bandwidth: Annotated[
        float | None,
        typer.Option(
            "--swap-bandwidth", metavar="GB/S", help="10^9 bytes a second of each GPU, one way."
        ),
    ] = None
    step_time: Annotated[
        str | None,
        typer.Option(
            "--step-time",
            metavar="FILE",
            help="Coefficients fitted to measured steps (docs/step-time.md).",
            show_default="a roofline of the model on the GPU",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class AdmissionOptions:
    """Who may wait, and what happens under pressure."""

    max_waiting: Annotated[
        int | None,
        typer.Option("--max-waiting", help="Requests that wait; one more is rejected."),
    ] = None
    max_waiting_tokens: Annotated[
        int | None,
        typer.Option("--max-waiting-tokens", help="Prompt tokens that wait; more are rejected."),
    ] = None
    max_queue_s: Annotated[
        float | None,
        typer.Option(
            "--max-queue-s", metavar="SECONDS", help="Who has waited for longer is rejected."
        ),
    ] = None
    deadlines: Annotated[
        bool,
        typer.Option(
            "--deadlines/--no-deadlines",
            help="Whether who waits past the trace's deadline is rejected.",
        ),
    ] = False
    degrade: Annotated[
        str | None,
        typer.Option("--degrade", metavar="unstored", help="Serve without storing, above a mark."),
    ] = None
    degrade_above: Annotated[
        float | None, typer.Option("--degrade-above", help="The mark: share of blocks held.")
    ] = None
    pause_above: Annotated[
        float | None,
        typer.Option("--pause-above", help="Share of blocks held above which nobody is admitted,"),
    ] = None
    resume_below: Annotated[
        float | None,
        typer.Option(
            "--resume-below", help="until it is below this.", show_default="as --pause-above"
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """How requests arrive, and what they should see."""

    limit: Annotated[
        int | None, typer.Option("--limit", help="Take the first so many requests of the trace.")
    ] = None
    speedup: Annotated[
        float, typer.Option("--speedup", help="Requests arrive so many times as fast.")
    ] = 1.0
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", help="Requests a second (sessions, with --sessions), drawn by --seed."
        ),
    ] = None
    burstiness: Annotated[
        float,
        typer.Option(
            "--burstiness",
            help="Shape of the gaps at a rate: 1 is Poisson, below it bursts, above it evener.",
        ),
    ] = 1.0
    sessions: Annotated[
        bool,
        typer.Option(
            "--sessions/--no-sessions",
            help="A later turn of a session waits for the answer before it.",
        ),
    ] = False
    think_s: Annotated[
        float | None,
        typer.Option(
            "--think-s",
            metavar="SECONDS",
            help="Between an answer and the next turn; in a closed loop, and the next request.",
            show_default="the trace's",
        ),
    ] = None
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            help="A closed loop: so many at a time, each when one before has ended.",
        ),
    ] = None
    horizon_s: Annotated[
        float | None,
        typer.Option("--horizon", metavar="SECONDS", help="End then; who has not is unfinished."),
    ] = None
    slo_ttft_ms: Annotated[
        float | None, typer.Option("--slo-ttft-ms", help="The objective: TTFT of at most so much.")
    ] = None
    slo_tpot_ms: Annotated[
        float | None, typer.Option("--slo-tpot-ms", help="The objective: TPOT of at most so much.")
    ] = None
    band: Annotated[
        bool | None,
        typer.Option(
            "--band/--no-band",
            help="Run with the low and the high step time too, not the middle alone.",
            show_default="on for one run, off for a sweep",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Many runs instead of one."""

    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=A,B,C",
            help="Run every value of an option, as in max-num-seqs=64,128; of several keys every "
            "combination. May be given again.",
            show_default=False,
        ),
    ] = None
    find_rate: Annotated[
        bool,
        typer.Option(
            "--find-rate/--no-find-rate",
            help="Find the highest rate that holds the objective: of --rate, or without it of "
            "--speedup.",
        ),
    ] = False
    slo_share: Annotated[
        float,
        typer.Option("--slo-share", help="Share of the requests that must meet the objective."),
    ] = 0.99

    @property
    def asked(self) -> bool:
        """Whether there are to be many runs."""
        return bool(self.sweep) or self.find_rate


@dataclasses.dataclass(frozen=True)
class OutputOptions:
    """What is written."""

    output_dir: Annotated[
        str | None,
        typer.Option(
            "--output-dir",
            "-o",
            help="Folder for result.json, summary.json (aiperf's shape), trace.json (for "
            "Perfetto), report.html and the tables.",
        ),
    ] = None
    export: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="jsonl|parquet|jsonl,parquet",
            help="Form of the tables in the folder.",
        ),
    ] = "jsonl"
    step_log: Annotated[
        bool, typer.Option("--step-log", help="Write a table of the steps too.")
    ] = False

    @property
    def exports(self) -> list[str]:
        """Forms of the tables, each once."""
        named = (name.strip() for name in self.export.split(","))
        return list(dict.fromkeys(name for name in named if name))
