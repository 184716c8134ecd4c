"""Policies by name. To add one: write its file, add its line to `_BUILT_IN`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from kvsched.foundation.errors import UsageError
from kvsched.policy.base import AUTO, Parameter, Policy
from kvsched.policy.needs import HOW_TO_GIVE

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


def names() -> list[str]:
    """Names of the policies built in and of those that installed packages offer."""
    offered = {point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    return [*_BUILT_IN, *sorted(offered - set(_BUILT_IN))]


def built_in() -> list[str]:
    """Names of the policies that come with kvsched."""
    return list(_BUILT_IN)


def find(reference: str) -> type[Policy]:
    """Return the class that ``reference`` names: NAME, module:Name or path.py:Name.

    Raises UsageError, with what would do, if there is none.
    """
    if reference in _BUILT_IN:
        return _from_module(reference, *_BUILT_IN[reference].split(":"))
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=reference):
        try:
            offered = point.load()
        except (Exception, SystemExit) as error:  # another package may raise anything
            raise UsageError(f"policy {reference}: cannot be loaded ({fault_of(error)})") from error
        return _checked(reference, offered)
    place, _, attribute = reference.rpartition(":")
    if not place and reference.endswith(".py"):
        raise UsageError(f"policy {reference}: name its class too, as in {reference}:MyPolicy")
    if not place and "=" in reference:
        raise UsageError(
            f"unknown policy {reference}: parameters are joined to their policy by colons, as in "
            "ttl:lifetime_s=60:tool_lifetime_s=3"
        )
    if not place:
        raise UsageError(f"unknown policy {reference} (known: {', '.join(names())})")
    if place.endswith(".py"):
        return _checked(reference, _from_file(reference, Path(place), attribute))
    return _from_module(reference, place, attribute)


def make(policy: str | Policy | type[Policy]) -> Policy:
    """Return a policy from an instance, a class, or ``REFERENCE[:PARAMETER=VALUE…]``.

    Raises UsageError for an unknown name, parameter or value.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        reference = getattr(policy, "__name__", repr(policy))
        return _made(reference, _checked(reference, policy), {})
    parts = policy.split(":")
    values: dict[str, float | str] = {}
    while len(parts) > 1 and "=" in parts[-1]:
        name, _, text = parts.pop().partition("=")
        name = name.replace("-", "_")
        if name in values:
            raise UsageError(f"policy {policy}: {name} is given twice")
        try:
            values[name] = text if text == AUTO else float(text)
        except ValueError:
            raise UsageError(f"policy {policy}: {name} must be a number, not {text!r}") from None
    return _made(policy, find(":".join(parts)), values)


def _checked(reference: str, found: object) -> type[Policy]:
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise UsageError(f"policy {reference} is no subclass of kvsched.Policy")
    name = found.name
    if not name:
        raise UsageError(f"policy {reference} has no name: set the class attribute `name`")
    if not isinstance(name, str) or not name.isprintable():
        raise UsageError(f"policy {reference}: its name {name!r} is no printable text")
    parameters = found.parameters
    if not isinstance(parameters, dict) or not all(
        isinstance(key, str) and isinstance(value, Parameter) for key, value in parameters.items()
    ):
        raise UsageError(f"policy {reference}: parameters must be a dict of name to Parameter")
    if not isinstance(found.needs, tuple) or not set(found.needs) <= set(HOW_TO_GIVE):
        known = ", ".join(HOW_TO_GIVE)
        raise UsageError(f"policy {reference}: needs must be a tuple of columns ({known})")
    return found


def _made(reference: str, policy: type[Policy], values: dict[str, float | str]) -> Policy:
    """Return an instance; what a user's own constructor raises is said in one line."""
    try:
        made = policy(**values)
        made.label.encode()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"policy {reference}: cannot be made ({fault_of(error)})") from error
    return made


def fault_of(error: BaseException) -> str:
    """Name what somebody else's code raised, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _from_module(reference: str, module: str, attribute: str) -> type[Policy]:
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise UsageError(
            f"policy {reference}: cannot import {module} ({fault_of(error)})"
        ) from error
    if not hasattr(loaded, attribute):
        raise UsageError(f"policy {reference}: {module} has no {attribute}")
    return _checked(reference, getattr(loaded, attribute))


def _from_file(reference: str, path: Path, attribute: str) -> object:
    if not path.is_file():
        raise UsageError(f"policy {reference}: there is no file {path}")
    # Named by what it says: compiled code cached for one version is not mistaken for another's.
    name = f"kvsched_policy_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"policy {reference}: {path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # a user's file may raise anything
            del sys.modules[name]
            fault = fault_of(error)
            raise UsageError(f"policy {reference}: {path} does not run ({fault})") from error
    module = sys.modules[name]
    if not hasattr(module, attribute):
        raise UsageError(f"policy {reference}: {path} has no {attribute}")
    return getattr(module, attribute)
