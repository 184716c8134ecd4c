"""What one kind of layer holds and costs, and how many pairs of tokens attention looks at."""

from __future__ import annotations

from typing import Any, Literal, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

Kind = Literal["full", "sliding", "latent", "recurrent", "feed-forward"]


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """Equal layers of a model, counted together. Parameters and FLOPs are those of one layer."""

    kind: Kind
    """What the layer keeps of a request: full: keys and values of every token; sliding: of the
    last ``window`` tokens; latent: one compressed vector a token (MLA); recurrent: a state of
    constant size; feed-forward: nothing."""
    count: int = 1
    window: int | None = None
    """Tokens a sliding layer looks at, the current one included."""
    kv_heads: int = 1
    head_elements: int = 0
    """Elements kept a token and KV head: key and value; for a latent layer the whole vector."""
    state_bytes: int = 0
    """Bytes of a recurrent layer's state, one request."""
    pair_flops: int = 0
    """FLOPs for one token looking at one token in prefill: scores and weighted sum."""
    decode_pair_flops: int = 0
    """The same in decode; differs for MLA, which then works on the compressed vectors."""
    expand_flops: int = 0
    """FLOPs for one token of context that a chunk of prefill looks at: MLA makes keys and values
    of its compressed vector again, once a chunk."""
    token_flops: int = 0
    """FLOPs a token beside matrix products with weights: the recurrence."""
    weights: int = 0
    """Parameters of matrices that every token is multiplied with."""
    other: int = 0
    """Norms, biases and other parameters that no matrix product reads."""
    expert_weights: int = 0
    """Parameters of one routed expert."""
    experts: int = 0
    experts_per_token: int = 0

    @property
    def parameters(self) -> int:
        """All parameters of one layer."""
        return self.weights + self.other + self.experts * self.expert_weights

    @property
    def active_weights(self) -> int:
        """Matrix parameters that one token is multiplied with."""
        return self.weights + self.experts_per_token * self.expert_weights

    @property
    def grows(self) -> bool:
        """Whether the layer keeps something for every token of a prefix."""
        return self.kind in ("full", "latent")


def merged(layers: list[Layers]) -> tuple[Layers, ...]:
    """Equal layers counted together, in the order of their first appearance."""
    counts: dict[Layers, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + layer.count
    return tuple(msgspec.structs.replace(layer, count=n) for layer, n in counts.items())


@overload
def attended_pairs(tokens: int, window: int | None) -> int: ...
@overload
def attended_pairs(tokens: NDArray[Any], window: int | None) -> NDArray[np.int64]: ...
def attended_pairs(tokens: int | NDArray[Any], window: int | None) -> int | NDArray[np.int64]:
    """Pairs that causal attention looks at in the first ``tokens`` tokens (int or (R,)).

    The token at position p looks at itself and those before it: min(p + 1, window) tokens.
    Exact in int64 for up to 3 thousand million tokens a request.
    """
    if isinstance(tokens, np.ndarray):
        n = tokens.astype(np.int64)
        near = n if window is None else np.minimum(n, window)
        pairs: NDArray[np.int64] = near * (near + 1) // 2
        return pairs if window is None else pairs + (n - near) * window
    near_one = tokens if window is None else min(tokens, window)
    beyond = 0 if window is None else (tokens - near_one) * window
    return near_one * (near_one + 1) // 2 + beyond
