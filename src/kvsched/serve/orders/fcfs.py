"""First come, first served: vLLM's default."""

from __future__ import annotations

from kvsched.serve.orders.base import QueueOrder


class FCFS(QueueOrder):
    """Requests in the order of their arrival; the last admitted is preempted.

    A preempted request goes back to the head of the queue.
    """

    name = "fcfs"
    source = "vLLM 0.32.0 v1 FCFSRequestQueue"
