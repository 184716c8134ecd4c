"""The engine that is measured: one that runs already, or one that is started for it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsched.engine.counters import (
    CacheConfig,
    cache_config,
    detect_kind,
    engine_version,
    scrape,
    served_models,
    wanted_names,
)
from kvsched.engine.kinds.base import EngineKind
from kvsched.engine.launch import LaunchSettings, Running, launched
from kvsched.engine.target import Target
from kvsched.evidence.bench.workload import BenchWorkload
from kvsched.foundation.errors import KvschedError, UsageError

SECRET = re.compile("KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
"""Names of variables whose values are in no result."""


@dataclass(frozen=True)
class LiveEngine:
    """An engine that answers."""

    target: Target
    kind: EngineKind | None
    cache: CacheConfig
    max_model_len: int | None
    facts: dict[str, Any] = field(default_factory=dict)
    """For the result."""
    running: Running | None = None
    """Where it was started here."""


def connect(
    url: str, model: str | None, api_key: str | None, running: Running | None = None
) -> LiveEngine:
    """Ask the engine at ``url`` what it is; without ``model`` it must serve one alone.

    Raises UsageError where the model is not served, or which one is not clear, and
    EngineSilentError where nobody answers.
    """
    target = Target(url, model or "", api_key)
    models = {str(each["id"]): each for each in served_models(target)}
    if model is None:
        if len(models) != 1:
            raise UsageError(f"--model: the engine serves {', '.join(models) or 'none'}: name one")
        model = next(iter(models))
        target = Target(url, model, api_key)
    elif model not in models:
        raise UsageError(f"--model {model}: the engine serves {', '.join(models) or 'none'}")
    kind = detect_kind(target)
    cache, version = CacheConfig(), None
    if kind is not None:
        version = engine_version(kind, target)
        with contextlib.suppress(KvschedError):
            cache = cache_config(kind, scrape(target, wanted_names(kind)))
    longest = models[model].get("max_model_len")
    facts: dict[str, Any] = {
        "kind": None if kind is None else kind.name,
        "url": target.url,
        "model": model,
        "version": version,
        "block_size": cache.block_size,
        "blocks": cache.blocks,
        "max_model_len": longest,
        "cache": cache.labels,
    }
    return LiveEngine(
        target=target,
        kind=kind,
        cache=cache,
        max_model_len=longest if isinstance(longest, int) else None,
        facts=facts,
        running=running,
    )


@contextlib.contextmanager
def started(
    settings: LaunchSettings,
    served_name: str | None,
    log: Path,
    waiting: Callable[[float], None] | None = None,
    api_key: str | None = None,
) -> Iterator[LiveEngine]:
    """Start an engine, yield it when it is healthy, and stop it. Raises as `launched`, `connect`.

    Cached tokens are asked to be reported. The model's name in requests is ``served_name``, or the
    last part of the model's path, so that no folder is in a result.
    """
    name = served_name or Path(settings.model).name or settings.model
    flags = [*settings.kind.reporting(settings.arguments), "--served-model-name", name]
    full = LaunchSettings(**{**vars(settings), "arguments": tuple(flags)})
    with launched(full, log, waiting) as running:
        found = connect(running.url, name, api_key, running)
        found.facts["arguments"] = flags
        found.facts["launched"] = True
        found.facts["env"] = {
            name: "(not shown)" if SECRET.search(name) else value
            for name, value in settings.environment.items()
        }
        yield found


def check_fits(workload: BenchWorkload, engine: LiveEngine) -> None:
    """Raise UsageError where requests are longer than the engine takes."""
    if engine.max_model_len is None:
        return
    long = sum(
        len(prompt) + int(output) > engine.max_model_len
        for prompt, output in zip(workload.prompts, workload.output_tokens, strict=True)
    )
    if long:
        raise UsageError(
            f"{long:,} of {len(workload):,} requests are longer than the engine's "
            f"{engine.max_model_len:,} tokens: --max-model-len {engine.max_model_len} leaves them "
            "out, --scale and --max-prompt-tokens make them shorter"
        )
