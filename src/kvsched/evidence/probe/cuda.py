"""A CUDA device through torch's caching allocator."""

from __future__ import annotations

import os
from typing import Any

from kvsched.evidence import environment
from kvsched.evidence.probe.backend import Block, OutOfMemory, Reading
from kvsched.evidence.probe.shape import BlockShape
from kvsched.foundation.errors import UsageError

HELP = (
    "run it on host memory with `kvsched probe --device cpu`, or install a torch with CUDA "
    "(`pip install 'kvsched[gpu]'` on a machine with an NVIDIA driver) and look at "
    "`kvsched preflight --gpu`"
)


class CudaBackend:
    """One device. ``torch`` is the module, handed in so that a stand-in can take its place.

    Accounts (torch's documentation of CUDA memory management): requested, allocated and reserved
    are `torch.cuda.memory_stats`' ``requested_bytes``, ``allocated_bytes`` and ``reserved_bytes``;
    driver is total − free of ``mem_get_info``, everybody's on the device together. Tensors are
    rounded to 512 bytes; up to 1 MiB they share segments of 2 MiB, up to 10 MiB of 20 MiB, larger
    ones have a segment of their own, rounded to 2 MiB; what would leave 1 MiB or less is not split.
    """

    name = "cuda"
    evidence_level = "synthetic_gpu_block_probe"
    caches = True
    object_bytes = 0  # the objects are on the host
    noise_bytes = 0

    def __init__(self, torch: Any, index: int = 0) -> None:
        reason = environment.no_cuda_reason(torch)
        if reason:
            raise UsageError(f"no CUDA device to probe: {reason}; {HELP}")
        if not 0 <= index < torch.cuda.device_count():
            raise UsageError(
                f"--device-index is {index}; there are {torch.cuda.device_count()} devices, "
                "counted from 0"
            )
        self._torch = torch
        self._cuda = torch.cuda
        self._index = index
        self._device = torch.device("cuda", index)
        self._cuda.init()
        # What the first allocation sets up once must not count as the first block's.
        torch.empty(1, dtype=torch.uint8, device=self._device)
        self.release_cache()
        self.notes: list[str] = []
        self.missing = {
            "peak_driver_bytes": "the driver keeps no peak; it is read while all blocks are live"
        }
        if self._stat("requested_bytes.all.current") is None:
            self.missing["requested_bytes"] = "this torch does not count what was asked for"
        if self.system_calls() is None:
            self.missing["system_calls"] = "this torch does not count calls to the driver"

    def describe(self) -> dict[str, Any]:
        """Device, memory, torch, CUDA, native bfloat16."""
        device = environment.cuda_devices(self._torch)[self._index]
        return {
            "device": device["name"],
            "gpu_memory_gb": device["memory_bytes"] / 1e9,
            "torch": str(self._torch.__version__),
            "torch_cuda": self._torch.version.cuda,
            "native_bf16_supported": device["native_bf16"],
            "compute_capability": device["compute_capability"],
            "allocator": str(self._cuda.memory.get_allocator_backend()),
            "allocator_settings": os.environ.get(
                "PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
            ),
        }

    def usable_bytes(self) -> int:
        """Free bytes, as the driver says, and what the allocator holds unused."""
        free, _ = self._cuda.mem_get_info(self._index)
        held = self._cuda.memory_reserved(self._index) - self._cuda.memory_allocated(self._index)
        return int(free) + int(held)

    def limit(self, extra_bytes: int | None) -> None:
        """Set the allocator's own limit, a share of the device's memory for this process."""
        # What is cached and not used would otherwise come on top.
        self.release_cache()
        share = 1.0
        if extra_bytes is not None:
            _, total = self._cuda.mem_get_info(self._index)
            share = min(1.0, (self._cuda.memory_reserved(self._index) + extra_bytes) / total)
        self._cuda.set_per_process_memory_fraction(share, self._index)

    def allocate(self, shape: BlockShape, blocks: int = 1) -> Block:
        """``torch.empty`` on the device: nothing is written."""
        dtype = self._dtype(shape.dtype)
        try:
            return [
                self._torch.empty(_times(part.shape, blocks), dtype=dtype, device=self._device)
                for part in shape.parts
            ]
        except self._cuda.OutOfMemoryError as error:
            raise OutOfMemory(str(error).split("\n", 1)[0]) from None

    def touch(self, block: Block) -> None:
        """Do nothing: device memory is there as soon as the driver gave it."""

    def synchronize(self) -> None:
        """Wait for the device."""
        self._cuda.synchronize(self._index)

    def release_cache(self) -> None:
        """``torch.cuda.empty_cache``."""
        self.synchronize()
        self._cuda.empty_cache()

    def plug_holes(self, shape: BlockShape) -> list[Block]:  # noqa: ARG002 - as the contract has it
        """Release the cache: then the allocator holds no hole."""
        self.release_cache()
        return []

    def reset_peak(self) -> None:
        """``torch.cuda.reset_peak_memory_stats``."""
        self._cuda.reset_peak_memory_stats(self._index)

    def _stat(self, name: str) -> int | None:
        value = self._cuda.memory_stats(self._index).get(name)
        return None if value is None else int(value)

    def reading(self) -> Reading:
        """The accounts of torch and of the driver."""
        free, total = self._cuda.mem_get_info(self._index)
        return Reading(
            requested=self._stat("requested_bytes.all.current"),
            allocated=int(self._cuda.memory_allocated(self._index)),
            reserved=int(self._cuda.memory_reserved(self._index)),
            driver=int(total) - int(free),
        )

    def peak(self) -> Reading:
        """The peaks of torch; the driver keeps none."""
        return Reading(
            requested=self._stat("requested_bytes.all.peak"),
            allocated=int(self._cuda.max_memory_allocated(self._index)),
            reserved=int(self._cuda.max_memory_reserved(self._index)),
            driver=None,
        )

    def system_calls(self) -> int | None:
        """``cudaMalloc`` calls of the allocator so far."""
        return self._stat("num_device_alloc")

    def copies(self, size: int) -> list[tuple[str, str, Any]]:
        """Both directions, with pageable and with pinned host memory."""
        byte = self._torch.uint8
        device = self._torch.empty(size, dtype=byte, device=self._device)
        found = []
        for memory, pinned in (("pageable", False), ("pinned", True)):
            try:
                host = self._torch.empty(size, dtype=byte, pin_memory=pinned)
            except RuntimeError:
                self.missing[f"copies with {memory} memory"] = "the system gave no such memory"
                continue
            host.fill_(1)
            for direction, target, source in (
                ("host to device", device, host),
                ("device to host", host, device),
            ):
                found.append((direction, memory, self._copier(target, source, pinned)))
        return found

    def _copier(self, target: Any, source: Any, pinned: bool) -> Any:
        def copy() -> None:
            target.copy_(source, non_blocking=pinned)
            self._cuda.synchronize(self._index)

        return copy

    def _dtype(self, name: str) -> Any:
        if name != "float8":
            return getattr(self._torch, name)
        found = getattr(self._torch, "float8_e4m3fn", None)
        if found is not None:
            return found
        note = "this torch has no float8: blocks are held as uint8 of the same size"
        if note not in self.notes:
            self.notes.append(note)
        return self._torch.uint8


def _times(shape: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    return shape if blocks == 1 else (blocks, *shape)
