"""The scheduler's settings, in vLLM's names, with its own defaults."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kvsched.foundation.errors import UsageError
from kvsched.serve.state import Rules

GIB = 1 << 30
MOST = 1 << 40
"""The greatest number that any setting may be."""


@dataclass(frozen=True)
class Settings:
    """What the engine is told. Raises UsageError where vLLM would refuse it, or nothing could run.

    Source of the names, meanings and defaults: vLLM 0.32.0, `config/scheduler.py` and
    `config/cache.py`, and `engine/arg_utils.py` for the defaults by device.
    """

    num_gpu_blocks: int
    """Blocks that requests can use: vLLM's own number less its null block."""
    max_num_seqs: int = 256
    """Requests that run at a time."""
    max_num_batched_tokens: int = 2048
    """Tokens that a step computes."""
    max_model_len: int | None = None
    """Tokens of prompt and answer; a longer answer is cut, a prompt of so many is refused."""
    enable_chunked_prefill: bool = True
    """Whether a prompt may be computed in parts."""
    long_prefill_token_threshold: int = 0
    """Tokens of one request in a step, where there are others; 0 for no limit."""
    watermark: float = 0.0
    """Share of all blocks that must stay free when a request is admitted beside others."""
    scheduler_reserve_full_isl: bool = True
    """Whether a request is admitted only if all its tokens so far fit, not its first chunk."""
    enable_prefix_caching: bool = True
    cache_generated: bool = True
    """Whether blocks of generated tokens are cached, as vLLM does."""
    name_generated: bool = True
    """Whether generated blocks are those with which a later request goes on, as in a trace of real
    traffic; else no later request hits them, as where an engine answers with tokens of its own."""

    def __post_init__(self) -> None:
        for name in ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            self._check_whole(name, 1)
        self._check_whole("long_prefill_token_threshold", 0)
        mark = self.watermark
        if isinstance(mark, bool) or not isinstance(mark, int | float) or not 0.0 <= mark < 1.0:
            raise UsageError(f"watermark must be from 0 to below 1, not {mark!r}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens:,}) must be at least "
                f"max_num_seqs ({self.max_num_seqs:,})"
            )

    def _check_whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is None and name == "max_model_len":
            return
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
            raise UsageError(f"{name} must be a whole number of at least {least}, not {value!r}")

    @property
    def watermark_blocks(self) -> int:
        """Blocks of the watermark; vLLM counts its null block in."""
        return int(self.watermark * (self.num_gpu_blocks + 1))

    def rules(self, block_size: int, *, closed_loop: bool) -> Rules:
        """Return the numbers that the compiled loop needs."""
        return Rules(
            block_size=block_size,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            chunked=int(self.enable_chunked_prefill),
            reserve_full=int(self.scheduler_reserve_full_isl),
            watermark_blocks=self.watermark_blocks,
            closed_loop=int(closed_loop),
        )

    def summary(self) -> dict[str, Any]:
        """Return every setting by its name."""
        return dataclasses.asdict(self)


TPU_TOKENS = {"tpu-v5e": 512, "tpu-v5p": 256, "tpu-v6e": 1024}
"""Tokens of a step on a TPU, whatever its memory."""


def device_defaults(memory_bytes: int, device: str) -> dict[str, int]:
    """Return vLLM's own ``max_num_seqs`` and ``max_num_batched_tokens`` of a server on a device.

    ``device`` is the accelerator's name: below 160 GiB an A100 has the smaller defaults, and TPUs
    have tokens of their own.
    """
    name = device.lower()
    if memory_bytes >= 160 * GIB:
        seqs, tokens = 1024, 16384
    elif memory_bytes >= 70 * GIB and "a100" not in name:
        seqs, tokens = 1024, 8192
    else:
        seqs, tokens = 256, 2048
    return {"max_num_seqs": seqs, "max_num_batched_tokens": TPU_TOKENS.get(name, tokens)}
