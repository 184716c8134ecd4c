"""A model's sizes and costs, all derived from its layers."""

from __future__ import annotations

import math

import msgspec

from kvsched.catalog.layers import Layers, attended_pairs
from kvsched.foundation.errors import UsageError

KV_DTYPE_BYTES = {
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "float32": 4,
    "fp32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
}
"""Bytes of one cached element by the name of `--kv-cache-dtype`, scales not counted."""

WEIGHT_BITS = {
    "bfloat16": 16.0,
    "bf16": 16.0,
    "float16": 16.0,
    "fp16": 16.0,
    "float32": 32.0,
    "fp32": 32.0,
    "fp8": 8.0,
    "int8": 8.0,
    "mxfp4": 4.25,
    "nvfp4": 4.5,
    "int4": 4.25,
}
"""Bits of one matrix parameter, block scales included: one of 8 bits for 32 parameters (mxfp4),
for 16 (nvfp4), 32 bits for 128 (int4)."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A language model: its layers, and what a published `config.json` says of its numbers.

    Vision and audio parts and the extra layers for predicting several tokens are left out.
    """

    name: str
    source: str
    """Where the fields came from."""
    model_type: str
    layers: tuple[Layers, ...]
    hidden_size: int
    vocab_size: int
    tied: bool
    """Whether the output head is the embedding."""
    extra_parameters: int
    """Parameters outside layers, embedding and head: the last norm, learned positions."""
    dtype: str
    """bfloat16, float16 or float32: elements of the cache, and of weights not quantised."""
    linear_bits: float | None
    """Bits of a parameter in the layers' matrices; None where the config is not understood."""
    expert_bits: float | None
    max_context: int | None
    notes: tuple[str, ...] = ()
    """What was assumed: one sentence each."""

    @property
    def layer_count(self) -> int:
        """Number of layers, as the config counts them."""
        return sum(layer.count for layer in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        inside = sum(layer.count * layer.parameters for layer in self.layers)
        return tables + inside + self.extra_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: all but the experts that it is not sent to."""
        idle = sum(
            layer.count * (layer.experts - layer.experts_per_token) * layer.expert_weights
            for layer in self.layers
        )
        return self.parameters - idle

    def weight_bytes(self, weight_dtype: str = "auto") -> int:
        """Bytes of all weights; embedding, head and norms stay in 16 bits where others are fewer.

        Raises UsageError for an unknown name, or for "auto" where the config's quantisation is
        not understood.
        """
        outside, linear, expert = self._weight_parts()
        linear_bits, expert_bits = self.matrix_bits(weight_dtype)
        rest = max(16.0, min(linear_bits, 32.0)) if linear_bits > 16 else 16.0
        bits = outside * rest + linear * linear_bits + expert * expert_bits
        return math.ceil(bits / 8)

    def _weight_parts(self) -> tuple[int, int, int]:
        """Parameters outside quantisation, in matrices, in routed experts."""
        linear = sum(layer.count * layer.weights for layer in self.layers)
        expert = sum(layer.count * layer.experts * layer.expert_weights for layer in self.layers)
        return self.parameters - linear - expert, linear, expert

    def matrix_bits(self, weight_dtype: str = "auto") -> tuple[float, float]:
        """Bits of a parameter in the layers' matrices and in routed experts. Raises UsageError."""
        if weight_dtype != "auto":
            if weight_dtype not in WEIGHT_BITS:
                known = ", ".join(["auto", *WEIGHT_BITS])
                raise UsageError(f"weight dtype {weight_dtype!r} is not known ({known})")
            return WEIGHT_BITS[weight_dtype], WEIGHT_BITS[weight_dtype]
        if self.linear_bits is None or self.expert_bits is None:
            raise UsageError(
                f"{self.name}: its quantization_config is not understood; "
                f"name the weights' dtype ({', '.join(WEIGHT_BITS)})"
            )
        return self.linear_bits, self.expert_bits

    def step_weight_bytes(self, batch: int, weight_dtype: str = "auto") -> float:
        """Bytes of weights that one decode step of ``batch`` requests reads.

        The head and all matrices once; of the routed experts those that at least one request
        is sent to, on average, if each choice were independent and even.
        """
        linear_bits, expert_bits = self.matrix_bits(weight_dtype)
        total = self.vocab_size * self.hidden_size * max(16.0, linear_bits)
        for layer in self.layers:
            total += layer.count * layer.weights * linear_bits
            if layer.experts:
                missed = (1 - layer.experts_per_token / layer.experts) ** batch
                touched = layer.experts * (1 - missed)
                total += layer.count * touched * layer.expert_weights * expert_bits
        return total / 8

    def element_bytes(self, kv_cache_dtype: str = "auto") -> int:
        """Bytes of one cached element; "auto" is the model's own dtype. Raises UsageError."""
        name = self.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        if name not in KV_DTYPE_BYTES:
            known = ", ".join(["auto", *KV_DTYPE_BYTES])
            raise UsageError(f"KV cache dtype {kv_cache_dtype!r} is not known ({known})")
        return KV_DTYPE_BYTES[name]

    def _layer_token_bytes(self, layer: Layers, kv_cache_dtype: str, ranks: int) -> int:
        """Bytes that one layer keeps of one token on one rank."""
        heads = layer.kv_heads
        if layer.kind != "latent" and ranks > 1 and layer.head_elements:
            if heads % ranks and ranks % heads:
                raise UsageError(f"{self.name}: {heads} KV heads do not divide over {ranks} ranks")
            heads = max(1, heads // ranks)
        return heads * layer.head_elements * self.element_bytes(kv_cache_dtype)

    def kv_bytes_per_token(
        self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1
    ) -> int:
        """Bytes that a growing prefix keeps for one more token, on one tensor-parallel rank.

        Layers with full attention and MLA only: sliding windows and recurrent states stop
        growing (`kv_constant_bytes`). KV heads are divided over the ranks and repeated where
        there are more ranks than heads; MLA's vector is on every rank. Raises UsageError.
        """
        ranks = checked_ranks(tensor_parallel_size)
        return sum(
            layer.count * self._layer_token_bytes(layer, kv_cache_dtype, ranks)
            for layer in self.layers
            if layer.grows
        )

    def kv_constant_bytes(self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1) -> int:
        """Most bytes that one request keeps on one rank beside its growing part.

        Sliding windows when full, and recurrent states (divided evenly over the ranks).
        """
        ranks = checked_ranks(tensor_parallel_size)
        total = 0
        for layer in self.layers:
            if layer.window is not None:
                held = self._layer_token_bytes(layer, kv_cache_dtype, ranks)
                total += layer.count * layer.window * held
            total += layer.count * -(-layer.state_bytes // ranks)
        return total

    def kv_bytes(
        self, tokens: int, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1
    ) -> int:
        """Bytes that one request of ``tokens`` tokens keeps on one rank, exactly."""
        ranks = checked_ranks(tensor_parallel_size)
        total = 0
        for layer in self.layers:
            kept = tokens if layer.window is None else min(tokens, layer.window)
            total += layer.count * kept * self._layer_token_bytes(layer, kv_cache_dtype, ranks)
            total += layer.count * -(-layer.state_bytes // ranks) if tokens else 0
        return total

    @property
    def token_flops(self) -> int:
        """FLOPs of one token through all layers without attention's pairs and without the head.

        Two for each parameter of a matrix that the token is multiplied with, and recurrences;
        norms, activations and the embedding's look-up are left out.
        """
        return sum(
            layer.count * (2 * layer.active_weights + layer.token_flops) for layer in self.layers
        )

    @property
    def head_flops(self) -> int:
        """FLOPs of the output head for one token."""
        return 2 * self.vocab_size * self.hidden_size

    def pair_flops(self, decode: bool = False) -> dict[int | None, int]:
        """FLOPs for one attended pair of tokens, summed over the layers of each window."""
        terms: dict[int | None, int] = {}
        for layer in self.layers:
            each = layer.decode_pair_flops if decode else layer.pair_flops
            if each:
                terms[layer.window] = terms.get(layer.window, 0) + layer.count * each
        return terms

    def pair_bytes(
        self, kv_cache_dtype: str = "auto", tensor_parallel_size: int = 1
    ) -> dict[int | None, int]:
        """Bytes of cache that decode reads for one attended token, by window, on one rank."""
        ranks = checked_ranks(tensor_parallel_size)
        terms: dict[int | None, int] = {}
        for layer in self.layers:
            each = self._layer_token_bytes(layer, kv_cache_dtype, ranks)
            if each:
                terms[layer.window] = terms.get(layer.window, 0) + layer.count * each
        return terms

    @property
    def state_bytes(self) -> int:
        """Bytes of all recurrent states of one request."""
        return sum(layer.count * layer.state_bytes for layer in self.layers)

    def prefill_flops(self, start: int, stop: int) -> int:
        """FLOPs of computing prompt tokens [start, stop) over an already cached [0, start).

        Causal attention, windows capped; the head is left out, as only a prompt's last token
        needs it. Additive: [a, b) + [b, c) = [a, c). Raises UsageError for a bad range.
        """
        if not 0 <= start <= stop:
            raise UsageError(f"prefill of tokens [{start}, {stop}) makes no sense")
        pairs = sum(
            each * (attended_pairs(stop, window) - attended_pairs(start, window))
            for window, each in self.pair_flops().items()
        )
        return (stop - start) * self.token_flops + pairs

    def decode_flops(self, context: int) -> int:
        """FLOPs of one decode step of one request that then holds ``context`` tokens."""
        if context < 1:
            raise UsageError(f"decode at a context of {context} tokens makes no sense")
        pairs = sum(
            each * (context if window is None else min(context, window))
            for window, each in self.pair_flops(decode=True).items()
        )
        return self.token_flops + self.head_flops + pairs

    def describe(self) -> tuple[str, ...]:
        """What a request keeps and where, one sentence a kind of layer."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            kept = _kept(layer)
            if kept:
                counts[kept] = counts.get(kept, 0) + layer.count
        return tuple(
            f"{count} layers keep {kept}" if count > 1 else f"1 layer keeps {kept}"
            for kept, count in counts.items()
        )


def _kept(layer: Layers) -> str:
    """What one layer keeps of a request, in words; empty for nothing."""
    if layer.kind == "full":
        plural = "s" if layer.kv_heads > 1 else ""
        return f"keys and values of every token in {layer.kv_heads} KV head{plural}"
    if layer.kind == "latent":
        return f"{layer.head_elements} elements of every token (MLA)"
    if layer.kind == "sliding":
        return f"the last {layer.window} tokens only"
    if layer.kind == "recurrent":
        return f"a state of {layer.state_bytes} bytes a request"
    return ""


def checked_ranks(tensor_parallel_size: int) -> int:
    """``tensor_parallel_size`` if it is at least 1; raises UsageError otherwise."""
    if tensor_parallel_size < 1:
        raise UsageError(f"tensor-parallel size must be at least 1, not {tensor_parallel_size}")
    return tensor_parallel_size
