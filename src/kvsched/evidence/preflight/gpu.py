"""Checks of torch, the driver, and the devices that both see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvsched.evidence import environment
from kvsched.evidence.preflight.report import Check, CheckStatus
from kvsched.evidence.preflight.settings import PreflightSettings

INSTALL_TORCH = "pip install 'kvsched[gpu]', with a wheel of torch that is built for CUDA"
USE_CPU = "kvsched probe --device cpu measures host memory"


@dataclass(frozen=True)
class Machine:
    """Where the checks look: functions that a test can put others in place of."""

    load_torch: Callable[[], tuple[Any, str]] = environment.load_torch
    driver_devices: Callable[[], tuple[list[dict[str, Any]], str]] = environment.driver_devices
    package_version: Callable[[str], str | None] = environment.package_version


@dataclass
class Seen:
    """What was found, for checks that come later."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    torch: dict[str, Any] | None = None
    driver: str | None = None
    unknown: dict[str, str] = field(default_factory=dict)
    """Why one of the others is not known."""
    computed: bool = False
    """Whether a device added numbers up correctly."""


def gpu_checks(settings: PreflightSettings, machine: Machine) -> tuple[list[Check], Seen]:
    """Check torch and CUDA, the driver, devices, memory and bfloat16; imports torch (seconds)."""
    lacking: CheckStatus = "blocked" if settings.gpu else "warning"
    torch, absent = machine.load_torch()
    seen = Seen()
    checks = [_cuda(torch, absent, lacking)]
    from_driver, why = machine.driver_devices()
    _note(seen, torch, absent, from_driver, why)
    checks.append(_driver(from_driver, why, torch, lacking))
    usable = environment.cuda_devices(torch) if torch is not None else []
    checks.append(_device(torch, usable, seen, lacking, from_driver))
    # What torch cannot use still has a size; whether it can be used is the check before.
    seen.devices = usable or from_driver
    fast = [each for each in seen.devices if _native(each)]
    if settings.native_bf16 or seen.devices:
        checks.append(_bf16(seen.devices, fast, settings.native_bf16))
    checks += _memory(settings, seen.devices, fast)
    return checks, seen


def _note(seen: Seen, torch: Any, absent: str, from_driver: list[dict[str, Any]], why: str) -> None:
    if torch is None:
        seen.unknown["torch"] = absent
    else:
        seen.torch = {"version": str(torch.__version__), "cuda": torch.version.cuda}
    if from_driver:
        seen.driver = from_driver[0]["driver"]
    else:
        seen.unknown["driver"] = why


def _cuda(torch: Any, absent: str, lacking: CheckStatus) -> Check:
    if torch is None:
        return Check(name="cuda", status=lacking, reason=f"{absent}.", next_action=INSTALL_TORCH)
    reason = environment.no_cuda_reason(torch)
    if reason:
        action = INSTALL_TORCH if torch.version.cuda is None else "look at the driver's check"
        return Check(name="cuda", status=lacking, reason=f"{reason}.", next_action=action)
    version = torch.version.cuda or getattr(torch.version, "hip", None)
    reason = f"torch {torch.__version__} with CUDA {version}."
    return Check(name="cuda", status="ok", reason=reason)


def _driver(devices: list[dict[str, Any]], why: str, torch: Any, lacking: CheckStatus) -> Check:
    if devices:
        names = ", ".join(str(each["name"]) for each in devices)
        return Check(
            name="driver", status="ok", reason=f"driver {devices[0]['driver']} sees {names}."
        )
    if torch is not None and environment.cuda_devices(torch):
        # Containers often lack the tool; what torch does with the device counts.
        return Check(
            name="driver",
            status="warning",
            reason=f"{why}; torch uses the device all the same.",
            next_action="none needed; the driver's version stays unknown",
        )
    return Check(
        name="driver",
        status=lacking,
        reason=f"{why}.",
        next_action=f"install the NVIDIA driver, or give the container the GPU; or {USE_CPU}",
    )


def _device(
    torch: Any,
    usable: list[dict[str, Any]],
    seen: Seen,
    lacking: CheckStatus,
    from_driver: list[dict[str, Any]],
) -> Check:
    if not usable:
        unused = " (the driver sees one, torch does not)" if from_driver else ""
        return Check(
            name="gpu",
            status=lacking,
            reason=f"no GPU that torch can use{unused}.",
            next_action=f"run on a machine with a GPU, or {USE_CPU}",
        )
    for each in usable:
        fault = smoke(torch, each["index"])
        if fault:
            return Check(
                name="gpu",
                status="blocked",
                reason=f"{each['name']} (index {each['index']}) is there, but {fault}.",
                next_action="look whether others hold it, and whether torch is built for it",
            )
    seen.computed = True
    names = ", ".join(
        f"{each['name']} (compute capability {each['compute_capability']})" for each in usable
    )
    return Check(name="gpu", status="ok", reason=f"{names}: computed a sum correctly.")


def smoke(torch: Any, index: int) -> str:
    """Add up 1,024 ones on the device; empty where that is right, else what went wrong."""
    try:
        found = float(torch.ones(1024, device=torch.device("cuda", index)).sum().item())
    except RuntimeError as error:
        return f"it does not compute ({str(error).splitlines()[0][:120]})"
    return "" if found == 1024 else f"1,024 ones make {found:g}"


def _native(device: dict[str, Any]) -> bool:
    if "native_bf16" in device:
        return bool(device["native_bf16"])
    capability = device["compute_capability"]
    if capability is None:
        return False
    major, minor = (int(part) for part in capability.split("."))
    return (major, minor) >= environment.NATIVE_BF16


def _bf16(devices: list[dict[str, Any]], fast: list[dict[str, Any]], required: bool) -> Check:
    if fast:
        names = ", ".join(str(each["name"]) for each in fast)
        return Check(name="native bf16", status="ok", reason=f"{names}: native bfloat16.")
    what = "no device has native bfloat16" if devices else "there is no device"
    return Check(
        name="native bf16",
        status="blocked" if required else "warning",
        reason=f"{what}: it needs compute capability 8.0 or higher (emulation does not count).",
        next_action="use float16, or an Ampere GPU or later",
    )


def _memory(
    settings: PreflightSettings, devices: list[dict[str, Any]], fast: list[dict[str, Any]]
) -> list[Check]:
    least = settings.min_gpu_memory_gb
    sizes = [(each["memory_bytes"], each) for each in devices if each["memory_bytes"] is not None]
    if least is None:
        if not sizes:
            return []
        said = ", ".join(f"{each['name']} {size / 1e9:.1f} GB" for size, each in sizes)
        return [Check(name="gpu memory", status="ok", reason=f"{said}; no minimum was asked for.")]
    large = [each for size, each in sizes if size >= least * 1e9]
    if settings.native_bf16 and fast and large:
        both = [each for each in large if each in fast]
        if not both:
            return [
                Check(
                    name="gpu memory",
                    status="blocked",
                    reason=f"no device has both {least:g} GB and native bfloat16.",
                    next_action="ask for less, or use another GPU",
                )
            ]
        large = both
    if large:
        return [
            Check(
                name="gpu memory",
                status="ok",
                reason=f"{large[0]['name']} has {large[0]['memory_bytes'] / 1e9:.1f} GB; at least "
                f"{least:g} GB were asked for.",
            )
        ]
    most = max((size for size, _ in sizes), default=None)
    found = "there is no device" if most is None else f"the largest device has {most / 1e9:.1f} GB"
    return [
        Check(
            name="gpu memory",
            status="blocked",
            reason=f"{found}; at least {least:g} GB were asked for.",
            next_action="lower --min-gpu-memory-gb, or use a larger GPU",
        )
    ]
