"""An engine's own counters around a run, and its gauges while it goes on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from kvsched.engine.kinds.base import EngineKind
from kvsched.engine.kinds.registry import KINDS, kind_of_metrics
from kvsched.engine.metrics_text import Scrape, load_parser, parse
from kvsched.engine.plain_http import EngineSilentError, ask
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError

METRICS = "/metrics"
STARTED = "process_start_time_seconds"


def wanted_names(kind: EngineKind) -> set[str]:
    """Every name of a metric that is read of a kind."""
    names = {*kind.counters, *kind.query_tokens, *kind.hit_tokens, *kind.finished, STARTED}
    names |= {name for ways in kind.gauges.values() for name in ways}
    more = (kind.config_info, kind.block_size_gauge, kind.capacity_gauge)
    return names | {name for name in more if name is not None}


def scrape(target: Target, names: Collection[str], *, timeout_s: float = 5.0) -> Scrape:
    """Return what the engine says now.

    Raises EngineSilentError, KvschedError for what is no metrics, and UsageError where the parser
    is not installed.
    """
    load_parser()
    data = ask(target, METRICS, timeout_s=timeout_s)
    return parse(data.decode("utf-8", "replace"), names)


def detect_kind(target: Target) -> EngineKind | None:
    """Return the kind that the engine's metrics are of, or None where they do not say."""
    try:
        return kind_of_metrics(ask(target, METRICS).decode("utf-8", "replace"))
    except EngineSilentError:
        return None


@dataclass(frozen=True)
class Growth:
    """What counters did between two scrapes."""

    counters: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """By the engine's name: before, after, delta; delta None where it is not known."""
    missing: dict[str, str] = field(default_factory=dict)
    """Why a counter is not there, or its growth not known; ``*`` for all of them."""

    def delta(self, names: Collection[str]) -> tuple[float | None, str]:
        """Return the growth of the first of ``names`` that is there, or None and why."""
        for name in names:
            if name in self.counters:
                return self.counters[name]["delta"], self.missing.get(name, "")
        if "*" in self.missing:
            return None, self.missing["*"]
        return None, f"the engine has no counter {' or '.join(names)}" if names else "no counter"


def growth(kind: EngineKind, before: Scrape | str, after: Scrape | str) -> Growth:
    """Return how the counters grew; a text in place of a scrape says why there is none.

    A counter that fell, or another start of the process, says that the engine began anew: then no
    growth is known.
    """
    for told in (before, after):
        if isinstance(told, str):
            return Growth({}, {"*": told})
    assert not isinstance(before, str)  # noqa: S101  # ruled out above
    assert not isinstance(after, str)  # noqa: S101
    starts = (before.total(STARTED), after.total(STARTED))
    anew = None not in starts and starts[0] != starts[1]
    counters: dict[str, dict[str, float | None]] = {}
    missing: dict[str, str] = {}
    for name in kind.counters:
        one, other = before.total(name), after.total(name)
        if one is None and other is None:
            continue
        # A counter with labels is first there when it has counted something.
        one, delta = one or 0.0, None
        if other is None:
            missing[name] = f"{name} was there before the run and not after it"
        elif anew or other < one:
            missing[name] = f"{name} began anew during the run: the engine was started again"
        else:
            delta = other - one
        counters[name] = {"before": one, "after": other, "delta": delta}
    return Growth(counters, missing)


@dataclass(frozen=True)
class CacheConfig:
    """What an engine's metrics say of its cache; None where they do not."""

    block_size: int | None = None
    blocks: int | None = None
    labels: dict[str, str] = field(default_factory=dict)


def cache_config(kind: EngineKind, found: Scrape) -> CacheConfig:
    """Return block size and blocks; of a server with several engines the blocks of all."""
    if kind.config_info is not None:
        labels = found.labels(kind.config_info)
        if not labels:
            return CacheConfig()
        sizes = {_whole(each.get("block_size")) for each in labels}
        blocks = [_whole(each.get("num_gpu_blocks")) for each in labels]
        known = [each for each in blocks if each is not None]
        return CacheConfig(
            block_size=sizes.pop() if len(sizes) == 1 else None,
            blocks=sum(known) if len(known) == len(blocks) else None,
            labels={name: value for name, value in labels[0].items() if name != "engine"},
        )
    size = None if kind.block_size_gauge is None else found.mean(kind.block_size_gauge)
    tokens = None if kind.capacity_gauge is None else found.total(kind.capacity_gauge)
    whole = None if not size else int(size)
    return CacheConfig(whole, int(tokens) // whole if whole and tokens is not None else None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def engine_version(kind: EngineKind, target: Target) -> str | None:
    """Return the version that the engine says it is, or None."""
    try:
        told = json.loads(ask(target, kind.version))
    except (EngineSilentError, ValueError, RecursionError):
        return None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


def served_models(target: Target) -> list[dict[str, Any]]:
    """Return the models that the engine serves, as its list has them. Raises EngineSilentError."""
    try:
        data = ask(target, "/v1/models")
    except EngineSilentError as error:
        if error.status not in (401, 403):
            raise
        how = "refuses this API key" if target.api_key else "asks for an API key"
        raise EngineSilentError(f"{error}: the engine {how}", error.status) from error
    try:
        found = json.loads(data)["data"]
        return [each for each in found if isinstance(each.get("id"), str)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineSilentError(f"GET {target.url}/v1/models: no list of models") from error


def reset_prefix_cache(kind: EngineKind, target: Target, tries: int = 20) -> str | None:
    """Empty the prefix cache; return None where that was done, else why not.

    vLLM refuses while a block is in use, which it may be a moment after the last answer.
    """
    if kind.reset is None:
        return f"{kind.name} has no way to empty its prefix cache"
    for _ in range(tries):
        try:
            data = ask(target, kind.reset, method="POST", timeout_s=30.0)
        except EngineSilentError as error:
            if error.status in (404, 405):
                return f"the engine does not serve {kind.reset}"
            return str(error)
        try:
            told = json.loads(data) if data else {}
        except (ValueError, RecursionError):
            told = {}
        if not (isinstance(told, dict) and told.get("success") is False):
            return None
        time.sleep(0.1)
    return "the engine would not empty its prefix cache: blocks stayed in use"


class Sampler:
    """Reads the gauges every ``interval_s`` in a thread, between `with` and its end.

    The first time is after the first interval: at the start there is nothing to see yet.
    """

    def __init__(self, kind: EngineKind, target: Target, interval_s: float = 0.25) -> None:
        self.kind, self.target, self.interval_s = kind, target, interval_s
        self.at_s: list[float] = []
        """Seconds from the start of sampling."""
        self.values: dict[str, list[float | None]] = {name: [] for name in kind.gauges}
        self.failures = 0
        self.last_failure = ""
        self._names = {name for ways in kind.gauges.values() for name in ways}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        wait_s = self.interval_s
        while not self._ended.wait(wait_s):
            at = time.monotonic() - self._begun
            try:
                found = scrape(self.target, self._names, timeout_s=max(self.interval_s, 1.0))
            except KvschedError as error:
                self.failures += 1
                self.last_failure = str(error)
            else:
                self.at_s.append(at)
                for name, ways in self.kind.gauges.items():
                    self.values[name].append(self._read(found, name, ways))
            wait_s = max(self.interval_s - (time.monotonic() - self._begun - at), 0.0)

    def _read(self, found: Scrape, name: str, ways: tuple[str, ...]) -> float | None:
        for way in ways:
            value = found.mean(way) if name == "kv_use" else found.total(way)
            if value is not None:
                return value
        return None

    @property
    def problem(self) -> str | None:
        """What to say of samples that failed."""
        if not self.failures:
            return None
        tried = self.failures + len(self.at_s)
        return f"{self.failures} of {tried} samples of the gauges failed ({self.last_failure})"


def kind_named(name: str | None, target: Target) -> EngineKind | None:
    """Return the kind of that name, or without a name the one that the metrics are of."""
    return KINDS[name] if name in KINDS else detect_kind(target)
