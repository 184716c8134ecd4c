"""What saved prefill tokens are worth: FLOPs, seconds of one accelerator, throughput.

Everything is a bound. FLOPs are exact sums over requests (whole numbers, rounded once to
float64). Prefill is taken to be bound by arithmetic, decode by the slower of arithmetic and
memory. Scheduling, communication, queueing and padding are left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.catalog.accelerators import Accelerator
from kvsched.catalog.layers import attended_pairs
from kvsched.catalog.model import Model
from kvsched.foundation.errors import UsageError

Int64s = NDArray[np.int64]

DEFAULT_BATCH = 64
"""Requests that share one reading of the weights in a decode step."""
SMALL_GAIN = 0.10
"""Below this gain in throughput a higher hit rate is said to buy little."""


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What prefix hits save on one workload. None is what is not known, never 0."""

    requests: int
    input_tokens: int
    """Prompt tokens."""
    hit_tokens: int
    """Prompt tokens that need no prefill; at least one token of a prompt always does."""
    output_tokens: int
    model: str | None = None
    accelerator: str | None = None
    prefill_flops: float | None = None
    """FLOPs of all prefill without a cache, attention's quadratic part included."""
    prefill_flops_saved: float | None = None
    """FLOPs of the hits: prefill of [0, hit) of each prompt."""
    decode_flops: float | None = None
    """FLOPs of generating the output tokens, which no hit saves."""
    prefill_seconds: float | None = None
    """Least seconds of one accelerator for all prefill without a cache."""
    prefill_seconds_saved: float | None = None
    """Least seconds of one accelerator for the prefill that hits save."""
    decode_seconds: float | None = None
    """Least seconds of one accelerator for decode, at ``batch`` requests a step."""
    decode_share: float | None = None
    """Decode's share of the least seconds (of FLOPs where no accelerator is given), no cache."""
    flops_gain_bound: float | None = None
    """Throughput with the hits over throughput without, at most, where FLOPs alone count."""
    gain_bound: float | None = None
    """The same by seconds: prefill and decode without hits over prefill and decode with them."""
    ceiling_gain_bound: float | None = None
    """`gain_bound` (`flops_gain_bound` without an accelerator) if the cache were unlimited."""
    efficiency: float = 1.0
    batch: int = DEFAULT_BATCH
    assumptions: tuple[str, ...] = ()
    """What the numbers rest on: one sentence each."""
    warnings: tuple[str, ...] = ()
    """Where a higher hit rate cannot buy much, and why: one sentence each."""

    @property
    def hit_share(self) -> float | None:
        """Share of the prompt tokens that hit; None without prompt tokens."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else None

    @property
    def prefill_share_saved(self) -> float | None:
        """Share of prefill's FLOPs that hits save: below `hit_share`, as hits come first."""
        if self.prefill_flops is None or self.prefill_flops_saved is None:
            return None
        return self.prefill_flops_saved / self.prefill_flops if self.prefill_flops else None


class _Cost(NamedTuple):
    """FLOPs of prefill and decode, and the least seconds of each where a device is known."""

    prefill_flops: int
    decode_flops: int
    prefill_s: float | None
    decode_s: float | None

    def gain(self, other: _Cost, by_seconds: bool) -> float | None:
        """This cost over ``other``'s; None where either is nothing."""
        if by_seconds:
            if None in (self.prefill_s, self.decode_s, other.prefill_s, other.decode_s):
                return None
            mine = float(self.prefill_s or 0) + float(self.decode_s or 0)
            theirs = float(other.prefill_s or 0) + float(other.decode_s or 0)
        else:
            mine = float(self.prefill_flops + self.decode_flops)
            theirs = float(other.prefill_flops + other.decode_flops)
        return mine / theirs if theirs else None


def worth(
    input_tokens: NDArray[Any],
    hit_tokens: NDArray[Any],
    output_tokens: NDArray[Any],
    *,
    model: Model | None = None,
    accelerator: Accelerator | None = None,
    ceiling_hit_tokens: NDArray[Any] | None = None,
    efficiency: float = 1.0,
    batch: int = DEFAULT_BATCH,
    kv_cache_dtype: str = "auto",
    weight_dtype: str = "auto",
) -> Worth:
    """What ``hit_tokens`` (R,) of ``input_tokens`` (R,) save, beside ``output_tokens`` (R,).

    ``ceiling_hit_tokens`` (R,) are the hits of an unlimited cache: they decide whether a higher
    hit rate could buy anything. ``efficiency`` (0 to 1) scales every rate of the accelerator;
    1 makes the seconds a lower bound. Without ``model`` only tokens are known, without
    ``accelerator`` no seconds. O(R). Raises UsageError for lengths that do not match, hits
    beyond the prompt, negative numbers, or options out of range.
    """
    n, h, o = _columns(input_tokens, hit_tokens, output_tokens)
    if not 0 < efficiency <= 1:
        raise UsageError(f"efficiency must be above 0, at most 1, not {efficiency:g}")
    if batch < 1:
        raise UsageError(f"batch must be at least 1 request, not {batch}")
    tokens: dict[str, Any] = {
        "requests": len(n),
        "input_tokens": int(n.sum()),
        "hit_tokens": int(h.sum()),
        "output_tokens": int(o.sum()),
        "accelerator": None if accelerator is None else accelerator.name,
        "efficiency": efficiency,
        "batch": batch,
    }
    if model is None:
        said = ("No model is given, so that FLOPs and seconds are unknown.",)
        return Worth(**tokens, assumptions=said)
    coster = _Coster(model, accelerator, efficiency, batch, kv_cache_dtype, weight_dtype)
    nothing = np.zeros_like(h)
    without, with_hits = coster.cost(n, nothing, o), coster.cost(n, h, o)
    ceiling = None
    if ceiling_hit_tokens is not None:
        ceiling = coster.cost(n, _columns(input_tokens, ceiling_hit_tokens, output_tokens)[1], o)
    by_seconds = accelerator is not None
    decode_share = _decode_share(without, by_seconds)
    gain = without.gain(with_hits, by_seconds)
    at_ceiling = None if ceiling is None else without.gain(ceiling, by_seconds)
    at_most = without.gain(coster.cost(n, _columns(n, n, o)[1], o), by_seconds)
    more = None if ceiling is None else with_hits.gain(ceiling, by_seconds)
    saved_s = None
    if without.prefill_s is not None and with_hits.prefill_s is not None:
        saved_s = without.prefill_s - with_hits.prefill_s
    return Worth(
        **tokens,
        model=model.name,
        prefill_flops=float(without.prefill_flops),
        prefill_flops_saved=float(without.prefill_flops - with_hits.prefill_flops),
        decode_flops=float(without.decode_flops),
        prefill_seconds=without.prefill_s,
        prefill_seconds_saved=saved_s,
        decode_seconds=without.decode_s,
        decode_share=decode_share,
        flops_gain_bound=without.gain(with_hits, False),
        gain_bound=gain if by_seconds else None,
        ceiling_gain_bound=at_ceiling,
        assumptions=coster.assumptions(),
        warnings=_warnings(at_most, at_ceiling, more, decode_share, batch if by_seconds else None),
    )


def _columns(
    input_tokens: NDArray[Any], hit_tokens: NDArray[Any], output_tokens: NDArray[Any]
) -> tuple[Int64s, Int64s, Int64s]:
    """The three columns as int64, checked; a full hit leaves the prompt's last token to compute."""
    n, h, o = (np.asarray(each) for each in (input_tokens, hit_tokens, output_tokens))
    if not n.shape == h.shape == o.shape or n.ndim != 1:
        raise UsageError(
            f"input, hit and output tokens must be columns of one length, "
            f"not of shapes {n.shape}, {h.shape}, {o.shape}"
        )
    if any(len(each) and each.dtype.kind not in "iu" for each in (n, h, o)):
        raise UsageError("input, hit and output tokens must be whole numbers")
    if any((each < 0).any() for each in (n, h, o)):
        raise UsageError("input, hit and output tokens must not be negative")
    if (h > n).any():
        raise UsageError(
            f"request {int(np.argmax(h > n)) + 1} hits more tokens than its prompt has"
        )
    n, h, o = (each.astype(np.int64) for each in (n, h, o))
    return n, np.minimum(h, np.maximum(n - 1, 0)), o


def _exact_sum(values: Int64s) -> int:
    """The sum as a Python integer, also where int64 would overflow."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


class _Coster(NamedTuple):
    """Costs of a workload for one model, accelerator and set of assumptions."""

    model: Model
    accelerator: Accelerator | None
    efficiency: float
    batch: int
    kv_cache_dtype: str
    weight_dtype: str

    def cost(self, n: Int64s, h: Int64s, o: Int64s) -> _Cost:
        """Prefill of [h, n) and decode of o tokens, summed over the requests."""
        model = self.model
        prefill = _exact_sum(n - h) * model.token_flops
        for window, each in model.pair_flops().items():
            pairs = attended_pairs(n, window) - attended_pairs(h, window)
            prefill += _exact_sum(pairs) * each
        # A prompt's last token gives the first output token: one step less, one head each.
        steps = np.maximum(o - 1, 0)
        decode = _exact_sum(steps) * model.token_flops + _exact_sum(o) * model.head_flops
        for window, each in model.pair_flops(decode=True).items():
            decode += _exact_sum(self._decode_pairs(n, steps, window)) * each
        if self.accelerator is None:
            return _Cost(prefill, decode, None, None)
        rate = self.accelerator.bf16_flops * self.efficiency
        bandwidth = self.accelerator.bandwidth_bytes_s * self.efficiency
        decode_s = max(decode / rate, self._decode_bytes(n, steps) / bandwidth)
        return _Cost(prefill, decode, prefill / rate, decode_s)

    @staticmethod
    def _decode_pairs(n: Int64s, steps: Int64s, window: int | None) -> Int64s:
        pairs: Int64s = attended_pairs(n + steps, window) - attended_pairs(n, window)
        return pairs

    def _decode_bytes(self, n: Int64s, steps: Int64s) -> float:
        """Bytes of weights, states and cache that the decode steps read or write at least."""
        total = _exact_sum(steps)
        weights = self.model.step_weight_bytes(self.batch, self.weight_dtype)
        read = total * weights / self.batch + float(total * 2 * self.model.state_bytes)
        for window, each in self.model.pair_bytes(self.kv_cache_dtype).items():
            read += float(_exact_sum(self._decode_pairs(n, steps, window)) * each)
        return read

    def assumptions(self) -> tuple[str, ...]:
        """What the costs rest on."""
        said = [
            "FLOPs are two for each parameter of a matrix that a token meets, and attention over "
            "all earlier tokens (no further back than a sliding window); norms, activations and "
            "embeddings are left out.",
            "At least the last token of a prompt is computed, also where all of it hits.",
        ]
        if self.accelerator is None:
            said.append("No accelerator is given, so that seconds are unknown.")
            return tuple(said)
        device = self.accelerator
        share = f"{self.efficiency:.0%} of " if self.efficiency < 1 else ""
        said += [
            f"One {device.name} works at {share}{device.bf16_flops / 1e12:g} TFLOP/s (dense bf16) "
            f"and {share}{device.bandwidth_bytes_s / 1e9:g} GB/s, as if the whole model were on "
            "it: real seconds are more.",
            f"Decode reads the weights once for {self.batch} requests a step, and each request's "
            "cache once a step; it takes the longer of that and its FLOPs.",
            "Hits change prefill only; moving blocks from slower memory is free here.",
            "The bound on throughput takes prefill and decode at the same share of their rates; "
            "more requests a step make decode cheaper and the bound larger, up to that by FLOPs.",
        ]
        return tuple(said)


def _decode_share(cost: _Cost, by_seconds: bool) -> float | None:
    if by_seconds and cost.prefill_s is not None and cost.decode_s is not None:
        total, decode = cost.prefill_s + cost.decode_s, cost.decode_s
    else:
        total = float(cost.prefill_flops + cost.decode_flops)
        decode = float(cost.decode_flops)
    return decode / total if total else None


def _warnings(
    at_most: float | None,
    at_ceiling: float | None,
    more: float | None,
    decode_share: float | None,
    batch: int | None,
) -> tuple[str, ...]:
    """Plain sentences where a higher hit rate cannot buy much; ``batch`` is None by FLOPs."""
    where = "counting FLOPs alone" if batch is None else f"at {batch} requests a decode step"
    most = at_most if at_ceiling is None else at_ceiling
    if most is not None and most < 1 + SMALL_GAIN:
        who = "an unlimited cache" if at_ceiling is not None else "a cache that hit every token"
        why = ""
        if decode_share is not None and decode_share >= 0.5:
            unit = "FLOPs" if batch is None else "time"
            why = f": decode is {decode_share:.0%} of the least {unit}, and no hit shortens it"
        return (f"Even {who} would raise throughput by at most {most - 1:.1%} {where}{why}.",)
    if more is not None and more < 1 + SMALL_GAIN:
        return (
            f"A higher hit rate than this one can raise throughput by at most {more - 1:.1%} more "
            f"{where}: these hits already have most of what an unlimited cache would give.",
        )
    return ()
