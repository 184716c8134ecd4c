"""How much memory this process may use: the machine's, and its control group's limit."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

NO_LIMIT = 1 << 62
"""Version 1 of control groups writes "no limit" as a number near 2^63."""


class HostMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes; None where the system does not say."""

    total: int | None
    """Of the machine."""
    available: int | None
    """What the kernel thinks can be had without swapping (``MemAvailable``)."""
    cgroup_limit: int | None
    """The smallest limit on the way from the process's control group to the root; None: none."""
    cgroup_used: int | None
    """What that group holds, file cache that can go left out; None where there is no limit."""

    @property
    def usable(self) -> int | None:
        """Bytes that this process could take now: available, and within the group's limit."""
        found = [] if self.available is None else [self.available]
        if self.cgroup_limit is not None:
            found.append(max(0, self.cgroup_limit - (self.cgroup_used or 0)))
        return min(found, default=None)


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Read the kernel's files under ``root``; O(depth of the control group)."""
    info = _fields(root / "proc/meminfo")
    limit, used = _cgroup(root)
    return HostMemory(
        total=info.get("MemTotal"),
        available=info.get("MemAvailable"),
        cgroup_limit=limit,
        cgroup_used=used,
    )


def _fields(file: Path) -> dict[str, int]:
    """Bytes by name, from lines like ``MemTotal: 24684084 kB``."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", _text(file), re.MULTILINE)
    return {name: int(kib) << 10 for name, kib in found}


def process_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Resident bytes of this process, and their peak since `reset_peak` or the start.

    ``smaps_rollup`` counts pages; ``status`` may lag behind by some pages a thread.
    """
    status = _fields(root / "proc/self/status")
    exact = _fields(root / "proc/self/smaps_rollup").get("Rss")
    return (exact if exact is not None else status.get("VmRSS")), status.get("VmHWM")


def address_space_left(root: Path = Path("/")) -> int | None:
    """Bytes that ``ulimit -v`` leaves this process; None without such a limit."""
    try:
        import resource
    except ImportError:  # not on every system
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    taken = _fields(root / "proc/self/status").get("VmSize")
    if limit == resource.RLIM_INFINITY or taken is None:
        return None
    return max(0, limit - taken)


def reset_peak() -> bool:
    """Start the peak of `process_memory` anew; False where the kernel does not allow it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdecimal() else None


def _cgroup(root: Path) -> tuple[int | None, int | None]:
    """The tightest limit and what its group uses; (None, None) without a limit."""
    tightest: tuple[int, int | None] | None = None
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            base, limit_file, used_file = root / "sys/fs/cgroup", "memory.max", "memory.current"
            cache = "inactive_file"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
            cache = "total_inactive_file"
        else:
            continue
        # In a container the path may be the host's: then only the mount's own root is there.
        folder = base / path.lstrip("/")
        for group in (folder, *folder.parents):
            if not group.is_relative_to(base):
                break
            limit = _number(group / limit_file)
            if limit is not None and limit < NO_LIMIT and (not tightest or limit < tightest[0]):
                tightest = limit, _held(group, used_file, cache)
    return tightest or (None, None)


def _held(group: Path, used_file: str, cache: str) -> int | None:
    used = _number(group / used_file)
    if used is None:
        return None
    found = re.search(rf"^{cache} (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, used - int(found[1])) if found else used
