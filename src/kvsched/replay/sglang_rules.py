"""SGLang as an engine: its strategies over radix nodes, and the rules for any other policy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import digest
from kvsched.policy.base import Policy, Setup
from kvsched.policy.registry import make
from kvsched.replay.held_rules import HeldRules
from kvsched.replay.loop import Counts, Decisions, Limits
from kvsched.replay.sglang import DEFAULT, Pages, serve, sglang_replay
from kvsched.replay.sglang_tree import STRATEGIES


class Radix(Policy):
    """An eviction strategy of SGLang's own radix tree, by SGLang's name."""

    source = "SGLang 0.5.23, RadixCache"

    def prepare(self, setup: Setup) -> Any:  # noqa: ARG002  # the contract's argument
        """Raise UsageError: the strategy orders radix nodes, which only the engine's rules have."""
        raise UsageError(f"policy {self.name} is a strategy of SGLang: it needs --engine sglang")


def _strategy(name: str) -> type[Radix]:
    summary = f"SGLang's strategy {name}: orders radix nodes, and a node leaves whole."
    return type(f"Radix{name.capitalize()}", (Radix,), {"name": name, "__doc__": summary})


RADIX: dict[str, type[Radix]] = {name: _strategy(name) for name in STRATEGIES}


class SGLang(HeldRules):
    """SGLang's radix cache; the trace's blocks are its pages.

    A policy that has the name of one of SGLang's strategies is that strategy, exact over radix
    nodes; any other of the registry orders pages under the same limits.
    """

    name = "sglang"
    source = "SGLang 0.5.23, RadixCache with a paged allocator"
    definition = (
        "pages of the trace's block size; a radix node holds a run of pages, splits where a prompt "
        "differs and leaves whole; at most the prompt less its last token can hit, in whole pages; "
        "a prompt that the pool can never hold is refused, an output is cut to what is left"
    )
    own_policy: ClassVar[type[Policy]] = RADIX[DEFAULT]

    @classmethod
    def policy(cls, policy: str | Policy | type[Policy] | None = None) -> Policy:
        """Return SGLang's strategy of that name, else the registry's policy. Raises UsageError."""
        if policy is None:
            return make(cls.own_policy)
        return make(RADIX.get(policy, policy) if isinstance(policy, str) else policy)

    @property
    def identity(self) -> str:
        """The engine's identity, with the code of the tree."""
        return f"{super().identity}{digest(serve, {})} "

    @property
    def definitions(self) -> dict[str, str]:
        """The engine's definitions, with what the policies' names stand for."""
        return super().definitions | {
            "policies": f"{', '.join(STRATEGIES)} are SGLang's own strategies, over radix nodes; "
            "any other policy works page by page",
        }

    def is_own(self, policy: Policy) -> bool:
        """Whether ``policy`` is a strategy of SGLang's."""
        return isinstance(policy, Radix)

    def run_own(
        self,
        policy: Policy,
        capacity: int,
        counts: Counts,
        decisions: Decisions,
        limits: Limits,
        compiled: bool,
    ) -> int:
        """Replay SGLang's tree under one of its strategies."""
        trace, held = self.trace, self.held
        known = trace.priority
        pages = Pages(
            page_size=trace.block_size,
            parent=held.trace.parent,
            starts=held.trace.starts,
            chains=held.trace.chains,
            input_tokens=trace.input_tokens,
            output_tokens=trace.output_tokens,
            kept=held.kept,
            limit=held.limit,
            priority=np.zeros(len(trace), np.int64) if known is None else known.astype(np.int64),
        )
        used, refused = sglang_replay(
            pages, policy.name, capacity, counts, decisions, compiled, known=limits.known
        )
        limits.refused[:] = refused != 0
        return used
