"""Layers from config fields: attention of every kind, recurrences, feed-forward, experts."""

from __future__ import annotations

import msgspec

from kvsched.catalog.fields import Fields
from kvsched.catalog.layers import Layers

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def hidden(fields: Fields) -> int:
    """Width of the residual stream."""
    return fields.count("hidden_size", "n_embd")


def together(*parts: Layers) -> Layers:
    """One layer made of ``parts``, of which the first says what it keeps of a request."""
    first = parts[0]
    experts = next((part for part in parts if part.experts), first)
    return msgspec.structs.replace(
        first,
        weights=sum(part.weights for part in parts),
        other=sum(part.other for part in parts),
        expert_weights=experts.expert_weights,
        experts=experts.experts,
        experts_per_token=experts.experts_per_token,
    )


def head_dim(fields: Fields) -> int:
    """Elements of one head: stated, else the width over the heads."""
    stated = fields.get("head_dim", "attention_head_dim")
    if stated is not None:
        return fields.count("head_dim", "attention_head_dim")
    width, heads = hidden(fields), fields.count("num_attention_heads", "n_head")
    if width % heads:
        fields.fault(f"hidden_size {width} does not divide into {heads} num_attention_heads")
    return width // heads


def grouped(
    fields: Fields,
    *,
    window: int | None = None,
    kv_heads: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    qk_norm: bool = False,
    gate: bool = False,
    sinks: bool = False,
) -> Layers:
    """Attention with grouped (or single, or equal) KV heads; ``gate`` doubles the query."""
    width, size = hidden(fields), head_dim(fields)
    heads = fields.count("num_attention_heads", "n_head")
    if kv_heads is None:
        kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        fields.fault(f"num_attention_heads {heads} is no multiple of the {kv_heads} KV heads")
    queries = heads * size * (2 if gate else 1)
    bias = queries + 2 * kv_heads * size if qkv_bias else 0
    return Layers(
        kind="full" if window is None else "sliding",
        window=window,
        kv_heads=kv_heads,
        head_elements=2 * size,
        pair_flops=4 * heads * size,
        decode_pair_flops=4 * heads * size,
        weights=width * (queries + 2 * kv_heads * size) + heads * size * width,
        other=bias
        + (width if out_bias else 0)
        + (2 * size if qk_norm else 0)
        + (heads if sinks else 0),
    )


def latent(fields: Fields) -> Layers:
    """Multi-head latent attention: one compressed vector and one rotated key a token."""
    width, heads = hidden(fields), fields.count("num_attention_heads")
    rank, rope = fields.count("kv_lora_rank"), fields.count("qk_rope_head_dim")
    nope, value = fields.count("qk_nope_head_dim"), fields.count("v_head_dim")
    query = heads * (nope + rope)
    query_rank = fields.count("q_lora_rank", default=0)
    down = width * query_rank + query_rank * query if query_rank else width * query
    up = rank * heads * (nope + value)
    return Layers(
        kind="latent",
        head_elements=rank + rope,
        pair_flops=2 * heads * (nope + rope + value),
        decode_pair_flops=2 * heads * (rank + rope + rank),
        expand_flops=2 * up,
        weights=down + width * (rank + rope) + up + heads * value * width,
        other=query_rank + rank,
    )


def gated_delta(fields: Fields, dtype: str) -> Layers:
    """Linear attention by the gated delta rule (Qwen3-Next): a matrix a head, and a convolution."""
    width = hidden(fields)
    key_heads, heads = fields.count("linear_num_key_heads"), fields.count("linear_num_value_heads")
    key, value = fields.count("linear_key_head_dim"), fields.count("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim")
    channels = 2 * key_heads * key + heads * value
    return Layers(
        kind="recurrent",
        state_bytes=heads * key * value * state_element(fields, dtype)
        + channels * (kernel - 1) * DTYPE_BYTES[dtype],
        token_flops=6 * heads * key * value + 2 * channels * kernel,
        weights=width * (channels + heads * value + 2 * heads) + heads * value * width,
        other=channels * kernel + 2 * heads + value,
    )


def mamba2(
    fields: Fields, dtype: str, *, heads: int, size: int, state: int, groups: int, kernel: int
) -> Layers:
    """A Mamba-2 layer: ``heads`` states of ``size`` × ``state``, and a convolution."""
    width, inner = hidden(fields), heads * size
    channels = inner + 2 * groups * state
    bias = channels if fields.flag("use_conv_bias", True) else 0
    return Layers(
        kind="recurrent",
        state_bytes=inner * state * state_element(fields, dtype)
        + channels * (kernel - 1) * DTYPE_BYTES[dtype],
        token_flops=5 * inner * state + 2 * channels * kernel,
        weights=width * (inner + channels + heads) + inner * width,
        other=channels * kernel + bias + 3 * heads + inner,
    )


def mamba1(fields: Fields, dtype: str) -> Layers:
    """A Mamba-1 layer as in Jamba: a state a channel, with norms on its inputs."""
    width = hidden(fields)
    inner = width * fields.count("mamba_expand")
    state, kernel = fields.count("mamba_d_state"), fields.count("mamba_d_conv")
    stated = fields.get("mamba_dt_rank")
    rank = -(-width // 16) if stated in (None, "auto") else fields.count("mamba_dt_rank")
    return Layers(
        kind="recurrent",
        state_bytes=inner * state * state_element(fields, dtype)
        + inner * (kernel - 1) * DTYPE_BYTES[dtype],
        token_flops=5 * inner * state + 2 * inner * kernel,
        weights=width * 2 * inner + inner * (rank + 2 * state) + rank * inner + inner * width,
        other=inner * (kernel + 1) + inner + inner * (state + 1) + rank + 2 * state,
    )


def state_element(fields: Fields, dtype: str) -> int:
    """Bytes of one element of a recurrent state: stated, else as the model's elements."""
    stated = fields.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype") or dtype
    if stated not in DTYPE_BYTES:
        fields.fault(f"the state's dtype {stated!r} is not known ({', '.join(DTYPE_BYTES)})")
    return DTYPE_BYTES[stated]


def feed_forward(fields: Fields, inner: int, *, gated: bool = True, bias: bool = False) -> Layers:
    """A dense feed-forward part of ``inner`` channels."""
    width = hidden(fields)
    up = 2 if gated else 1
    return Layers(
        kind="feed-forward",
        weights=(up + 1) * width * inner,
        other=up * inner + width if bias else 0,
    )


def experts(
    fields: Fields,
    *,
    count: int,
    inner: int,
    shared: int = 0,
    shared_gate: bool = False,
    gated: bool = True,
    bias: bool = False,
    router_bias: bool = False,
) -> Layers:
    """A mixture of ``count`` experts of ``inner`` channels, with ``shared`` channels for all."""
    width = hidden(fields)
    matrices = 3 if gated else 2
    chosen = fields.count("num_experts_per_tok", "experts_per_token")
    if chosen > count:
        fields.fault(f"num_experts_per_tok {chosen} is more than the {count} experts")
    biases = count * ((matrices - 1) * inner + width) if bias else 0
    return Layers(
        kind="feed-forward",
        weights=width * count + matrices * width * shared + (width if shared_gate else 0),
        other=biases + (count if router_bias else 0),
        expert_weights=matrices * width * inner,
        experts=count,
        experts_per_token=chosen,
    )


def norms(fields: Fields, vectors: int) -> Layers:
    """``vectors`` scale vectors of the model's width."""
    return Layers(kind="feed-forward", other=vectors * hidden(fields))
