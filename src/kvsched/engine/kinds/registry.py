"""The kinds of engines by name."""

from __future__ import annotations

from kvsched.engine.kinds.base import EngineKind
from kvsched.engine.kinds.sglang import SGLANG
from kvsched.engine.kinds.vllm import VLLM
from kvsched.foundation.errors import UsageError

KINDS = {kind.name: kind for kind in (VLLM, SGLANG)}


def find_kind(name: str) -> EngineKind:
    """Return the kind of that name. Raises UsageError for another."""
    if name not in KINDS:
        raise UsageError(f"engine {name!r} is not known: use {', '.join(KINDS)}")
    return KINDS[name]


def kind_of_metrics(text: str) -> EngineKind | None:
    """Return the kind whose metrics these are, or None."""
    return next((kind for kind in KINDS.values() if f"{kind.name}:" in text), None)
