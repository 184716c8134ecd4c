"""kvsched: what a language model's KV cache should keep, and what that is worth.

    trace = kvsched.load_trace("traffic.jsonl")
    kvsched.replay(trace, "lru", capacity_blocks=5_000).hit_blocks
    kvsched.study(trace, capacity=5_000, model="llama-3.1-8b", gpu="h100")

Names are loaded when they are first used: importing kvsched loads nothing else.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsched.cache.scheduler import KVCacheScheduler
    from kvsched.policy.base import Policy, RankedPolicy, Setup, ranked_columns
    from kvsched.policy.parameters import Parameter
    from kvsched.policy.registry import names as policies
    from kvsched.replay.curve import lru_curve
    from kvsched.replay.run import replay
    from kvsched.replay.sweep import sweep
    from kvsched.serve.served import simulate
    from kvsched.study.run import study
    from kvsched.trace.load import load_trace
    from kvsched.trace.model import Trace

__all__ = [
    "KVCacheScheduler",
    "Parameter",
    "Policy",
    "RankedPolicy",
    "Setup",
    "Trace",
    "load_trace",
    "lru_curve",
    "policies",
    "ranked_columns",
    "replay",
    "simulate",
    "study",
    "sweep",
]

_HOMES = {
    "KVCacheScheduler": "kvsched.cache.scheduler:KVCacheScheduler",
    "Parameter": "kvsched.policy.parameters:Parameter",
    "Policy": "kvsched.policy.base:Policy",
    "RankedPolicy": "kvsched.policy.base:RankedPolicy",
    "Setup": "kvsched.policy.base:Setup",
    "Trace": "kvsched.trace.model:Trace",
    "load_trace": "kvsched.trace.load:load_trace",
    "lru_curve": "kvsched.replay.curve:lru_curve",
    "policies": "kvsched.policy.registry:names",
    "ranked_columns": "kvsched.policy.base:ranked_columns",
    "replay": "kvsched.replay.run:replay",
    "simulate": "kvsched.serve.served:simulate",
    "study": "kvsched.study.run:study",
    "sweep": "kvsched.replay.sweep:sweep",
}


class _Lazy:
    """A public name, found when it is asked for.

    `replay` and `study` are also rooms of the package. Python sets an attribute for a room when
    it is imported; a descriptor of the module's class comes before it, so that the public name
    always means the function, while ``import kvsched.replay.run`` goes on working.
    """

    def __init__(self, home: str) -> None:
        self._module, self._name = home.split(":")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return getattr(importlib.import_module(self._module), self._name)

    def __set__(self, instance: types.ModuleType, value: object) -> None:
        """Let the import of a room of the same name go by."""


_Package = type(
    "_Package", (types.ModuleType,), {name: _Lazy(home) for name, home in _HOMES.items()}
)
sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from kvsched.foundation.version import VERSION

        return VERSION
    raise AttributeError(f"module 'kvsched' has no attribute {name!r}")
