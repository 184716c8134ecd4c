"""An order of requests with a parameter: order="examples/patient_shortest.py:PatientShortest"."""

from typing import Any

import numpy as np

from kvsched import Parameter, Trace
from kvsched.serve.orders.base import QueueOrder


def queue_key(state: Any, own: Any, request: int, now: float) -> int:  # noqa: ARG001  # every hook has the contract's arguments
    """Return prompt tokens, and what a later arrival costs: the smallest key goes first."""
    return int(state.work.prompt[request] + own[0] * state.progress.arrival_s[request])


class PatientShortest(QueueOrder):
    """The shortest prompt first; a second of waiting is worth ``tokens_per_s`` tokens.

    Everyone gains the same in a second, so keys need not be asked again, and nobody starves: who
    comes later than the longest prompt over ``tokens_per_s`` seconds goes behind.
    """

    name = "patient-shortest"
    parameters = {"tokens_per_s": Parameter(1000.0, "tokens that a second of waiting is worth")}  # noqa: RUF012  # a class constant, typed in the base
    resumes_first = False
    queue_key = staticmethod(queue_key)

    def prepare(self, trace: Trace) -> Any:  # noqa: ARG002  # another order reads its columns
        """Return what the hooks get as ``own``: arrays, which they may change."""
        return np.array([self.values["tokens_per_s"]])
