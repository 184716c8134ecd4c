"""Numbers that a user may set of a policy, or of an order of requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvsched.foundation.errors import UsageError


@dataclass(frozen=True)
class Parameter:
    """A number that a user may set: its default, its bounds and what it means."""

    default: float
    help: str
    least: float = 0.0
    above: bool = False
    """Whether ``least`` itself is excluded."""
    most: float = 1e15
    """Its greatest value: lower where memory grows with it, or keys would overflow."""


def check_parameters(kind: str, reference: str, parameters: object) -> None:
    """Raise UsageError unless a class's ``parameters`` are what they must be."""
    if not isinstance(parameters, dict) or not all(
        isinstance(key, str) and isinstance(value, Parameter) for key, value in parameters.items()
    ):
        raise UsageError(f"{kind} {reference}: parameters must be a dict of name to Parameter")


def filled(
    whose: str, parameters: Mapping[str, Parameter], values: Mapping[str, float | str]
) -> dict[str, float]:
    """Return every parameter's value, the defaults for those that are not given.

    Raises UsageError for an unknown parameter, or a value out of its bounds.
    """
    for name, value in values.items():
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            raise UsageError(f"{whose} has no parameter {name} (known: {known})")
        parameter = parameters[name]
        if not isinstance(value, int | float | np.integer | np.floating):
            raise UsageError(f"{whose}: {name} must be a number, not {value!r}")
        low = value <= parameter.least if parameter.above else value < parameter.least
        if not math.isfinite(value) or low:
            sign = ">" if parameter.above else "≥"
            raise UsageError(f"{whose}: {name} must be {sign} {parameter.least:g}, not {value:g}")
        if value > parameter.most:
            raise UsageError(f"{whose}: {name} must be ≤ {parameter.most:g}, not {value:g}")
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {**defaults, **{name: float(value) for name, value in values.items()}}


def changed_values(
    parameters: Mapping[str, Parameter], values: Mapping[str, float]
) -> dict[str, str]:
    """Return the values that are not default, as text."""
    return {
        name: f"{value:.12g}" for name, value in values.items() if value != parameters[name].default
    }


def labelled(name: str, values: Mapping[str, float], changed: Mapping[str, str]) -> str:
    """Return a name with what is changed of its values: ``decay:half_life_s=60``."""
    return ":".join([name, *(f"{each}={changed[each]}" for each in values if each in changed)])
