"""What a probe is asked, and what of it can be refused before anything is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsched.evidence.probe.decide import OVERHEAD_LIMIT, TOLERANCE
from kvsched.evidence.probe.shape import MOST_BLOCKS, BlockShape, ShapeSettings, block_shape
from kvsched.foundation.errors import UsageError

DEVICES = ("cuda", "cpu")
MEMORY_SHARE = {"cuda": 0.5, "cpu": 0.1}
"""Of what is free: a device is mostly the probe's own, a host is not."""
MOST_REPEATS = 1000
COPY_BYTES = (1 << 20, 16 << 20, 64 << 20, 256 << 20)
"""Beside a block's own bytes."""
MOST_VALUES = 64
KEYS = ("block_tokens", "kv_heads", "head_dim", "layers", "dtype", "blocks", "tensor_parallel_size")


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """Every setting of a probe; `checked` refuses what cannot be."""

    shape: ShapeSettings = field(default_factory=ShapeSettings)
    blocks: int = 64
    repeats: int = 5
    device: str = "cuda"
    device_index: int = 0
    memory_share: float | None = None
    """Of the memory that is free at the start; None: `MEMORY_SHARE`."""
    declared_bytes_per_block: int | None = None
    """A theory of one's own in the formula's place."""
    tolerance: float = TOLERANCE
    overhead_limit: float = OVERHEAD_LIMIT
    copy_bytes: tuple[int, ...] = COPY_BYTES
    vary: tuple[str, ...] = ()
    """``key=a,b,c``: each key alone, everything else as it is."""
    seed: int = 0


@dataclass(frozen=True)
class Variation:
    """The settings with one variable changed."""

    key: str
    value: str
    shape: BlockShape
    blocks: int


def checked(settings: ProbeSettings) -> tuple[BlockShape, tuple[Variation, ...]]:
    """Return the block and the variations. Raises UsageError for what cannot be measured."""
    if settings.device not in DEVICES:
        raise UsageError(f"--device is {settings.device!r}, not one of {', '.join(DEVICES)}")
    _whole(settings.blocks, "--blocks", MOST_BLOCKS)
    _whole(settings.repeats, "--repeats", MOST_REPEATS)
    if settings.declared_bytes_per_block is not None:
        _whole(settings.declared_bytes_per_block, "--declared-bytes-per-block", 1 << 50)
    share = settings.memory_share
    if share is not None and not 0 < share <= 0.95:
        raise UsageError(f"--memory-share is {share:g}, not above 0 and at most 0.95")
    for value, option in (
        (settings.tolerance, "--tolerance"),
        (settings.overhead_limit, "--overhead-limit"),
    ):
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{option} is {value:g}, not a share of 0 or more")
    for size in settings.copy_bytes:
        _whole(size, "a size of --copy-mib in bytes", 1 << 40)
    return block_shape(settings.shape), variations(settings)


def _whole(value: int, option: str, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{option} is {value:,}, not from 1 to {most:,}")


def variations(settings: ProbeSettings) -> tuple[Variation, ...]:
    """Read ``vary``: one variable at a time, never two together. Raises UsageError."""
    found: list[Variation] = []
    seen: set[str] = set()
    for text in settings.vary:
        name, equals, values = text.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        listed = [value.strip() for value in values.split(",")]
        if not equals or not all(listed):
            raise UsageError(f"--vary {text!r} is not KEY=VALUE,VALUE,…")
        if key not in KEYS:
            raise UsageError(f"--vary {name.strip()!r} is not one of {', '.join(KEYS)}")
        if key in seen:
            raise UsageError(f"--vary {key} is given twice")
        seen.add(key)
        found += [_variation(settings, key, value) for value in dict.fromkeys(listed)]
    if len(found) > MOST_VALUES:
        raise UsageError(f"--vary has {len(found)} values; at most {MOST_VALUES} are measured")
    return tuple(found)


def _variation(settings: ProbeSettings, key: str, value: str) -> Variation:
    if key == "dtype":
        changed: str | int = value
    elif value.isascii() and value.isdecimal() and len(value) < 16:
        changed = int(value)
    else:
        raise UsageError(f"--vary {key}: {value!r} is not a whole number")
    if key == "blocks":
        _whole(int(changed), "--vary blocks", MOST_BLOCKS)
        return Variation(key, value, block_shape(settings.shape), int(changed))
    shape = dataclasses.replace(settings.shape, **{key: changed})  # type: ignore[arg-type]
    return Variation(key, value, block_shape(shape), settings.blocks)


def check_share(
    wanted: Sequence[tuple[str, BlockShape, int]],
    share_bytes: int,
    said: str,
    object_bytes: int = 0,
) -> None:
    """Refuse, before anything is allocated, what would take more than the share.

    ``wanted`` is (what it is called, block, number of blocks); each tensor takes ``object_bytes``
    beside its elements. Raises UsageError with the largest number that would fit.
    """
    for name, shape, blocks in wanted:
        objects = len(shape.parts) * object_bytes
        each = shape.tensor_bytes + objects
        total = blocks * each
        if total > share_bytes:
            most = share_bytes // each
            advice = f"--blocks {most} would fit" if most else "not one block fits"
            beside = f" (and {objects:,} for their objects)" if objects else ""
            raise UsageError(
                f"{name}: {blocks:,} blocks of {shape.tensor_bytes:,} bytes{beside} are {total:,} "
                f"bytes, more than {share_bytes:,}, {said}; {advice}, or raise --memory-share"
            )
