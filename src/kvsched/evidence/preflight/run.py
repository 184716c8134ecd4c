"""Run every check of a preflight."""

from __future__ import annotations

from kvsched.evidence.environment import describe_environment
from kvsched.evidence.preflight.gpu import Machine, gpu_checks
from kvsched.evidence.preflight.host import (
    disk_check,
    engine_check,
    output_check,
    package_checks,
    python_check,
)
from kvsched.evidence.preflight.report import Check, Preflight, decision_of, worst
from kvsched.evidence.preflight.settings import PreflightSettings, checked, engine_base
from kvsched.foundation.jit import cache_folder
from kvsched.foundation.version import VERSION


def run_preflight(settings: PreflightSettings, machine: Machine | None = None) -> Preflight:
    """Look at everything that ``settings`` asks, and say what is in the way.

    Imports torch where it is installed (seconds). Raises UsageError for settings that make no
    sense; whatever is wrong with the machine is a check's status.
    """
    required, optional = checked(settings)
    where = machine or Machine()
    checks: list[Check] = [python_check()]
    on_gpu, seen = gpu_checks(settings, where)
    checks += on_gpu
    checks += package_checks(required, optional, where)
    if settings.output is not None:
        checks.append(output_check(settings.output, settings.min_disk_gb))
    checks.append(
        disk_check("disk (cache)", cache_folder(), settings.min_disk_gb, must_write=False)
    )
    if settings.engine_url is not None:
        checks.append(engine_check(settings.engine_url, settings.engine_timeout_s))
    environment = describe_environment([each.name for each in (*required, *optional)])
    environment |= {"torch": seen.torch, "driver": seen.driver, "devices": seen.devices or None}
    for field in ("torch", "driver", "devices"):
        environment["unknown"].pop(field, None)
    environment["unknown"] |= seen.unknown
    if not seen.devices:
        environment["unknown"]["devices"] = "none was found"
    return Preflight(
        kvsched=VERSION,
        evidence_level="gpu_smoke" if seen.computed else "cpu_simulation",
        status=worst(checks),
        checks=tuple(checks),
        decision=decision_of(checks),
        config=_config(settings),
        environment=environment,
    )


def _config(settings: PreflightSettings) -> dict[str, object]:
    """The settings, without the output's folder."""
    url = settings.engine_url
    return {
        "gpu": settings.gpu,
        "native_bf16": settings.native_bf16,
        "min_gpu_memory_gb": settings.min_gpu_memory_gb,
        "packages": list(settings.packages),
        "optional_packages": list(settings.optional_packages),
        "engine_url": None if url is None else engine_base(url),
        "engine_timeout_s": settings.engine_timeout_s,
        "min_disk_gb": settings.min_disk_gb,
    }
