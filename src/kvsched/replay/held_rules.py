"""What the rules of engines with a pool of blocks share: what is held, and what can be hit."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import compilation_enabled
from kvsched.policy.base import Policy
from kvsched.replay.engine import Rules
from kvsched.replay.generated import Held, held_blocks, walk
from kvsched.replay.loop import Counts, Decisions, Limits
from kvsched.replay.run import Replay, check_capacity, cut, new_columns, new_limits, run_tuned
from kvsched.trace.model import Trace


class HeldRules(Rules):
    """Full blocks only, at most the prompt less its last token hit, generated blocks stored.

    A subclass names its own order and runs it in `run_own`; any other policy of the registry
    orders nodes under the same limits.
    """

    @functools.cached_property
    def held(self) -> Held:
        """What every request holds while it runs. O(B), once. Raises UsageError."""
        if self.trace.unequal:
            raise UsageError(f"engine {self.name} has blocks of one size; the trace's are unequal")
        return held_blocks(self.trace, cache_generated=self.cache_generated)

    @property
    def held_trace(self) -> Trace:
        """The trace with chains as long as each request ever holds blocks."""
        return self.held.trace

    @property
    def definitions(self) -> dict[str, str]:
        """The engine's definitions, with where generated tokens came from, in blocks."""
        found = super().definitions
        named = self.held.named
        if self.cache_generated:
            found["generated_tokens_cached"] = (
                f"yes: {named.session:,} blocks named by a later request of the same session, "
                f"{named.other:,} by another later request, {named.anonymous:,} anonymous"
            )
        return found | {
            "tail_counted": "no: a partial last block of a prompt takes room while the request "
            "runs and cannot be hit",
            "block": "one block of the pool; a node is a block of one particular prefix, "
            "identified by (parent, key)",
        }

    def is_own(self, policy: Policy) -> bool:
        """Whether ``policy`` is an order of the engine itself, which `run_own` runs."""
        return isinstance(self.own_policy, type) and type(policy) is self.own_policy

    def run_own(
        self,
        policy: Policy,
        capacity: int,
        counts: Counts,
        decisions: Decisions,
        limits: Limits,
        compiled: bool,
    ) -> int:
        """Replay under the engine's own order; fill the columns, return the blocks in use."""
        raise NotImplementedError

    def replay(
        self,
        policy: str | Policy | type[Policy] | None,
        capacity_blocks: int,
        *,
        decisions: bool = False,
        compiled: bool | None = None,
    ) -> Replay:
        """Replay the trace: under the engine's own order, or a policy's over nodes."""
        capacity = check_capacity(capacity_blocks)
        chosen = self.policy(policy)
        chosen.check(self.trace)
        if compiled is None:
            compiled = compilation_enabled()
        held = self.held
        counts, log = new_columns(len(self.trace), held.trace.references if decisions else 0)
        limits = new_limits(held.limit, held.kept)
        if self.is_own(chosen):
            used = self.run_own(chosen, capacity, counts, log, limits, compiled)
            tuned = None
        else:
            used, tuned = run_tuned(held.trace, chosen, capacity, counts, log, compiled, limits)
        kept = cut(log, counts) if decisions else None
        return Replay(self.trace, chosen, capacity, *counts, int(used), kept, self, limits, tuned)

    @functools.cached_property
    def _walked(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        held = self.held
        return walk(self.trace, held.trace, held.kept, held.limit)

    def ceiling(self) -> NDArray[np.int32]:
        """Return (R,) blocks that an unlimited pool hits. O(B), once."""
        return self._walked[0]

    def seen(self) -> NDArray[np.int32]:
        """Return (R,) blocks from the root that an earlier request held. O(B), once."""
        return self._walked[1]
