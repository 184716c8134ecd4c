"""The shape of a KV block, and its bytes by the formula."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from kvsched.foundation.errors import UsageError

DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float8": 1}
KV_CACHE_DTYPES = {"float16": "float16", "bfloat16": "bfloat16", "float8": "fp8"}
"""The catalogue's names."""
MOST_BLOCKS = 1 << 18
"""Each tensor is an object of about a KiB on the host as well."""
MOST_SIZE = 1 << 20
"""Bound of each dimension, so that their product stays a size."""


class Part(msgspec.Struct, frozen=True):
    """Equal layers of a block: one tensor of ``shape``, elements of the block's dtype."""

    kind: str
    """full, or latent (MLA)."""
    shape: tuple[int, ...]
    """Full attention: (layers, key and value, tokens, KV heads, head dim); latent: (layers,
    tokens, elements)."""

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


class BlockShape(msgspec.Struct, frozen=True, kw_only=True):
    """One block on one accelerator, and where its shape came from."""

    parts: tuple[Part, ...]
    dtype: str
    block_tokens: int
    theoretical_bytes: int
    """By the formula; with a model, by the catalogue's KV bytes a token."""
    formula: str
    notes: tuple[str, ...] = ()

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors' elements: what is asked for, whatever the theory says."""
        return DTYPE_BYTES[self.dtype] * sum(part.elements for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class ShapeSettings:
    """What a user says of a block. Fields that a model gives are None with ``model``."""

    model: str | None = None
    tensor_parallel_size: int = 1
    block_tokens: int = 16
    kv_heads: int | None = None
    head_dim: int | None = None
    layers: int | None = None
    dtype: str = "bfloat16"


def block_shape(settings: ShapeSettings) -> BlockShape:
    """Return the block of a model or of stated dimensions. Raises UsageError."""
    if settings.dtype not in DTYPE_BYTES:
        raise UsageError(f"--dtype is {settings.dtype!r}, not one of {', '.join(DTYPE_BYTES)}")
    _check(settings.block_tokens, "--block-tokens")
    _check(settings.tensor_parallel_size, "--tensor-parallel-size")
    stated = {
        "--kv-heads": settings.kv_heads,
        "--head-dim": settings.head_dim,
        "--layers": settings.layers,
    }
    given = [name for name, value in stated.items() if value is not None]
    if settings.model is not None:
        if given:
            raise UsageError(f"--model says what {', '.join(given)} would: leave one of them out")
        return _of_model(settings)
    if len(given) < len(stated):
        raise UsageError(
            "what a block looks like is not known: name --model, or --kv-heads, --head-dim and "
            "--layers"
        )
    return _stated(settings)


def _check(value: int | None, option: str) -> int:
    if value is None or not 1 <= value <= MOST_SIZE:
        raise UsageError(f"{option} is {value}, not from 1 to {MOST_SIZE:,}")
    return value


def _stated(settings: ShapeSettings) -> BlockShape:
    layers = _check(settings.layers, "--layers")
    heads = _check(settings.kv_heads, "--kv-heads")
    size = _check(settings.head_dim, "--head-dim")
    ranks, tokens = settings.tensor_parallel_size, settings.block_tokens
    if heads % ranks and ranks % heads:
        raise UsageError(f"{heads} KV heads do not divide over {ranks} ranks")
    heads = max(1, heads // ranks)
    element = DTYPE_BYTES[settings.dtype]
    return BlockShape(
        parts=(Part("full", (layers, 2, tokens, heads, size)),),
        dtype=settings.dtype,
        block_tokens=tokens,
        theoretical_bytes=2 * layers * heads * size * element * tokens,
        formula=f"2 · {layers} layers · {heads} KV heads · {size} head dim · {element} bytes · "
        f"{tokens} tokens",
    )


def _of_model(settings: ShapeSettings) -> BlockShape:
    from kvsched.catalog import load_model

    assert settings.model is not None  # noqa: S101 - for the type checker
    model = load_model(settings.model)
    ranks, tokens = settings.tensor_parallel_size, settings.block_tokens
    each = model.kv_bytes_per_token(KV_CACHE_DTYPES[settings.dtype], ranks)
    if not each:
        raise UsageError(f"{model.name}: no layer keeps every token of a prefix")
    counts: dict[tuple[str, int, int], int] = {}
    for layer in model.layers:
        if layer.grows and layer.head_elements:
            heads = layer.kv_heads if layer.kind == "latent" else max(1, layer.kv_heads // ranks)
            key = (layer.kind, heads, layer.head_elements)
            counts[key] = counts.get(key, 0) + layer.count
    constant = model.kv_constant_bytes(KV_CACHE_DTYPES[settings.dtype], ranks)
    notes = [f"{model.name}: {said}" for said in model.describe()]
    if constant:
        notes.append(
            f"{constant:,} bytes a request at most (sliding windows, recurrent states) are beside "
            "these blocks: they do not grow with a prefix"
        )
    return BlockShape(
        parts=tuple(
            _part(kind, count, tokens, heads, elements)
            for (kind, heads, elements), count in counts.items()
        ),
        dtype=settings.dtype,
        block_tokens=tokens,
        theoretical_bytes=each * tokens,
        formula=f"{each:,} bytes a token ({model.name}, {settings.dtype}, tensor-parallel size "
        f"{ranks}) · {tokens} tokens",
        notes=tuple(notes),
    )


def _part(kind: str, layers: int, tokens: int, heads: int, elements: int) -> Part:
    if kind == "latent":
        return Part(kind, (layers, tokens, heads * elements))
    return Part(kind, (layers, 2, tokens, heads, elements // 2))


def shape_facts(shape: BlockShape) -> dict[str, Any]:
    """The block in the words of the course's probe report."""
    shapes = [list(part.shape) for part in shape.parts]
    return {
        "block_shape": shapes[0] if len(shapes) == 1 else shapes,
        "block_tokens": shape.block_tokens,
        "dtype": shape.dtype,
        "formula": shape.formula,
    }
