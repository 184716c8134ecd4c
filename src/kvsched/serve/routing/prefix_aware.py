"""A weighted score of prefix, queue and memory: that of the gateway's inference extension."""

from __future__ import annotations

from kvsched.serve.routing.base import Engines, Routing
from kvsched.trace.model import Trace


class PrefixAware(Routing):
    """The largest sum of three shares with their weights: prefix, queue, memory.

    prefix: the prompt's tokens that it would hit; queue: (most waiting - its waiting) / (most -
    least) over the engines, 1 where all have as many; memory: blocks that nobody holds. Of equals
    the fewest outstanding requests, then the first; the source takes any of them.
    """

    name = "prefix-aware"
    source = (
        "Gateway API inference extension and llm-d: prefix-cache, queue and kv-cache-utilization "
        "scorers with their default weights, max-score picker; hits as by KV events"
    )
    prefix_weight = 3.0
    queue_weight = 2.0
    kv_weight = 2.0

    def prepare(self, trace: Trace, replicas: int) -> None:
        """Keep the lengths of prompts."""
        self._prompt = trace.input_tokens

    def route(self, request: int, engines: Engines) -> int:
        """Return the engine. O(engines + hits)."""
        outstanding = engines.outstanding
        waiting = [
            engines.waiting(engine) if outstanding[engine] else 0 for engine in range(len(engines))
        ]
        most = max(waiting)
        span = most - min(waiting)
        prompt = max(int(self._prompt[request]), 1)
        found, best = 0, -1.0
        for engine, queue in enumerate(waiting):
            score = self.prefix_weight * (engines.hit_tokens(engine, request) / prompt)
            score += self.queue_weight * ((most - queue) / span if span else 1.0)
            score += self.kv_weight * (1.0 - engines.kv_usage(engine))
            if score > best or (score == best and outstanding[engine] < outstanding[found]):
                found, best = engine, score
        return found
