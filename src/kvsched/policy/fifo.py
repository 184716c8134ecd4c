"""First in, first out."""

from __future__ import annotations

from kvsched.kernel import hooks
from kvsched.policy.base import RankedPolicy


class FIFO(RankedPolicy):
    """The node stored longest ago leaves first, however often it was hit.

    Closed under ancestors: only leaves are ranked; a parent that becomes one again has the rank
    of its own insertion.
    """

    name = "fifo"
    source = "SGLang `fifo` (creation time)"
    biased_when_sampled = True
    on_hit = staticmethod(hooks.on_hit)
    on_release = staticmethod(hooks.on_release)
