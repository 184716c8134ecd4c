"""Belady with bypass: the bound."""

from __future__ import annotations

from kvsched.policy.opt_fit import OptFit, victim_or_decline


class Opt(OptFit):
    """Belady's rule with the choice not to store: the bound on the hits of any cache.

    A node is not stored when no candidate is needed later than it is. With blocks of equal size
    this is the true optimum in hit blocks; with unequal sizes it is a heuristic.
    """

    name = "opt"
    source = "Belady 1966, with bypass"
    victim = staticmethod(victim_or_decline)
