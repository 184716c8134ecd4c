"""Options of `kvsched bench`, in groups."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

EngineArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- ENGINE OPTIONS]",
        help="After -- what the launched engine is started with.",
        show_default=False,
    ),
]


@dataclasses.dataclass(frozen=True)
class EngineChoice:
    """Which engine is measured."""

    engine_url: Annotated[
        str | None,
        typer.Option("--engine-url", help="An engine that runs, as http://127.0.0.1:8000."),
    ] = None
    launch: Annotated[
        str | None,
        typer.Option(
            "--launch",
            metavar="vllm|sglang",
            help="Start an engine, and stop it afterwards; its own options follow after --.",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="What the engine is started with; with --engine-url the name in requests.",
            show_default="the only one that the engine serves",
        ),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option("--served-model-name", help="The model's name in requests.")
    ] = None
    api_key_env: Annotated[
        str,
        typer.Option("--api-key-env", metavar="NAME", help="The variable that holds the API key."),
    ] = "OPENAI_API_KEY"
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="Python of the engine's environment.",
            show_default="this one",
        ),
    ] = None
    port: Annotated[
        int | None,
        typer.Option("--port", help="Port of a launched engine.", show_default="a free one"),
    ] = None
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable for a launched engine."),
    ] = None
    ready_timeout_s: Annotated[
        float, typer.Option("--ready-timeout", metavar="SECONDS", help="Until it is healthy.")
    ] = 600.0


@dataclasses.dataclass(frozen=True)
class LoadChoice:
    """How requests arrive, and how long they are waited for."""

    request_rate: Annotated[
        float | None,
        typer.Option("--request-rate", help="An open loop: so many requests a second."),
    ] = None
    burstiness: Annotated[
        float,
        typer.Option("--burstiness", help="Of the gaps: 1 Poisson, below 1 bursts; needs a rate."),
    ] = 1.0
    max_concurrency: Annotated[
        str | None,
        typer.Option(
            "--max-concurrency",
            "--concurrency",
            metavar="N[,N…]",
            help="A closed loop: so many at a time. Several values are several workloads.",
        ),
    ] = None
    sessions: Annotated[
        bool,
        typer.Option(
            "--sessions/--no-sessions",
            help="A session's later turn waits for the answer before it, and the think time.",
        ),
    ] = False
    think_s: Annotated[
        float | None,
        typer.Option(
            "--think-time", metavar="SECONDS", help="Between turns.", show_default="the trace's"
        ),
    ] = None
    warmup: Annotated[
        int, typer.Option("--warmup", help="Requests before, which are not counted.")
    ] = 4
    ttft_timeout_s: Annotated[
        float, typer.Option("--ttft-timeout", metavar="SECONDS", help="To the first token.")
    ] = 120.0
    timeout_s: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="To the end of an answer.")
    ] = 600.0
    retries: Annotated[
        int, typer.Option("--retries", help="Further sendings of a request answered with 429.")
    ] = 3
    workers: Annotated[int, typer.Option("--workers", help="Processes that send.")] = 1
    extra_body: Annotated[
        str | None,
        typer.Option("--extra-body", metavar="JSON", help="Merged into each request."),
    ] = None


@dataclasses.dataclass(frozen=True)
class PromptChoice:
    """What of a trace is sent."""

    limit: Annotated[
        int | None, typer.Option("--limit", "--num-prompts", help="The first so many requests.")
    ] = None
    scale: Annotated[
        str, typer.Option("--scale", metavar="SHARE", help="Of each block's tokens, as 1/16.")
    ] = "1"
    output_scale: Annotated[
        str, typer.Option("--output-scale", metavar="SHARE", help="Of each answer's tokens.")
    ] = "1"
    max_prompt_tokens: Annotated[
        int | None, typer.Option("--max-prompt-tokens", help="Cut longer prompts at their end.")
    ] = None
    max_output_tokens: Annotated[
        int | None, typer.Option("--max-output-tokens", help="Cut longer answers.")
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option("--max-model-len", help="Leave out requests that are longer in all."),
    ] = None
    vocab_size: Annotated[
        int | None,
        typer.Option(
            "--vocab-size",
            help="Token ids are below it.",
            show_default="of the model's config.json where --model is a folder, else 30000",
        ),
    ] = None
    prompt_tokenizer: Annotated[
        str | None,
        typer.Option(
            "--prompt-tokenizer",
            metavar="FILE",
            help="Send text of words that are one token each in this tokenizer.json, for an engine "
            "that takes no token ids.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class SharedPrefixes:
    """The workload without a trace: groups of prompts that begin alike."""

    trace: Annotated[
        str | None,
        typer.Option("--trace", help="Send a trace's requests instead (as `bench replay`)."),
    ] = None
    groups: Annotated[int, typer.Option("--groups", help="Prefixes.")] = 8
    requests_per_group: Annotated[
        int, typer.Option("--requests-per-group", help="Prompts with each prefix.")
    ] = 8
    prefix_tokens: Annotated[int, typer.Option("--prefix-tokens", help="Shared.")] = 512
    suffix_tokens: Annotated[int, typer.Option("--suffix-tokens", help="Of each alone.")] = 64
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Of each answer.")] = 16
    speedup: Annotated[float, typer.Option("--speedup", help="Divides the times of --trace.")] = 1.0
    seed: Annotated[int, typer.Option("--seed", help="Of prompts, order and arrivals.")] = 0


@dataclasses.dataclass(frozen=True)
class ResultChoice:
    """What becomes of the numbers."""

    output_dir: Annotated[
        str | None, typer.Option("--output-dir", "-o", help="Folder for the runs and the report.")
    ] = None
    repeats: Annotated[int, typer.Option("--repeats", help="Runs of each setting.")] = 1
    slo_ttft_ms: Annotated[
        float | None, typer.Option("--slo-ttft-ms", help="The objective: TTFT of at most so much.")
    ] = None
    slo_tpot_ms: Annotated[
        float | None, typer.Option("--slo-tpot-ms", help="The objective: TPOT of at most so much.")
    ] = None
    max_error_share: Annotated[
        float,
        typer.Option("--max-error-share", help="Exit 1 where a larger share of requests failed."),
    ] = 0.0
    sample_interval_s: Annotated[
        float,
        typer.Option(
            "--sample-interval", metavar="SECONDS", help="Between looks at the gauges; 0: none."
        ),
    ] = 0.25
    bench_block_size: Annotated[
        int | None,
        typer.Option(
            "--engine-block-size", help="Tokens in a block.", show_default="as the engine says"
        ),
    ] = None
    name: Annotated[str, typer.Option("--name", help="What you call it.")] = ""
    record: Annotated[
        bool, typer.Option("--record", help="Add the results to the registry of records.")
    ] = False
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="PATH", help="The registry.", show_default="yours"),
    ] = None


@dataclasses.dataclass(frozen=True)
class RuleChoice:
    """The thresholds of a decision, and how intervals are drawn."""

    min_hit_rate_gain: Annotated[
        float, typer.Option("--min-hit-rate-gain", help="Prefix caching: gain, a share.")
    ] = 0.05
    max_overhead: Annotated[
        float, typer.Option("--max-overhead", help="Prefix caching: relative.")
    ] = 0.05
    min_ttft_fall: Annotated[float, typer.Option("--min-ttft-fall", help="Relative.")] = 0.0
    max_tpot_rise: Annotated[
        float, typer.Option("--max-tpot-rise", help="Scheduler: relative.")
    ] = 0.0
    min_throughput_gain: Annotated[
        float, typer.Option("--min-throughput-gain", help="Scheduler: relative, of output tokens.")
    ] = 0.05
    max_fairness_fall: Annotated[
        float, typer.Option("--max-fairness-fall", help="Scheduler: absolute.")
    ] = 0.05
    max_throughput_fall: Annotated[
        float, typer.Option("--max-throughput-fall", help="To tune: relative.")
    ] = 0.0
    max_utilization_fall: Annotated[
        float, typer.Option("--max-utilization-fall", help="To tune: relative.")
    ] = 0.0
    judge_points: Annotated[
        bool,
        typer.Option(
            "--judge-points/--judge-intervals",
            help="Take differences as they are, also where the interval contains 0.",
        ),
    ] = False
    draws: Annotated[int, typer.Option("--draws", help="Of the bootstrap.")] = 2_000
    confidence: Annotated[float, typer.Option("--confidence", help="Of the intervals.")] = 0.95
