"""Host memory: torch's tensors on the CPU where torch is there, else NumPy's."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvsched.evidence.environment import cpu_model
from kvsched.evidence.host_memory import (
    HostMemory,
    address_space_left,
    host_memory,
    process_memory,
    reset_peak,
)
from kvsched.evidence.probe.backend import Block, OutOfMemory, Reading
from kvsched.evidence.probe.shape import DTYPE_BYTES, BlockShape
from kvsched.foundation.errors import KvschedError

PAGE = 4096
HEAP_SERVES = 31 << 20
"""Just below the most that glibc's threshold between heap and mappings grows to on 64 bits."""
MOST_PLUGS = 1 << 16
NUMPY_DTYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": np.uint16, "float8": np.uint8}
"""NumPy has neither bfloat16 nor float8: unsigned integers of the same size."""


class _MallInfo2(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks")),
        ("keepcost", ctypes.c_size_t),
    )


class CpuBackend:
    """The memory of this process.

    Accounts: allocated is the C library's (glibc ≥ 2.33, ``mallinfo2``: bytes in use); reserved
    and driver are both the resident memory that the kernel counts, so blocks are touched page by
    page. The size of the C library's heap is no account of memory: pages that it has given back
    from the heap's middle stay in it.
    ``torch`` is the module, or None for NumPy; ``memory`` reads what the machine has.
    """

    name = "cpu"
    evidence_level = "cpu_simulation"
    caches = False
    object_bytes = 1024
    noise_bytes = 128 << 10

    def __init__(self, torch: Any = None, memory: Callable[[], HostMemory] = host_memory) -> None:
        self._torch = torch
        self._memory = memory
        self._library = _library()
        self._peak_known = False
        self.notes: list[str] = ["no accelerator took part: these are figures of host memory"]
        self.missing = {
            "peak_allocated_bytes": "the C library keeps no peak; accounts are read while all "
            "blocks are live",
            "peak_reserved_bytes": "the same as the driver's peak",
            "system_calls": "the C library does not count its calls to the system",
            "warm_system_calls": "the C library does not count its calls to the system",
        }
        if self._library is None:
            why = "the C library is not glibc 2.33 or later (no mallinfo2)"
            self.missing["allocated_bytes"] = why

    def describe(self) -> dict[str, Any]:
        """The processor in the device's place; no GPU, so no GPU memory."""
        self.missing["runtime.gpu_memory_gb"] = "no GPU took part"
        self.missing["runtime.native_bf16_supported"] = "no GPU took part"
        if self._torch is None:
            self.missing["runtime.torch"] = "torch was not loaded: NumPy took its place"
            self.missing["runtime.torch_cuda"] = "torch was not loaded"
        elif self._torch.version.cuda is None:
            self.missing["runtime.torch_cuda"] = "this torch is built without CUDA"
        return {
            "device": f"CPU ({cpu_model() or 'unknown'})",
            "gpu_memory_gb": None,
            "torch": None if self._torch is None else str(self._torch.__version__),
            "torch_cuda": None if self._torch is None else self._torch.version.cuda,
            "native_bf16_supported": None,
            "allocator": "malloc" if self._library is None else "glibc malloc",
        }

    def usable_bytes(self) -> int:
        """What the kernel can give without swapping, within the limits on group and process."""
        usable = self._memory().usable
        if usable is None:
            raise KvschedError("how much memory is free is not known: the system has no meminfo")
        left = address_space_left()
        return usable if left is None else min(usable, left)

    def limit(self, extra_bytes: int | None) -> None:
        """Do nothing: the probe counts what it asks for, and pages are touched within the share."""

    def allocate(self, shape: BlockShape, blocks: int = 1) -> Block:
        """``torch.empty`` or ``numpy.empty``: no page is touched yet."""
        try:
            return [self._empty(part.shape, shape.dtype, blocks) for part in shape.parts]
        except (MemoryError, RuntimeError) as error:
            raise OutOfMemory(str(error).split("\n", 1)[0]) from None

    def _empty(self, shape: tuple[int, ...], dtype: str, blocks: int) -> Any:
        full = shape if blocks == 1 else (blocks, *shape)
        if self._torch is None:
            return np.empty(full, dtype=NUMPY_DTYPES[dtype])
        torch = self._torch
        name = "float8_e4m3fn" if dtype == "float8" else dtype
        found = getattr(torch, name, None)
        if found is None:
            self._say(f"this torch has no {dtype}: blocks are held as uint8 of the same size")
            found, full = torch.uint8, (math.prod(full) * DTYPE_BYTES[dtype],)
        return torch.empty(full, dtype=found)

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def touch(self, block: Block) -> None:
        """Write one byte of every page, and the last byte."""
        for tensor in block:
            flat = _bytes_of(tensor)
            flat[::PAGE] = 1
            flat[-1] = 1

    def synchronize(self) -> None:
        """Do nothing: every call has ended when it returns."""

    def release_cache(self) -> None:
        """``malloc_trim``: free pages of the heap go back to the kernel."""
        if self._library is not None:
            self._library.malloc_trim(0)

    def plug_holes(self, shape: BlockShape) -> list[Block]:
        """Blocks that nobody touches, where earlier ones have left holes in the heap.

        They cost addresses, not memory. Before, a large piece is freed: glibc then serves pieces up
        to that size from its heap, where they can fragment, and not by a mapping for each.
        """
        if self._library is None:
            return []
        np.empty(HEAP_SERVES, dtype=np.uint8)
        self.release_cache()
        held: list[Block] = []
        while len(held) < MOST_PLUGS:
            info = self._library.mallinfo2()
            before = info.arena + info.hblkhd
            block = self.allocate(shape)
            info = self._library.mallinfo2()
            if info.arena + info.hblkhd > before:
                break
            held.append(block)
        return held

    def reset_peak(self) -> None:
        """Start the kernel's peak of resident memory anew, where it allows that."""
        self._peak_known = reset_peak()
        if not self._peak_known:
            self.missing["peak_driver_bytes"] = "the kernel does not let the peak start anew"

    def reading(self) -> Reading:
        """The C library's account and resident memory; the probe adds up its own tensors."""
        allocated = None
        if self._library is not None:
            info = self._library.mallinfo2()
            allocated = int(info.uordblks) + int(info.hblkhd)
        resident, _ = process_memory()
        return Reading(None, allocated, resident, resident)

    def peak(self) -> Reading:
        """The kernel's peak of resident memory; nobody else keeps one."""
        _, peak = process_memory()
        return Reading(None, None, None, peak if self._peak_known else None)

    def system_calls(self) -> int | None:
        """None: not counted."""
        return None

    def copies(self, size: int) -> list[tuple[str, str, Any]]:
        """One piece of host memory to another, by one thread."""
        source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)

        def copy() -> None:
            np.copyto(target, source)

        return [("host to host", "pageable", copy)]


def _bytes_of(tensor: Any) -> Any:
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _library() -> Any:
    """The C library with ``mallinfo2`` and ``malloc_trim``; None where it lacks one of them."""
    try:
        library = ctypes.CDLL(None)
        library.mallinfo2.restype = _MallInfo2
        library.malloc_trim.argtypes = [ctypes.c_size_t]
    except (AttributeError, OSError, TypeError):
        return None
    return library
