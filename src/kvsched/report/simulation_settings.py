"""What a simulated run was made from, in two lines."""

from __future__ import annotations

from typing import Any

from kvsched.report.format import block_tokens, count, name, seconds
from kvsched.serve.served import ServeResult


def settings_line(result: ServeResult) -> str:
    """Return what was simulated, in one line."""
    config = result.config
    parts = []
    if config["model"] is not None and config["gpu"] is not None:
        parts.append(f"{config['model']} on {config['tensor_parallel_size']} × {config['gpu']}")
    parts += [
        f"{count(config['num_gpu_blocks'])} blocks of {block_tokens(config['block_size'])}",
        f"at most {count(config['max_num_seqs'])} requests and "
        f"{count(config['max_num_batched_tokens'])} tokens a step",
        f"{config['scheduling_policy']}, {config['eviction_policy']}",
    ]
    if not config["enable_prefix_caching"]:
        parts.append("no prefix caching")
    if not config["enable_chunked_prefill"]:
        parts.append("no chunked prefill")
    parts += arrival_parts(config) + memory_parts(config)
    if config["horizon_s"] is not None:
        parts.append(f"until {seconds(config['horizon_s'])}")
    return "; ".join(name(part) for part in parts)


def arrival_parts(config: dict[str, Any]) -> list[str]:
    """Say how requests arrive, and at how many engines, where it is not the trace's way."""
    parts = []
    one = "sessions" if config["sessions"] else "requests"
    if config["concurrency"] is not None:
        parts.append(f"closed loop of {count(config['concurrency'])}")
    elif config["all_at_once"]:
        parts.append(f"all {one} at once")
    elif config["rate"] is not None:
        gaps = config["burstiness"]
        how = "" if gaps == 1 else f" ({'even' if gaps is None else f'burstiness {gaps:g}'})"
        parts.append(f"{config['rate']:g} {one} a second{how}")
    elif config["speedup"] != 1:
        parts.append(f"arrivals {config['speedup']:g} times as fast")
    if config["sessions"]:
        think = config["think_s"]
        told = "the trace's times" if think is None else seconds(think)
        parts.append(f"a turn waits for the answer before it and thinks {told}")
    engines = config["data_parallel_size"]
    if engines > 1 or config["routing"] is not None:
        parts.append(f"{count(engines)} engines, {config['routing']}")
    return parts


def memory_parts(config: dict[str, Any]) -> list[str]:
    """Say which limits and which second tier there are."""
    limits = [
        f"{key.replace('_', '-')} {config[key]:g}"
        for key in ("max_waiting", "max_waiting_tokens", "max_queue_s", "degrade_above")
        if config[key] is not None
    ]
    if config["deadlines"]:
        limits.append("deadlines")
    if config["pause_above"] is not None:
        limits.append(f"pause above {config['pause_above']:g}")
    if config["swap_space"] is not None:
        limits.append(
            f"swap space {config['swap_space']:g} GiB, {count(config['swap_blocks'])} blocks, at "
            f"{config['swap_bandwidth']:g} GB/s"
        )
    return limits


def step_time_line(result: ServeResult) -> str:
    """Return which step time was used, in one line."""
    of = result.step_time
    kind = "a roofline over the catalogue" if of.kind == "roofline" else "fitted coefficients"
    file = "" if of.file is None else f" of {name(of.file)}"
    band = "; low and high are runs of their own" if result.bands else ""
    return f"Step time: {kind}{file}, the middle of its band{band}"
