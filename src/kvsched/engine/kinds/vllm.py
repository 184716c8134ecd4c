"""vLLM's server. Source: vLLM 0.32.0, its command line and metrics."""

from __future__ import annotations

from kvsched.engine.kinds.base import EngineKind

VLLM = EngineKind(
    name="vllm",
    module="vllm.entrypoints.openai.api_server",
    # Without either flag caching is on.
    caching_on=("--enable-prefix-caching",),
    caching_off=("--no-enable-prefix-caching",),
    reports_cached=("--enable-prompt-tokens-details",),
    query_tokens=("vllm:prefix_cache_queries",),
    hit_tokens=("vllm:prefix_cache_hits",),
    counters=(
        "vllm:prefix_cache_queries",
        "vllm:prefix_cache_hits",
        "vllm:external_prefix_cache_queries",
        "vllm:external_prefix_cache_hits",
        "vllm:prompt_tokens",
        "vllm:prompt_tokens_cached",
        "vllm:generation_tokens",
        "vllm:num_preemptions",
        "vllm:request_success",
    ),
    gauges={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_use": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    },
    finished=("vllm:request_success",),
    config_info="vllm:cache_config_info",
    reset="/reset_prefix_cache",
    environment={
        # The reset of the prefix cache is served in this mode alone.
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    },
)
