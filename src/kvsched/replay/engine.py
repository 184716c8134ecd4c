"""Engine rules: what a real engine can store and hit; a policy then orders who leaves.

To add an engine, write a module with a subclass of `Rules`, and add a line to `_BUILT_IN`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.policy.base import Policy
from kvsched.policy.registry import make
from kvsched.replay.run import Replay, replay
from kvsched.trace.model import Trace

GENERIC = "generic"

_BUILT_IN = {
    GENERIC: "kvsched.replay.engine:Generic",
    "vllm": "kvsched.replay.vllm:VLLM",
    "sglang": "kvsched.replay.sglang_rules:SGLang",
}


class Rules(ABC):
    """An engine's rules over one trace; what they share is worked out once."""

    name: ClassVar[str]
    source: ClassVar[str]
    """Engine, version and class that define the rules."""
    definition: ClassVar[str]
    """What can be stored and hit, in one line, for results."""
    own_policy: ClassVar[type[Policy] | str]
    """The engine's own order: what `replay` takes if no policy is named."""

    model_of_own: ClassVar[str | None] = None
    """A policy of the registry that is the engine's own order in a simpler pool, if one is."""

    def __init__(self, trace: Trace, *, cache_generated: bool = True) -> None:
        if self.name != GENERIC and trace.references < trace.total_references:
            raise UsageError(
                f"engine {self.name}: its rules need whole chains, and a sample has holes in them: "
                "leave out --sample"
            )
        self.trace = trace
        self.cache_generated = cache_generated
        """Whether blocks that decoding fills are stored for later requests."""

    @classmethod
    def policy(cls, policy: str | Policy | type[Policy] | None = None) -> Policy:
        """Return the policy that is asked for; the engine's own for None. Raises UsageError."""
        own = cls.own_policy
        if policy is None or (isinstance(own, type) and policy == own.name):
            return make(own)
        return make(policy)

    @property
    def definitions(self) -> dict[str, str]:
        """What the rules make of the definitions that results carry, by name."""
        cached = "yes" if self.cache_generated else "no: they take room while their request runs"
        return {
            "engine": f"{self.name}: {self.definition}",
            "engine_source": self.source,
            "generated_tokens_cached": cached,
        }

    @property
    def held_trace(self) -> Trace:
        """The trace whose nodes are stored and evicted; the first N are those of ``trace``."""
        return self.trace

    @property
    def identity(self) -> str:
        """What beside a policy's code decides a replay, for points that are kept on disk."""
        if self.name == GENERIC:
            return ""
        return f"{self.name} {'all' if self.cache_generated else 'prompts'} "

    @abstractmethod
    def replay(
        self,
        policy: str | Policy | type[Policy] | None,
        capacity_blocks: int,
        *,
        decisions: bool = False,
        compiled: bool | None = None,
    ) -> Replay:
        """Replay the trace under these rules. Raises UsageError as `kvsched.replay` does."""

    @abstractmethod
    def ceiling(self) -> NDArray[np.int32]:
        """Return (R,) blocks that an unlimited cache with these rules hits. O(B)."""

    @abstractmethod
    def seen(self) -> NDArray[np.int32]:
        """Return (R,) blocks from the root that an earlier request held, hittable or not. O(B).

        Never below `ceiling`: what is seen and cannot be hit belongs to the class ``tail``.
        """


class Generic(Rules):
    """No engine's in particular: every node can be stored and hit."""

    name = GENERIC
    source = "kvsched"
    definition = "every node can be stored and hit"
    own_policy = "lru"

    @property
    def definitions(self) -> dict[str, str]:
        """Nothing beside the definitions that results carry anyway."""
        return {}

    def replay(
        self,
        policy: str | Policy | type[Policy] | None,
        capacity_blocks: int,
        *,
        decisions: bool = False,
        compiled: bool | None = None,
    ) -> Replay:
        """Replay the trace as `kvsched.replay` does."""
        chosen = self.policy(policy)
        return replay(self.trace, chosen, capacity_blocks, decisions=decisions, compiled=compiled)

    def ceiling(self) -> NDArray[np.int32]:
        """Return (R,) blocks of each chain that an earlier chain holds. O(B)."""
        from kvsched.replay.generated import walk

        trace = self.trace
        return walk(trace, trace, trace.chain_blocks, trace.chain_blocks)[0]

    def seen(self) -> NDArray[np.int32]:
        """Return the same as `ceiling`: nothing that was seen cannot be hit."""
        return self.ceiling()


def engines() -> list[str]:
    """Names of the engines whose rules are known."""
    return list(_BUILT_IN)


def find_engine(name: str) -> type[Rules]:
    """Return the rules of an engine by name. Raises UsageError, with what would do."""
    if name not in _BUILT_IN:
        raise UsageError(f"unknown engine {name} (known: {', '.join(_BUILT_IN)})")
    module, _, attribute = _BUILT_IN[name].partition(":")
    found: type[Rules] = getattr(importlib.import_module(module), attribute)
    return found
