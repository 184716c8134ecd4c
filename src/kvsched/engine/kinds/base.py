"""What is particular to an engine: its command line and the names of its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvsched.foundation.errors import UsageError


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine. A name of a metric is without ``_total``, which may follow it or not."""

    name: str
    module: str
    """Started as ``python -m MODULE``."""
    caching_on: tuple[str, ...]
    """Flags that turn prefix caching on; empty where its absence of an off flag is the way."""
    caching_off: tuple[str, ...]
    reports_cached: tuple[str, ...]
    """Flags under which `usage` says how many prompt tokens were cached."""
    query_tokens: tuple[str, ...]
    """Counters of prompt tokens looked up, the first that is there counts."""
    hit_tokens: tuple[str, ...]
    counters: tuple[str, ...]
    """All counters that are kept of a run."""
    gauges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Engine's names by ours: running, waiting, kv_use (a share)."""
    finished: tuple[str, ...] = ()
    """Counters of requests that ended."""
    config_info: str | None = None
    """A gauge whose labels ``block_size`` and ``num_gpu_blocks`` are the cache's settings."""
    block_size_gauge: str | None = None
    """Otherwise the gauges of tokens in a block, and of tokens in all blocks."""
    capacity_gauge: str | None = None
    health: str = "/health"
    version: str = "/version"
    reset: str | None = None
    """POST here empties the prefix cache."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables it is started with, unless the user has set them."""
    model_flag: str = "--model"

    def command(
        self, python: str, model: str, host: str, port: int, arguments: Sequence[str]
    ) -> list[str]:
        """Return the command line; the user's ``arguments`` come last, so that they win.

        Raises UsageError where they name the model, host or port, which are not theirs to name.
        """
        ours = {self.model_flag, "--host", "--port"}
        for argument in arguments:
            if argument.split("=")[0] in ours:
                raise UsageError(
                    f"{argument}: after -- stand the engine's own options; model, host and port "
                    "are kvsched's (--model, --port)"
                )
        place = ["--host", host, "--port", str(port)]
        return [python, "-m", self.module, self.model_flag, model, *place, *arguments]

    def caching(self, arguments: Sequence[str], on: bool) -> list[str]:
        """Return ``arguments`` with prefix caching said to be on or off, whatever they said."""
        said = {_plain(flag) for flag in (*self.caching_on, *self.caching_off)}
        kept = [each for each in arguments if _plain(each.split("=")[0]) not in said]
        return [*kept, *(self.caching_on if on else self.caching_off)]

    def reporting(self, arguments: Sequence[str]) -> list[str]:
        """Return ``arguments`` with the flags under which cached tokens are reported."""
        there = {_plain(each.split("=")[0]) for each in arguments}
        more = [flag for flag in self.reports_cached if _plain(flag) not in there]
        return [*arguments, *more]


def _plain(flag: str) -> str:
    """Return a flag as vLLM reads it: dashes and underscores are one."""
    return flag.replace("_", "-")
