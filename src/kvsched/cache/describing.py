"""What is said of a request: to policies, by column; in events, as vLLM says it."""

from __future__ import annotations

from typing import Any

from kvsched.cache.chain import Chain
from kvsched.cache.request import Request
from kvsched.cache.store import Home


def request_values(
    request: Request, chain: Chain, now: float, shift_s: float = 0.0
) -> dict[str, Any]:
    """Return what policies may read of a request, by column; moments are ``shift_s`` later."""
    deadline = request.deadline_s
    return {
        "time_s": now + shift_s,
        "input_tokens": chain.tokens if request.input_tokens is None else request.input_tokens,
        "output_tokens": request.output_tokens,
        "tenant": request.tenant or None,
        "session": request.session,
        "type": request.type,
        "model": request.model,
        "turn": request.turn,
        "priority": request.priority,
        "deadline_s": None if deadline is None else deadline + shift_s,
        "delay_s": request.delay_s,
    }


def announce(
    home: Home, request: Request, chain: Chain, now: float, *, again: bool = False
) -> None:
    """Write what policies may read of a request into a partition's columns. O(columns)."""
    columns = home.partition.columns
    if columns.asked:
        shift = home.partition.shift_s
        columns.write(request_values(request, chain, now, shift), again=again)


def extra_keys(request: Request, first: int, end: int) -> list[tuple[str, ...] | None] | None:
    """Return what beside its tokens is in the hash of each block from ``first`` up to ``end``.

    As vLLM's events say it: an adapter in each block, a salt in the first one; None where the
    hashes were handed in.
    """
    if request.token_ids is None:
        return None
    adapter = () if request.lora_name is None else (request.lora_name,)
    salts = [each for each in (request.cache_salt, request.model_revision) if each is not None]
    return [(adapter if at else (*adapter, *salts)) or None for at in range(first, end)]
