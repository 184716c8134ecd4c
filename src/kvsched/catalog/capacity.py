"""How many blocks of KV cache fit: from tokens, from GiB, or from accelerators as vLLM does it."""

from __future__ import annotations

import math
import re
from typing import overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvsched.catalog.accelerators import GIB, Accelerator, accelerators
from kvsched.catalog.model import Model, checked_ranks
from kvsched.foundation.errors import UsageError

DEFAULT_BLOCK_SIZE = 16
DEFAULT_UTILIZATION = 0.9
DEFAULT_ALLOWANCE_GIB = 2.0
"""GiB an accelerator for activations, compiled graphs and the runtime: what vLLM measures by a
profiling run. It grows with the batched tokens; take the engine's own figure where you have it."""


class Reserve(msgspec.Struct, frozen=True):
    """What running requests hold: ``requests`` of ``tokens`` tokens each, none of them shared."""

    requests: int = 0
    tokens: int = 0


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """A cache size in blocks, and how it came about."""

    blocks: int
    block_size: int
    """Tokens in a block."""
    bytes_per_block: int | None = None
    """Bytes of a block on one accelerator; None where no model is known."""
    ranks: int = 1
    """Accelerators that hold a part, or with MLA a copy, of each block."""
    derivation: tuple[str, ...] = ()
    """How the number was found: one sentence a step."""

    @property
    def tokens(self) -> int:
        """Tokens that the blocks hold."""
        return self.blocks * self.block_size

    @property
    def gib(self) -> float | None:
        """GiB of the blocks on all accelerators together; None where no model is known."""
        if self.bytes_per_block is None:
            return None
        return self.blocks * self.bytes_per_block * self.ranks / GIB


def parse_reserve(text: str) -> Reserve:
    """`--reserve-running`: `TOKENS`, or `REQUESTSxTOKENS`, as in `64x2048`. Raises UsageError."""
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×*]\s*)?(\d+)\s*", text)
    if match is None:
        raise UsageError(f"reserve {text!r} is neither TOKENS nor REQUESTSxTOKENS, as in 64x2048")
    return Reserve(int(match[1] or 1), int(match[2]))


def bytes_per_block(
    model: Model,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
) -> int:
    """Bytes of one block of a growing prefix on one accelerator. Raises UsageError."""
    _check_block_size(block_size)
    each = model.kv_bytes_per_token(kv_cache_dtype, tensor_parallel_size)
    if not each:
        raise UsageError(
            f"{model.name}: no layer keeps every token of a prefix (sliding windows or recurrent "
            "states only), so GiB do not become blocks; give the capacity in blocks"
        )
    return each * block_size


@overload
def blocks_to_gib(blocks: int | float, bytes_per_block: int, ranks: int = 1) -> float: ...
@overload
def blocks_to_gib(
    blocks: NDArray[np.generic], bytes_per_block: int, ranks: int = 1
) -> NDArray[np.float64]: ...
def blocks_to_gib(
    blocks: int | float | NDArray[np.generic], bytes_per_block: int, ranks: int = 1
) -> float | NDArray[np.float64]:
    """GiB of ``blocks`` (a number or any shape) on all ``ranks`` together."""
    if isinstance(blocks, np.ndarray):
        many: NDArray[np.float64] = blocks.astype(np.float64) * (bytes_per_block * ranks / GIB)
        return many
    return blocks * bytes_per_block * ranks / GIB


MOST_GIB = 1e9
"""An exbibyte: no cache is larger, and sums stay exact."""


def gib_to_blocks(gib: float, bytes_per_block: int, ranks: int = 1) -> int:
    """Whole blocks in ``gib`` GiB over all ``ranks`` together, rounded down. Raises UsageError."""
    if not 0 <= gib <= MOST_GIB:
        raise UsageError(f"{gib:g} GiB is no size of a cache")
    return int(gib * GIB) // (bytes_per_block * ranks)


def capacity_from_blocks(blocks: int, block_size: int = DEFAULT_BLOCK_SIZE) -> Capacity:
    """The capacity as given. Raises UsageError below one block."""
    _check_block_size(block_size)
    said = (f"{blocks} blocks of {block_size} tokens, as given.",)
    return _checked(Capacity(blocks=blocks, block_size=block_size, derivation=said))


def capacity_from_tokens(tokens: int, block_size: int = DEFAULT_BLOCK_SIZE) -> Capacity:
    """Whole blocks in ``tokens`` tokens, rounded down. Raises UsageError below one block."""
    _check_block_size(block_size)
    blocks = tokens // block_size
    said = (f"{tokens} tokens are {blocks} whole blocks of {block_size} tokens.",)
    return _checked(Capacity(blocks=blocks, block_size=block_size, derivation=said))


def capacity_from_gib(
    gib: float,
    model: Model,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
    reserve: Reserve | None = None,
) -> Capacity:
    """Whole blocks in ``gib`` GiB of KV cache on all accelerators together, rounded down.

    Raises UsageError where not one block fits.
    """
    ranks = checked_ranks(tensor_parallel_size)
    each = bytes_per_block(model, block_size, kv_cache_dtype, ranks)
    blocks = gib_to_blocks(gib, each, ranks)
    share = "" if ranks == 1 else f" over {ranks} accelerators"
    said = [
        *_block_sentences(model, block_size, kv_cache_dtype, ranks),
        f"{gib:g} GiB{share} hold {blocks} blocks.",
    ]
    return _reserved(
        model,
        blocks=blocks,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        ranks=ranks,
        reserve=reserve,
        said=said,
    )


def capacity_from_gpu(
    gpu: Accelerator,
    model: Model,
    *,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = DEFAULT_UTILIZATION,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kv_cache_dtype: str = "auto",
    weight_dtype: str = "auto",
    allowance_gib: float = DEFAULT_ALLOWANCE_GIB,
    reserve: Reserve | None = None,
) -> Capacity:
    """Blocks that fit as vLLM counts them, for each accelerator of the tensor-parallel group.

    memory × utilization − weights / ranks − allowance, over the bytes of a block, rounded down;
    then what running requests hold (``reserve``) comes off. Raises UsageError where weights do
    not fit, with what would.
    """
    ranks = checked_ranks(tensor_parallel_size)
    if not 0 < gpu_memory_utilization <= 1:
        raise UsageError(
            f"gpu-memory-utilization must be above 0, at most 1, not {gpu_memory_utilization:g}"
        )
    if not math.isfinite(allowance_gib) or allowance_gib < 0:
        raise UsageError(f"the allowance must be at least 0 GiB, not {allowance_gib:g}")
    each = bytes_per_block(model, block_size, kv_cache_dtype, ranks)
    weights = model.weight_bytes(weight_dtype)
    taken = weights / ranks + allowance_gib * GIB
    left = gpu.memory_bytes * gpu_memory_utilization - taken
    if left < each:
        raise UsageError(
            f"{model.name} does not fit: {weights / ranks / GIB:.1f} GiB of weights and "
            f"{allowance_gib:g} GiB of allowance on each of {ranks} × {gpu.name} leave "
            f"no room for KV cache in {gpu.memory_bytes * gpu_memory_utilization / GIB:.1f} GiB"
            + _what_would(
                gpu,
                model,
                taken=taken,
                weights=weights,
                ranks=ranks,
                utilization=gpu_memory_utilization,
                allowance_gib=allowance_gib,
            )
        )
    blocks = int(left) // each
    dtype = "as the config says" if weight_dtype == "auto" else f"in {weight_dtype}"
    said = [
        gpu.describe_memory() + ".",
        f"{gpu_memory_utilization:g} of it may be used: "
        f"{gpu.memory_bytes * gpu_memory_utilization / GIB:.2f} GiB.",
        f"Weights ({dtype}) take {weights / GIB:.2f} GiB"
        + (f", {weights / ranks / GIB:.2f} on each of {ranks} accelerators." if ranks > 1 else "."),
        f"{allowance_gib:g} GiB are allowed for activations, compiled graphs and the runtime.",
        *_block_sentences(model, block_size, kv_cache_dtype, ranks),
        f"The {left / GIB:.2f} GiB left hold {blocks} blocks.",
    ]
    return _reserved(
        model,
        blocks=blocks,
        block_size=block_size,
        kv_cache_dtype=kv_cache_dtype,
        ranks=ranks,
        reserve=reserve,
        said=said,
    )


def _check_block_size(block_size: int) -> None:
    if block_size < 1:
        raise UsageError(f"block size must be at least 1 token, not {block_size}")


def _checked(capacity: Capacity) -> Capacity:
    if capacity.blocks < 1:
        raise UsageError(f"no whole block fits ({' '.join(capacity.derivation)})")
    return capacity


def _block_sentences(model: Model, block_size: int, kv_cache_dtype: str, ranks: int) -> list[str]:
    """The definitions behind the bytes of a block."""
    token = model.kv_bytes_per_token(kv_cache_dtype, ranks)
    constant = model.kv_constant_bytes(kv_cache_dtype, ranks)
    dtype = model.dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    where = "" if ranks == 1 else f" on each of {ranks} accelerators"
    said = [
        f"A token of a growing prefix takes {token} bytes in {dtype}{where}, "
        f"a block of {block_size} tokens {token * block_size} bytes "
        f"({'; '.join(model.describe())})."
    ]
    if constant:
        said.append(
            f"Sliding windows and recurrent states take at most {constant} bytes a request beside "
            "it; they stop growing, are in no block, and only --reserve-running takes them off."
        )
    return said


def _reserved(
    model: Model,
    *,
    blocks: int,
    block_size: int,
    kv_cache_dtype: str,
    ranks: int,
    reserve: Reserve | None,
    said: list[str],
) -> Capacity:
    """Take off what running requests hold, and check that something is left."""
    each = bytes_per_block(model, block_size, kv_cache_dtype, ranks)
    if reserve is not None and reserve.requests and reserve.tokens:
        grown = reserve.requests * -(-reserve.tokens // block_size)
        beside = reserve.requests * (
            model.kv_bytes(reserve.tokens, kv_cache_dtype, ranks)
            - reserve.tokens * model.kv_bytes_per_token(kv_cache_dtype, ranks)
        )
        held = grown + -(-beside // each)
        said.append(
            f"Running requests ({reserve.requests} × {reserve.tokens} tokens) hold {held} blocks"
            + (", windows and states included." if beside else ".")
        )
        if held >= blocks:
            raise UsageError(
                f"running requests hold {held} blocks, and there are only {blocks}: "
                "nothing is left to keep"
            )
        blocks -= held
    return _checked(
        Capacity(
            blocks=blocks,
            block_size=block_size,
            bytes_per_block=each,
            ranks=ranks,
            derivation=tuple(said),
        )
    )


def _what_would(
    gpu: Accelerator,
    model: Model,
    *,
    taken: float,
    weights: int,
    ranks: int,
    utilization: float,
    allowance_gib: float,
) -> str:
    """What would fit: more ranks of this accelerator, or a larger one."""
    ways = []
    for more in (2, 4, 8, 16, 32):
        room = gpu.memory_bytes * utilization - weights / more - allowance_gib * GIB
        if more > ranks and room >= weights / more * 0.05 and _divides(model, more):
            ways.append(f"tensor-parallel size {more}")
            break
    larger = [
        other.name
        for other in sorted(accelerators(), key=lambda each: each.memory_bytes)
        if other.memory_bytes * utilization > taken * 1.05
    ]
    if larger:
        ways.append(f"{larger[0]} at tensor-parallel size {ranks}")
    if not ways:
        return "; nothing in the catalog would at up to 32 accelerators"
    return f"; {' or '.join(ways)} would"


def _divides(model: Model, ranks: int) -> bool:
    return all(
        layer.kind == "latent" or layer.kv_heads % ranks == 0 or ranks % layer.kv_heads == 0
        for layer in model.layers
    )
