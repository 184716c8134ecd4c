"""Generated workloads: seeded traces with sessions, shared prompts, tools and documents."""

from kvsched.trace.generate.make import generate
from kvsched.trace.generate.presets import PRESETS, preset
from kvsched.trace.generate.sampled import generate_sampled
from kvsched.trace.generate.workload import (
    Bursts,
    Day,
    Documents,
    Poisson,
    Prompts,
    Spread,
    Stream,
    Tools,
    Turns,
    Workload,
)

__all__ = [
    "PRESETS",
    "Bursts",
    "Day",
    "Documents",
    "Poisson",
    "Prompts",
    "Spread",
    "Stream",
    "Tools",
    "Turns",
    "Workload",
    "generate",
    "generate_sampled",
    "preset",
]
