"""Accelerators by name: memory, bandwidth and arithmetic rate, with the source named."""

from __future__ import annotations

import functools
import importlib.resources

import msgspec

from kvsched.catalog import names

GIB = 1 << 30


class Accelerator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device, as its vendor's sheet describes it."""

    name: str
    aliases: tuple[str, ...]
    memory_gb: int
    """Memory as printed on the sheet, GB."""
    reported_mib: int | None
    """Memory that the vendor's tool shows on such a device, MiB, where known."""
    bandwidth_bytes_s: int
    """Memory bandwidth, bytes a second."""
    bf16_flops: int
    """Dense bfloat16 rate, FLOP/s; half of a sheet's rate with sparsity."""
    interconnect_bytes_s: int | None
    """Bytes a second to its peers, both directions together, where known."""
    source: str
    """Title of the vendor's sheet."""

    @property
    def memory_bytes(self) -> int:
        """What the vendor's tool shows where known, else the sheet's GB as 10^9 bytes."""
        if self.reported_mib is None:
            return self.memory_gb * 10**9
        return self.reported_mib << 20

    @property
    def memory_gib(self) -> float:
        """`memory_bytes` in GiB."""
        return self.memory_bytes / GIB

    def describe_memory(self) -> str:
        """One sentence: how much memory, and how it was read."""
        if self.reported_mib is None:
            return (
                f"{self.name}: {self.memory_gib:.2f} GiB "
                f"({self.memory_gb} GB on the sheet, read as 10^9 bytes)"
            )
        return (
            f"{self.name}: {self.memory_gib:.2f} GiB "
            f"({self.reported_mib} MiB as the vendor's tool shows; "
            f"{self.memory_gb} GB on the sheet)"
        )


class _File(msgspec.Struct, frozen=True):
    notes: dict[str, str]
    accelerators: tuple[Accelerator, ...]


@functools.cache
def _file() -> _File:
    data = importlib.resources.files("kvsched.catalog") / "data" / "accelerators.json"
    return msgspec.json.decode(data.read_bytes(), type=_File)


@functools.cache
def _known() -> dict[str, str]:
    return names.index((each.name, each.aliases) for each in _file().accelerators)


def accelerators() -> tuple[Accelerator, ...]:
    """Every accelerator of the catalog."""
    return _file().accelerators


def accelerator_names() -> tuple[str, ...]:
    """Names of the catalog's accelerators."""
    return tuple(each.name for each in accelerators())


def accelerator_notes() -> dict[str, str]:
    """How the catalog's figures are read, by field."""
    return dict(_file().notes)


def find_accelerator(name: str) -> Accelerator:
    """The accelerator of that name or alias, any case. Raises UsageError with the nearest."""
    found = names.look_up(name, _known(), "accelerator")
    return next(each for each in accelerators() if each.name == found)
