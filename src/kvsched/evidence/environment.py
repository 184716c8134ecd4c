"""The machine that something was measured on, without names of hosts, users or folders."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvsched.evidence.host_memory import host_memory

DRIVER_QUERY = ("name", "memory.total", "driver_version", "compute_cap")
DRIVER_TIMEOUT_S = 10.0
NATIVE_BF16 = (8, 0)
"""First compute capability with bfloat16 arithmetic of its own (CUDA C++ Programming Guide)."""


def describe_environment(packages: Sequence[str] = (), *, devices: bool = False) -> dict[str, Any]:
    """Return the machine, its memory, Python, and versions of ``packages`` (distribution names).

    ``devices`` also asks torch and the driver what accelerators there are, which imports torch
    (seconds). What is not known is None, and ``unknown`` says why, by the dotted name of the field.
    Sizes are bytes. Raises nothing.
    """
    unknown: dict[str, str] = {}
    memory = host_memory()
    found: dict[str, Any] = {
        "machine": {
            "system": platform.system() or None,
            # The rest of the release may be anything that who built the kernel wrote.
            "release": (re.match(r"[\d.]*\d", platform.release()) or [None])[0],
            "architecture": platform.machine() or None,
        },
        "cpu": {"model": cpu_model(), "count": os.cpu_count(), "usable": usable_cpus()},
        "memory": {"total_bytes": memory.total, "cgroup_limit_bytes": memory.cgroup_limit},
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "packages": {name: package_version(name) for name in packages},
        "torch": None,
        "driver": None,
        "devices": None,
    }
    if memory.total is None:
        unknown["memory.total_bytes"] = "the system has no /proc/meminfo"
    if memory.cgroup_limit is None:
        unknown["memory.cgroup_limit_bytes"] = "no limit is set, or none can be read"
    if found["cpu"]["model"] is None:
        unknown["cpu.model"] = "the system does not name it"
    for name, version in found["packages"].items():
        if version is None:
            unknown[f"packages.{name}"] = "not installed"
    if devices:
        _add_devices(found, unknown)
    else:
        for field in ("torch", "driver", "devices"):
            unknown[field] = "not asked for"
    found["unknown"] = unknown
    return found


def cpu_model() -> str | None:
    """The processor's name as the kernel has it; None where it has none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or None
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else None


def usable_cpus() -> int | None:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def package_version(name: str) -> str | None:
    """The installed version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def load_torch() -> tuple[Any, str]:
    """Import torch: the module and "", or None and the reason. Takes seconds the first time."""
    try:
        import torch
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        return None, "torch is not installed" if absent else "torch does not load on this system"
    except OSError:
        return None, "torch does not load: a library that it needs is missing"
    return torch, ""


def no_cuda_reason(torch: Any) -> str:
    """Why CUDA cannot be used through this torch; empty where it can."""
    version = torch.version.cuda or getattr(torch.version, "hip", None)
    if version is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} is built for CUDA {version}, but finds no device (no GPU, "
            "no driver, a driver too old, or CUDA_VISIBLE_DEVICES is empty)"
        )
    return ""


def cuda_devices(torch: Any) -> list[dict[str, Any]]:
    """What torch says of every CUDA device that it sees; an empty list without CUDA."""
    if no_cuda_reason(torch):
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(index)
        capability = (int(of.major), int(of.minor))
        found.append(
            {
                "index": index,
                "name": str(of.name),
                "memory_bytes": int(of.total_memory),
                "compute_capability": f"{capability[0]}.{capability[1]}",
                "native_bf16": native_bf16(torch, index),
            }
        )
    return found


def native_bf16(torch: Any, index: int = 0) -> bool:
    """Whether the device computes bfloat16 itself, emulation by the compiler left out."""
    if getattr(torch.version, "hip", None):
        with torch.cuda.device(index):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return tuple(torch.cuda.get_device_capability(index)) >= NATIVE_BF16


def driver_devices() -> tuple[list[dict[str, Any]], str]:
    """What the vendor's own tool says, without torch: devices and "", or none and the reason."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], "nvidia-smi is not installed, so there is no NVIDIA driver or it is not in PATH"
    command = [tool, f"--query-gpu={','.join(DRIVER_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(  # noqa: S603 - a fixed command of the system's own tool
            command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer in {DRIVER_TIMEOUT_S:g} s"
    except OSError:
        return [], "nvidia-smi cannot be run"
    found = parse_driver(ended.stdout) if ended.returncode == 0 else []
    if not found:
        return [], f"nvidia-smi finds no device (exit code {ended.returncode})"
    return found, ""


def parse_driver(text: str) -> list[dict[str, Any]]:
    """Devices from the tool's CSV, one a line; a field that it does not know is None."""
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(DRIVER_QUERY):
            continue
        name, mib, driver, capability = parts
        found.append(
            {
                "name": name,
                "memory_bytes": int(mib) << 20 if mib.isdecimal() else None,
                "driver": driver,
                "compute_capability": (
                    capability if re.fullmatch(r"\d+\.\d+", capability) else None
                ),
            }
        )
    return found


def _add_devices(found: dict[str, Any], unknown: dict[str, str]) -> None:
    torch, reason = load_torch()
    if torch is None:
        unknown["torch"] = reason
        unknown["devices"] = reason
    else:
        found["torch"] = {"version": str(torch.__version__), "cuda": torch.version.cuda}
        lacking = no_cuda_reason(torch)
        if lacking:
            unknown["devices"] = lacking
        else:
            found["devices"] = cuda_devices(torch)
    seen, reason = driver_devices()
    if seen:
        found["driver"] = seen[0]["driver"]
    else:
        unknown["driver"] = reason
