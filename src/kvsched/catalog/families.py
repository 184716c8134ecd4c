"""From a config's `model_type` to its layers: one function a family, one entry a type.

Sources: the published `config.json` files and the models' papers (Llama 3, Qwen3, Gemma 2 and 3,
gpt-oss, DeepSeek-V2 and V3, Falcon, Mamba-2, Gated DeltaNet, Nemotron-H, Jamba, Granite 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvsched.catalog import attention as part
from kvsched.catalog.fields import Fields
from kvsched.catalog.layers import Layers

Build = Callable[[Fields, str], list[Layers]]


class Family(NamedTuple):
    """How one `model_type` is read."""

    build: Build
    ties: bool = False
    """Whether the output head is the embedding where the config does not say."""
    defaults: dict[str, int] = {}  # noqa: RUF012  # read-only
    """Fields that the published configs of the type leave to their class."""


def _layer_count(fields: Fields) -> int:
    return fields.count("num_hidden_layers", "n_layer")


def _windows(fields: Fields, fallback: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window: from `layer_types`, else where ``fallback`` says so."""
    count = _layer_count(fields)
    types = fields.names("layer_types", count)
    if fields.get("sliding_window") is None:
        if types and "sliding_attention" in types:
            fields.fault("layer_types has sliding_attention, but sliding_window is missing")
        return [None] * count
    window = fields.count("sliding_window")
    if types is None:
        return [window if fallback(layer) else None for layer in range(count)]
    for name in types:
        if name not in ("sliding_attention", "full_attention"):
            fields.fault(f"layer_types has {name!r}, which is not known for this model_type")
    return [window if name == "sliding_attention" else None for name in types]


def _mixture(fields: Fields, layer: int, **options: bool) -> Layers | None:
    """The experts of ``layer``, or None where it is dense."""
    total = fields.count("num_local_experts", "num_experts", "n_routed_experts", default=0, least=0)
    first = fields.count("first_k_dense_replace", default=0, least=0)
    step = fields.count("decoder_sparse_step", "moe_layer_freq", default=1)
    offset = 1 if fields.get("decoder_sparse_step") is not None else 0
    if not total or layer < first or (layer + offset) % step:
        return None
    if layer in fields.indices("mlp_only_layers"):
        return None
    inner = fields.count("moe_intermediate_size", "intermediate_size")
    shared = fields.count("shared_expert_intermediate_size", default=0, least=0)
    return part.experts(
        fields,
        count=total,
        inner=inner,
        shared=shared or inner * fields.count("n_shared_experts", default=0, least=0),
        shared_gate=shared > 0,
        **options,
    )


def _dense(fields: Fields) -> Layers:
    return part.feed_forward(
        fields, fields.count("intermediate_size"), bias=fields.flag("mlp_bias", False)
    )


def _plain(
    *,
    sliding: Callable[[Fields], Callable[[int], bool]],
    qkv_bias: bool = False,
    qk_norm: bool = False,
    vectors: int = 2,
) -> Build:
    """Transformer layers with grouped KV heads, dense or with experts."""

    def build(fields: Fields, _dtype: str) -> list[Layers]:
        bias = fields.flag("attention_bias", False)
        layers = []
        for layer, window in enumerate(_windows(fields, sliding(fields))):
            attention = part.grouped(
                fields,
                window=window,
                qkv_bias=bias or qkv_bias,
                out_bias=bias,
                qk_norm=qk_norm,
            )
            inner = _mixture(fields, layer) or _dense(fields)
            layers.append(part.together(attention, inner, part.norms(fields, vectors)))
        return layers

    return build


def _everywhere(_fields: Fields) -> Callable[[int], bool]:
    return lambda _layer: True


def _even(_fields: Fields) -> Callable[[int], bool]:
    return lambda layer: layer % 2 == 0


def _above(fields: Fields) -> Callable[[int], bool]:
    """Qwen: only with `use_sliding_window`, from layer `max_window_layers` on."""
    if not fields.flag("use_sliding_window", False):
        return lambda _layer: False
    first = fields.count("max_window_layers", default=0, least=0)
    return lambda layer: layer >= first


def _but_every(fields: Fields) -> Callable[[int], bool]:
    """Gemma 3: all but each sixth layer."""
    step = fields.count("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return lambda layer: (layer + 1) % step != 0


def _gpt_oss(fields: Fields, _dtype: str) -> list[Layers]:
    bias = fields.flag("attention_bias", True)
    layers = []
    for layer, window in enumerate(_windows(fields, _even(fields))):
        attention = part.grouped(fields, window=window, qkv_bias=bias, out_bias=bias, sinks=True)
        inner = _mixture(fields, layer, bias=True, router_bias=True)
        layers.append(part.together(attention, inner or _dense(fields), part.norms(fields, 2)))
    return layers


def _falcon(fields: Fields, _dtype: str) -> list[Layers]:
    heads = fields.count("num_attention_heads", "n_head")
    new = fields.flag("new_decoder_architecture", False)
    single = fields.flag("multi_query", True) and not new
    # Falcon-7B states num_kv_heads 71 beside multi_query, which makes it one.
    kv_heads = 1 if single else fields.count("num_kv_heads", "n_head_kv", default=heads)
    width, bias = part.hidden(fields), fields.flag("bias", False)
    one_norm = fields.flag("parallel_attn", True) and not new
    layer = part.together(
        part.grouped(fields, kv_heads=kv_heads, qkv_bias=bias, out_bias=bias),
        part.feed_forward(
            fields, fields.count("ffn_hidden_size", default=4 * width), gated=False, bias=bias
        ),
        part.norms(fields, 2 if one_norm else 4),
    )
    return [layer] * _layer_count(fields)


def _gpt_bigcode(fields: Fields, _dtype: str) -> list[Layers]:
    width = part.hidden(fields)
    kv_heads = 1 if fields.flag("multi_query", True) else fields.count("n_head")
    layer = part.together(
        part.grouped(fields, kv_heads=kv_heads, qkv_bias=True, out_bias=True),
        part.feed_forward(
            fields, fields.count("n_inner", default=4 * width), gated=False, bias=True
        ),
        part.norms(fields, 4),
    )
    return [layer] * _layer_count(fields)


def _deepseek(fields: Fields, _dtype: str) -> list[Layers]:
    attention, vectors = part.latent(fields), part.norms(fields, 2)
    bias = fields.text("topk_method") == "noaux_tc"
    return [
        part.together(
            attention, _mixture(fields, layer, router_bias=bias) or _dense(fields), vectors
        )
        for layer in range(_layer_count(fields))
    ]


def _qwen_hybrid(fields: Fields, dtype: str) -> list[Layers]:
    count = _layer_count(fields)
    types = fields.names("layer_types", count)
    if types is None:
        step = fields.count("full_attention_interval")
        types = ["linear_attention" if (i + 1) % step else "full_attention" for i in range(count)]
    layers = []
    for layer, name in enumerate(types):
        if name == "linear_attention":
            mixer = part.gated_delta(fields, dtype)
        elif name == "full_attention":
            gate = fields.flag("attn_output_gate", True)
            mixer = part.grouped(fields, qk_norm=True, gate=gate)
        else:
            fields.fault(f"layer_types has {name!r}, which is not known for this model_type")
        inner = _mixture(fields, layer) or _dense(fields)
        layers.append(part.together(mixer, inner, part.norms(fields, 2)))
    return layers


def _nemotron_h(fields: Fields, dtype: str) -> list[Layers]:
    """One mixer a layer, by letter: M Mamba-2, * attention, - feed-forward, E experts."""
    pattern = fields.text("hybrid_override_pattern")
    count = _layer_count(fields)
    if pattern is None:
        fields.fault("lacks the field hybrid_override_pattern")
    if len(pattern) != count:
        fields.fault(f"hybrid_override_pattern has {len(pattern)} letters for {count} layers")
    makers: dict[str, Callable[[], Layers]] = {
        "M": lambda: part.mamba2(
            fields,
            dtype,
            heads=fields.count("mamba_num_heads"),
            size=fields.count("mamba_head_dim"),
            state=fields.count("ssm_state_size"),
            groups=fields.count("n_groups"),
            kernel=fields.count("conv_kernel"),
        ),
        "*": lambda: part.grouped(fields),
        "-": lambda: part.feed_forward(fields, fields.count("intermediate_size"), gated=False),
        "E": lambda: part.experts(
            fields,
            count=fields.count("n_routed_experts"),
            inner=fields.count("moe_intermediate_size"),
            shared=fields.count("moe_shared_expert_intermediate_size", default=0, least=0),
            gated=False,
            router_bias=True,
        ),
    }
    unknown = sorted(set(pattern) - set(makers))
    if unknown:
        fields.fault(f"hybrid_override_pattern has the unknown letter {unknown[0]!r}")
    made = {letter: part.together(makers[letter](), part.norms(fields, 1)) for letter in pattern}
    return [made[letter] for letter in pattern]


def _jamba(fields: Fields, dtype: str) -> list[Layers]:
    period, offset = fields.count("attn_layer_period"), fields.count("attn_layer_offset", least=0)
    every, first = fields.count("expert_layer_period"), fields.count("expert_layer_offset", least=0)
    total = fields.count("num_experts")
    inner = fields.count("intermediate_size")
    layers = []
    for layer in range(_layer_count(fields)):
        attends = layer % period == offset
        mixer = part.grouped(fields) if attends else part.mamba1(fields, dtype)
        sparse = total > 1 and layer % every == first
        after = part.experts(fields, count=total, inner=inner) if sparse else _dense(fields)
        layers.append(part.together(mixer, after, part.norms(fields, 2)))
    return layers


def _granite_hybrid(fields: Fields, dtype: str) -> list[Layers]:
    count = _layer_count(fields)
    types = fields.names("layer_types", count)
    if types is None:
        fields.fault("lacks the field layer_types")
    total = fields.count("num_local_experts", default=0, least=0)
    shared = fields.count("shared_intermediate_size")
    if total:
        after = part.experts(
            fields, count=total, inner=fields.count("intermediate_size"), shared=shared
        )
    else:
        after = part.feed_forward(fields, shared)
    layers = []
    for name in types:
        if name not in ("mamba", "attention"):
            fields.fault(f"layer_types has {name!r}, which is not known for this model_type")
        mixer = part.grouped(fields) if name == "attention" else _granite_mamba(fields, dtype)
        layers.append(part.together(mixer, after, part.norms(fields, 2)))
    return layers


def _granite_mamba(fields: Fields, dtype: str) -> Layers:
    return part.mamba2(
        fields,
        dtype,
        heads=fields.count("mamba_n_heads"),
        size=fields.count("mamba_d_head"),
        state=fields.count("mamba_d_state"),
        groups=fields.count("mamba_n_groups"),
        kernel=fields.count("mamba_d_conv"),
    )


_LLAMA = Family(_plain(sliding=_everywhere))
_QWEN2 = Family(_plain(sliding=_above, qkv_bias=True))
_QWEN3 = Family(_plain(sliding=_above, qk_norm=True))
_GEMMA3 = Family(
    _plain(sliding=_but_every, qk_norm=True, vectors=4),
    ties=True,
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
    },
)
_MLA = Family(_deepseek)
_QWEN_HYBRID = Family(_qwen_hybrid)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "phi3": _LLAMA,
    "granite": _LLAMA,
    "qwen2": _QWEN2,
    "qwen2_moe": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma": Family(_plain(sliding=_everywhere), ties=True),
    "gemma2": Family(_plain(sliding=_even, vectors=4), ties=True),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt_oss": Family(_gpt_oss),
    "falcon": Family(_falcon, ties=True),
    "gpt_bigcode": Family(_gpt_bigcode, ties=True),
    "deepseek_v2": _MLA,
    "deepseek_v3": _MLA,
    "kimi_k2": _MLA,
    "qwen3_next": _QWEN_HYBRID,
    "qwen3_5": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "nemotron_h": Family(_nemotron_h),
    "jamba": Family(_jamba),
    "granitemoehybrid": Family(_granite_hybrid, ties=True),
}
