"""A Llama in shape (RoPE, grouped queries, SwiGLU) with random weights, over paged keys and values.

`examples/tiny_engine.py` runs it. Nothing here knows of kvsched.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # what torch calls it
from torch import Tensor


class Piece(NamedTuple):
    """What one sequence computes in a step."""

    tokens: list[int]
    start: int
    """Position of the first of them."""
    blocks: Tensor
    """Physical blocks of the whole sequence, in order."""
    shared: int
    """Leading tokens of the sequence that are in place already: their blocks are not written."""


class TinyLlama:
    """A decoder of 106,496 weights. Keys and values go into the pool that it is given."""

    def __init__(self, vocab: int = 256, layers: int = 2, seed: int = 0) -> None:
        self.vocab, self.heads, self.kv_heads, self.head_dim = vocab, 4, 2, 16
        dim, kv_dim, hidden = self.heads * self.head_dim, self.kv_heads * self.head_dim, 128
        random = torch.Generator().manual_seed(seed)
        shapes = {
            "q": (dim, dim), "k": (dim, kv_dim), "v": (dim, kv_dim), "o": (dim, dim),
            "gate": (dim, hidden), "up": (dim, hidden), "down": (hidden, dim),
        }  # fmt: skip

        def weight(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=random) / rows**0.5

        self.embedding = torch.randn(vocab, dim, generator=random)
        self.layers = [{name: weight(*of) for name, of in shapes.items()} for _ in range(layers)]
        self.head = weight(dim, vocab)

    def new_pool(self, blocks: int, block_size: int) -> Tensor:
        """Return room for keys and values: (layers, 2, blocks, block_size, kv_heads, head_dim)."""
        return torch.zeros(len(self.layers), 2, blocks, block_size, self.kv_heads, self.head_dim)

    @torch.inference_mode()
    def forward(self, batch: list[Piece], pool: Tensor) -> Tensor:
        """Run pieces of many sequences; return (pieces, vocab) logits behind each one's last token.

        All tokens go through a layer together; attention reads each sequence's own blocks.
        """
        sizes = [len(piece.tokens) for piece in batch]
        tokens = torch.tensor([token for piece in batch for token in piece.tokens])
        places = [
            piece.start + torch.arange(size) for piece, size in zip(batch, sizes, strict=True)
        ]
        positions = torch.cat(places)
        slots = torch.cat(
            [_slots(piece, at, pool) for piece, at in zip(batch, places, strict=True)]
        )
        new = torch.cat([at >= piece.shared for piece, at in zip(batch, places, strict=True)])
        x = self.embedding[tokens]
        for weights, (keys, values) in zip(self.layers, pool, strict=True):
            h = _norm(x)
            q = _rotate((h @ weights["q"]).unflatten(1, (self.heads, -1)), positions)
            k = _rotate((h @ weights["k"]).unflatten(1, (self.kv_heads, -1)), positions)
            v = (h @ weights["v"]).unflatten(1, (self.kv_heads, -1))
            keys.flatten(0, 1)[slots[new]] = k[new]
            values.flatten(0, 1)[slots[new]] = v[new]
            parts = zip(q.split(sizes), places, batch, strict=True)
            seen = [_attend(part, at, keys[p.blocks], values[p.blocks]) for part, at, p in parts]
            x = x + torch.cat(seen) @ weights["o"]
            h = _norm(x)
            x = x + (F.silu(h @ weights["gate"]) * (h @ weights["up"])) @ weights["down"]
        last = torch.tensor(sizes).cumsum(0) - 1
        return _norm(x[last]) @ self.head


def _slots(piece: Piece, positions: Tensor, pool: Tensor) -> Tensor:
    """Return the place of each position in a layer's pool, blocks laid end to end."""
    size = pool.shape[3]
    return piece.blocks[positions // size] * size + positions % size


def _attend(q: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return (T, dim): what queries at ``positions`` see of a sequence, up to themselves."""
    length = int(positions[-1]) + 1
    k, v = (blocks.flatten(0, 1)[:length].transpose(0, 1) for blocks in (keys, values))
    mask = torch.arange(length) <= positions[:, None]
    seen = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=mask, enable_gqa=True)
    return seen.transpose(0, 1).flatten(1)


def _norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def _rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Apply RoPE (Su et al., 2021), halves of a head as pairs."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] * 10_000.0 ** (-torch.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    return torch.cat(
        [low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1
    )
