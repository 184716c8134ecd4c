"""What an order of requests is: a name, what it needs, and hooks.

To add one, copy `priority.py`, and add a line to `registry.py`; or name a class of your own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from kvsched.serve import hooks
from kvsched.trace.model import Trace


class QueueOrder:
    """Base of all orders: first come, first served; `kvsched.serve.hooks` says what hooks do."""

    name: ClassVar[str] = ""
    source: ClassVar[str] = "user"
    """Paper, engine and version that define the order."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns of the trace that it cannot do without."""
    resumes_first: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    watches: ClassVar[bool] = False
    queue_key: ClassVar[Any] = staticmethod(hooks.queue_key)
    preempted_place: ClassVar[Any] = staticmethod(hooks.preempted_place)
    on_ran: ClassVar[Any] = staticmethod(hooks.on_ran)

    def prepare(self, trace: Trace) -> Any:
        """Return the arrays that the hooks get as ``own``: a NamedTuple of arrays, or an array."""
        return np.zeros(0)

    @classmethod
    def hooks(cls) -> dict[str, Any]:
        """Names that the loop is bound to."""
        return {
            "resumes_first": cls.resumes_first,
            "moves": cls.moves,
            "watches": cls.watches,
            "on_ran": cls.on_ran,
            "queue_key": cls.queue_key,
            "preempted_place": cls.preempted_place,
        }
