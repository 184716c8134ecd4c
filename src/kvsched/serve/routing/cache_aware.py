"""Where the prefix is, unless the load is too uneven: SGLang's."""

from __future__ import annotations

from kvsched.serve.routing.base import Engines, Routing, fewest
from kvsched.trace.model import Trace


class CacheAware(Routing):
    """The engine that hits most, if it hits more than ``cache_threshold`` of the prompt.

    Otherwise the fewest outstanding requests; and always so while the numbers of two engines
    differ by more than ``balance_abs_threshold`` and by a factor above ``balance_rel_threshold``.
    Of those that hit alike the fewest outstanding requests.

    SGLang's router guesses from what it has sent where; this one looks into the caches, as a
    router does that gets KV events.
    """

    name = "cache-aware"
    source = "SGLang model gateway, cache_aware policy; thresholds of its router_args"
    cache_threshold = 0.3
    balance_abs_threshold = 64
    balance_rel_threshold = 1.5

    def prepare(self, trace: Trace, replicas: int) -> None:
        """Keep the lengths of prompts."""
        self._prompt = trace.input_tokens

    def route(self, request: int, engines: Engines) -> int:
        """Return the engine. O(engines + hits)."""
        least, most = min(engines.outstanding), max(engines.outstanding)
        if most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least:
            return fewest(engines)
        hits = [engines.hit_tokens(engine, request) for engine in range(len(engines))]
        best = max(hits)
        if best > self.cache_threshold * int(self._prompt[request]):
            alike = [engine for engine, hit in enumerate(hits) if hit == best]
            return min(alike, key=engines.outstanding.__getitem__)
        return fewest(engines)
