"""What an order of requests is: a name, what it needs, and hooks.

To add one, copy `priority.py`, and add a line to `registry.py`; or name a class of your own
(docs/orders.md).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.foundation.errors import UsageError
from kvsched.policy.needs import HOW_TO_GIVE, missing_columns
from kvsched.policy.parameters import Parameter, changed_values, filled, labelled
from kvsched.serve import hooks
from kvsched.trace.model import Trace


class QueueOrder:
    """Base of all orders: first come, first served; `kvsched.serve.hooks` says what hooks do."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = "user"
    """Paper, engine and version that define the order."""
    parameters: ClassVar[dict[str, Parameter]] = {}
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns of the trace that it cannot do without."""
    resumes_first: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    picks: ClassVar[bool] = False
    watches: ClassVar[bool] = False
    queue_key: ClassVar[Any] = staticmethod(hooks.queue_key)
    preempted_place: ClassVar[Any] = staticmethod(hooks.preempted_place)
    on_queued: ClassVar[Any] = staticmethod(hooks.on_queued)
    on_admitted: ClassVar[Any] = staticmethod(hooks.on_admitted)
    on_left: ClassVar[Any] = staticmethod(hooks.on_left)
    on_ran: ClassVar[Any] = staticmethod(hooks.on_ran)
    before_admission: ClassVar[Any] = staticmethod(hooks.before_admission)
    next_waiting: ClassVar[Any] = staticmethod(hooks.next_waiting)

    def __init__(self, **values: float | str) -> None:
        self.values: dict[str, float] = filled(f"order {self.name}", self.parameters, values)

    @property
    def label(self) -> str:
        """The name, with the parameters that are not default: ``edf:ttft_s=2``."""
        return labelled(self.name, self.values, changed_values(self.parameters, self.values))

    def check(self, trace: Trace) -> None:
        """Raise UsageError if ``trace`` lacks a column that it needs, with how to give it."""
        for name in missing_columns(self.needs, trace):
            raise UsageError(
                f"order {self.label} needs `{name}` of every request, which the trace "
                f"{trace.origin.source} does not have ({HOW_TO_GIVE[name]})"
            )

    def prepare(self, trace: Trace) -> Any:
        """Return the arrays that the hooks get as ``own``: a NamedTuple of arrays, or an array."""
        return np.zeros(0)

    @classmethod
    def hooks(cls) -> dict[str, Any]:
        """Names that the loop is bound to."""
        return {name: getattr(cls, name) for name in HOOKS}

    @classmethod
    def summary(cls) -> str:
        """First line of the docstring."""
        return (cls.__doc__ or "").strip().split("\n")[0]


HOOKS = (
    "resumes_first",
    "moves",
    "picks",
    "watches",
    "queue_key",
    "preempted_place",
    "on_queued",
    "on_admitted",
    "on_left",
    "on_ran",
    "before_admission",
    "next_waiting",
)
"""Names in `kvsched.serve.hooks` that an order has its own of."""
