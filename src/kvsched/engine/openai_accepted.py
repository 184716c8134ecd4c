"""One request at a time, and which fields of a request an engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kvsched.engine.event_loop import in_own_loop
from kvsched.engine.openai import Client
from kvsched.engine.openai_answer import Answer
from kvsched.engine.openai_request import completion_fields
from kvsched.engine.target import Target
from kvsched.foundation.errors import KvschedError

OPTIONAL = {
    "return_token_ids": "tokens of a piece are not known where it has several",
    "min_tokens": "an answer may end before its length",
    "ignore_eos": "an answer may end before its length",
    "stream_options": "the engine's counts of tokens are not known",
}
"""Fields that an engine may refuse, the least needed first, and what is lost without."""
TRIAL_PROMPT = (1, 2)
"""Shorter than a block: it leaves nothing in a prefix cache."""


@dataclass(frozen=True)
class Accepted:
    """What an engine takes, and what it tells."""

    extra_body: dict[str, Any]
    """For `completion_fields`: refused fields, as None."""
    notes: tuple[str, ...]
    """A sentence for each refused field."""
    tells_token_ids: bool
    tells_usage: bool
    tells_cached_tokens: bool
    """Whether ``usage.prompt_tokens_details.cached_tokens`` was there (vLLM needs
    ``--enable-prompt-tokens-details``, SGLang ``--enable-cache-report``)."""


def ask_once(
    target: Target,
    prompt: Sequence[int] | str,
    output_tokens: int,
    *,
    extra_body: dict[str, Any] | None = None,
    timeout_s: float = 120.0,
) -> Answer:
    """Send one request over a connection of its own; return what became of it.

    Raises UsageError as `Client`.
    """
    given = prompt if isinstance(prompt, str) else list(prompt)
    fields = completion_fields(target.model, given, output_tokens, extra_body or {})

    async def ask() -> Answer:
        client = Client(target)
        ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            client.send(
                msgspec.json.encode(fields),
                asked_tokens=output_tokens,
                ttft_timeout_s=timeout_s,
                timeout_s=timeout_s,
                ended=ended.set_result,
            )
            return await ended
        finally:
            await client.close()

    return in_own_loop(ask)


def accepted_fields(
    target: Target,
    *,
    extra_body: dict[str, Any] | None = None,
    timeout_s: float = 120.0,
    trial: Sequence[int] | str = TRIAL_PROMPT,
) -> Accepted:
    """Find by small requests which of the `OPTIONAL` fields an engine takes.

    A refusal (4xx) that names one takes it out; one that names none takes out the least needed
    that is left. At most five requests of two prompt tokens (``trial``) and one token of answer.
    Raises KvschedError where the engine does not answer well without any of them, and UsageError as
    `Client`.
    """
    left = list(OPTIONAL)
    out: dict[str, Any] = {}
    notes: list[str] = []
    while True:
        answer = ask_once(
            target, trial, 1, extra_body=out | (extra_body or {}), timeout_s=timeout_s
        )
        if answer.fault != "client_error" or answer.status in (401, 403, 404) or not left:
            break
        detail = answer.detail or ""
        field = next((each for each in left if each in detail), left[0])
        left.remove(field)
        out[field] = None
        notes.append(f"the engine refuses {field}: {OPTIONAL[field]} ({detail})")
    if answer.fault is not None:
        hint = ""
        if answer.fault == "client_error" and not isinstance(trial, str) and not left:
            hint = " (an engine that takes no token ids is sent text with --prompt-tokenizer)"
        raise KvschedError(f"{target.url}: {answer.fault}: {answer.detail}{hint}")
    return Accepted(
        extra_body=out,
        notes=tuple(notes),
        tells_token_ids=bool(answer.token_counts),
        tells_usage=answer.output_tokens is not None,
        tells_cached_tokens=answer.cached_tokens is not None,
    )
