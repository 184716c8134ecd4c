"""A stand-in for torch with one CUDA device: a caching allocator that counts.

Written from the documented rules of torch's allocator: requests are rounded to 512 bytes; up to
1 MiB they come from segments of 2 MiB, below 10 MiB from segments of 20 MiB, others have a segment
of their own, rounded to 2 MiB; free neighbours in a segment join; the smallest hole that fits is
taken, and left whole where no more than 1 MiB (of a small segment: less than 512 bytes) would
remain; emptying the cache gives back segments that are free as a whole.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

MIB = 1 << 20


class FakeOutOfMemoryError(RuntimeError):
    pass


class Dtype:
    def __init__(self, itemsize: int) -> None:
        self.itemsize = itemsize


class Segment:
    def __init__(self, size: int, small: bool) -> None:
        self.size, self.small = size, small
        self.holes: list[tuple[int, int]] = [(0, size)]
        """(start, length), ascending."""

    def give(self, start: int, length: int) -> None:
        merged: list[tuple[int, int]] = []
        for at, size in sorted([*self.holes, (start, length)]):
            if merged and merged[-1][0] + merged[-1][1] == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((at, size))
        self.holes = merged


class Tensor:
    def __init__(self, nbytes: int, cuda: FakeCuda | None) -> None:
        self.nbytes, self._cuda = nbytes, cuda
        self._place = cuda.take(nbytes) if cuda is not None else None

    def __del__(self) -> None:
        cuda = getattr(self, "_cuda", None)
        if cuda is not None and getattr(self, "_place", None) is not None:
            cuda.give(self.nbytes, self._place)

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Tensor:
        assert self.nbytes == source.nbytes
        return self

    def fill_(self, value: int) -> Tensor:
        return self


class FakeCuda:
    OutOfMemoryError = FakeOutOfMemoryError

    def __init__(self, total: int, others: int, capability: tuple[int, int]) -> None:
        self.total, self.others, self.capability = total, others, capability
        self.fraction = 1.0
        self.segments: list[Segment] = []
        self.requested = self.allocated = 0
        self.peaks = dict.fromkeys(("requested", "allocated", "reserved"), 0)
        self.device_allocs = 0
        self.most_reserved = 0
        self.memory = SimpleNamespace(get_allocator_backend=lambda: "native")

    @property
    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    def _peak(self) -> None:
        for name in self.peaks:
            self.peaks[name] = max(self.peaks[name], getattr(self, name))

    def take(self, nbytes: int) -> tuple[Segment, int, int]:
        size = -(-nbytes // 512) * 512
        small = size <= MIB
        holes = [
            (length, index, start, segment)
            for index, segment in enumerate(self.segments)
            if segment.small == small
            for start, length in segment.holes
            if length >= size
        ]
        if holes:
            length, _, start, segment = min(holes, key=lambda hole: hole[:3])
        else:
            segment, start = self._new_segment(size, small), 0
            length = segment.size
        segment.holes.remove((start, length))
        left = length - size
        if left < 512 if small else left <= MIB:
            size = length
        else:
            segment.holes = sorted([*segment.holes, (start + size, length - size)])
        self.requested += nbytes
        self.allocated += size
        self._peak()
        return segment, start, size

    def _new_segment(self, size: int, small: bool) -> Segment:
        if small:
            length = 2 * MIB
        elif size < 10 * MIB:
            length = 20 * MIB
        else:
            length = -(-size // (2 * MIB)) * 2 * MIB
        for retry in (False, True):
            fits = self.reserved + length <= min(
                self.total - self.others, int(self.fraction * self.total)
            )
            if fits:
                break
            if retry:
                raise FakeOutOfMemoryError("CUDA out of memory. Tried to allocate\nmore")
            self.empty_cache()
        self.device_allocs += 1
        self.segments.append(Segment(length, small))
        self.most_reserved = max(self.most_reserved, self.reserved)
        self._peak()
        return self.segments[-1]

    def give(self, nbytes: int, place: tuple[Segment, int, int]) -> None:
        segment, start, size = place
        segment.give(start, size)
        self.requested -= nbytes
        self.allocated -= size

    def empty_cache(self) -> None:
        self.segments = [s for s in self.segments if s.holes != [(0, s.size)]]

    def init(self) -> None: ...
    def synchronize(self, index: int = 0) -> None: ...
    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_device_properties(self, index: int) -> Any:
        major, minor = self.capability
        return SimpleNamespace(name="Fake", total_memory=self.total, major=major, minor=minor)

    def get_device_capability(self, index: int) -> tuple[int, int]:
        return self.capability

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return self.total - self.others - self.reserved, self.total

    def memory_allocated(self, index: int) -> int:
        return self.allocated

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def max_memory_allocated(self, index: int) -> int:
        return self.peaks["allocated"]

    def max_memory_reserved(self, index: int) -> int:
        return self.peaks["reserved"]

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peaks = dict.fromkeys(self.peaks, 0)
        self._peak()

    def memory_stats(self, index: int) -> dict[str, int]:
        return {
            "requested_bytes.all.current": self.requested,
            "requested_bytes.all.peak": self.peaks["requested"],
            "num_device_alloc": self.device_allocs,
        }

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        assert 0 <= fraction <= 1
        self.fraction = fraction


class FakeTorch:
    """One device of ``total`` bytes, of which others hold ``others``."""

    __version__ = "9.9"
    version = SimpleNamespace(cuda="99.9", hip=None)
    float16, bfloat16, float8_e4m3fn, uint8 = Dtype(2), Dtype(2), Dtype(1), Dtype(1)

    def __init__(
        self, total: int = 1 << 30, others: int = 0, capability: tuple[int, int] = (9, 0)
    ) -> None:
        self.cuda = FakeCuda(total, others, capability)

    def device(self, kind: str, index: int) -> tuple[str, int]:
        return kind, index

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: Dtype,
        device: tuple[str, int] | None = None,
        pin_memory: bool = False,
    ) -> Tensor:
        elements = shape if isinstance(shape, int) else math.prod(shape)
        return Tensor(elements * dtype.itemsize, None if device is None else self.cuda)

    def ones(self, count: int, device: tuple[str, int]) -> Any:
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: float(count)))
