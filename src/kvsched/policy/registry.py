"""Policies by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

from kvsched.foundation.by_name import ByName, fault_of
from kvsched.policy.base import AUTO, Policy
from kvsched.policy.needs import check_needs
from kvsched.policy.parameters import check_parameters

__all__ = ["ENTRY_POINTS", "built_in", "fault_of", "find", "make", "names"]

ENTRY_POINTS = "kvsched.policies"
"""Group in which an installed package offers policies of its own."""

_BUILT_IN = {
    "lru": "kvsched.policy.lru:LRU",
    "fifo": "kvsched.policy.fifo:FIFO",
    "lfu": "kvsched.policy.lfu:LFU",
    "slru": "kvsched.policy.slru:SLRU",
    "chapter": "kvsched.policy.chapter:Chapter",
    "decay": "kvsched.policy.decay:Decay",
    "sieve": "kvsched.policy.sieve:Sieve",
    "s3fifo": "kvsched.policy.s3fifo:S3FIFO",
    "arc": "kvsched.policy.arc:ARC",
    "wtinylfu": "kvsched.policy.wtinylfu:WTinyLFU",
    "marconi": "kvsched.policy.marconi:Marconi",
    "wild": "kvsched.policy.wild:Wild",
    "mru": "kvsched.policy.mru:MRU",
    "filo": "kvsched.policy.filo:FILO",
    "priority": "kvsched.policy.priority:Priority",
    "ttl": "kvsched.policy.ttl:TTL",
    "tlru": "kvsched.policy.tlru:TLRU",
    "gdsf": "kvsched.policy.gdsf:GDSF",
    "pgdsf": "kvsched.policy.pgdsf:PGDSF",
    "opt": "kvsched.policy.opt:Opt",
    "opt-fit": "kvsched.policy.opt_fit:OptFit",
}


def _check(reference: str, found: type[Policy]) -> None:
    check_parameters("policy", reference, found.parameters)
    check_needs("policy", reference, found.needs)


_POLICIES = ByName(
    kind="policy",
    base=Policy,
    shown_base="kvsched.Policy",
    built_in=_BUILT_IN,
    entry_points=ENTRY_POINTS,
    example="ttl:lifetime_s=60:tool_lifetime_s=3",
    check=_check,
    words=(AUTO,),
)


def names() -> list[str]:
    """Names of the policies built in and of those that installed packages offer."""
    return _POLICIES.names()


def built_in() -> list[str]:
    """Names of the policies that come with kvsched."""
    return list(_BUILT_IN)


def find(reference: str) -> type[Policy]:
    """Return the class that ``reference`` names: NAME, module:Name or path.py:Name.

    Raises UsageError, with what would do, if there is none.
    """
    return _POLICIES.find(reference)


def make(policy: str | Policy | type[Policy]) -> Policy:
    """Return a policy from an instance, a class, or ``REFERENCE[:PARAMETER=VALUE…]``.

    Raises UsageError for an unknown name, parameter or value.
    """
    return _POLICIES.make(policy)
