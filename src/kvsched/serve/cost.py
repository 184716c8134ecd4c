"""What a step costs: coefficients, and the functions that turn a step's sums into seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.serve import hooks
from kvsched.serve.state import Float64s

HOOKS = ("clear_batch", "add_to_batch", "grow_batch", "step_seconds", "idle_seconds")
"""Functions of `kvsched.serve.hooks` that a cost may have its own of."""


class Cost(NamedTuple):
    """What the compiled loop gets of a `StepCost`."""

    coefficients: Float64s
    window: int
    decode_threshold: int


@dataclass(frozen=True, eq=False)
class StepCost:
    """The seconds of a step. Plain functions that allocate nothing, as `kvsched.serve.hooks` says.

    Raises UsageError for a name that is no hook of a cost.
    """

    coefficients: Float64s
    """What ``step_seconds`` gets; the linear time: of a step, a token, a token read, a pair."""
    window: int = 0
    decode_threshold: int = 1
    hooks: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Functions in place of the linear time's."""

    def __post_init__(self) -> None:
        unknown = set(self.hooks) - set(HOOKS)
        if unknown:
            raise UsageError(f"a step's cost has no hook {', '.join(sorted(unknown))}")

    def bound(self) -> dict[str, Any]:
        """Names that the loop is bound to."""
        return {name: self.hooks.get(name, getattr(hooks, name)) for name in HOOKS}

    def arrays(self) -> Cost:
        """Return what the loop gets."""
        coefficients = np.array(self.coefficients, np.float64)
        return Cost(coefficients, int(self.window), int(self.decode_threshold))


def linear_cost(
    step_s: float, token_s: float = 0.0, read_s: float = 0.0, pair_s: float = 0.0
) -> StepCost:
    """Return a cost of so many seconds a step, a token, a token of context, a pair of tokens.

    Raises UsageError unless all are finite, none is negative, and a step takes time.
    """
    given = (step_s, token_s, read_s, pair_s)
    if not all(math.isfinite(each) and each >= 0 for each in given) or step_s + token_s <= 0:
        raise UsageError("a step's seconds must be finite and not negative, and some above 0")
    return StepCost(np.array(given))
