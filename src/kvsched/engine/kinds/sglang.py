"""SGLang's server. Source: SGLang 0.5.23, its command line and metrics."""

from __future__ import annotations

from kvsched.engine.kinds.base import EngineKind

SGLANG = EngineKind(
    name="sglang",
    module="sglang.launch_server",
    # The radix cache is on unless it is turned off: no flag says on.
    caching_on=(),
    caching_off=("--disable-radix-cache",),
    reports_cached=("--enable-cache-report", "--enable-metrics"),
    query_tokens=("sglang:prompt_tokens",),
    hit_tokens=("sglang:cached_tokens",),
    counters=(
        "sglang:prompt_tokens",
        "sglang:cached_tokens",
        "sglang:generation_tokens",
        "sglang:num_requests",
        "sglang:num_retracted_requests",
    ),
    gauges={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "kv_use": ("sglang:token_usage",),
    },
    finished=("sglang:num_requests",),
    block_size_gauge="sglang:page_size",
    capacity_gauge="sglang:max_total_num_tokens",
    version="/server_info",
    reset="/flush_cache",
    model_flag="--model-path",
)
