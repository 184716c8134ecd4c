"""Counters against counts kept from the answers; their names; Prometheus's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from random_run import BLOCK, Run, make_cache, second

from kvsched.cache import Admission, KVCacheScheduler, Lease, Move, Outcome, Request, Tenant
from kvsched.cache.events import BlockRemoved, BlockStored, Queued
from kvsched.cache.metrics import metric_names
from kvsched.foundation.errors import UsageError

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "back": {"second_tier": second()},
    "through": {"second_tier": second("through", "fifo", 6)},
    "head": {"when_full": "degrade", "when_oversize": "degrade"},
    "tier": {"second_tier": second(), "when_full": "degrade", "when_oversize": "degrade",
             "degrade": "tier"},
    "queue": {"when_full": "queue", "max_waiting": 3},
}  # fmt: skip


class Counted:
    """A cache whose answers are counted, and nothing that it says of itself."""

    def __init__(self, **settings: Any) -> None:
        self.count: Counter[str] = Counter()
        self.sizes: dict[int, int] = {}
        """Prompt tokens of each request that waits."""
        self.cache = make_cache(carry=self._carry, **settings)
        self.tiers = settings.get("second_tier") is not None
        self.waits = settings.get("when_full") == "queue"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cache, name)

    def _carry(self, moves: Sequence[Move]) -> None:
        self.count.update(f"{move.kind}s" for move in moves if move.kind != "copy")

    def acquire(self, request: Request) -> Admission:
        hit = self.cache.lookup(request)
        size = request.tokens
        assert size is not None
        found = self.cache.acquire(request)
        if found.ticket is not None:
            found.ticket.when_settled(lambda settled: self._settled(settled, size, None))
        else:
            self._settled(found, size, hit)
        return found

    def _settled(self, found: Admission, size: int, hit: int | None) -> None:
        if found.lease is None:
            self.count["rejected"] += 1
            return
        count, lease = self.count, found.lease
        count["admitted"] += 1
        count["degraded"] += found.outcome is Outcome.DEGRADE
        count["prompt_tokens"] += size
        count["prefix_cache_queries"] += size
        count["prompt_tokens_cached"] += lease.hit_tokens
        if hit is None:
            hit = lease.hit_tokens
        count["prefix_cache_hits"] += hit
        # The tenant that is apart has no blocks of the second tier.
        if self.tiers and lease.tenant != "apart":
            count["external_prefix_cache_queries"] += size - hit
            count["external_prefix_cache_hits"] += lease.hit_tokens - hit

    def extend(self, lease: Lease, tokens: Any, **more: Any) -> Any:
        found = self.cache.extend(lease, tokens, **more)
        if found.outcome is Outcome.ADMIT:
            self.count["generation_tokens"] += tokens if isinstance(tokens, int) else len(tokens)
        return found

    def release(self, lease: Lease, *, failed: bool = False) -> Any:
        self.count["released"] += 1
        self.count["failed"] += failed
        return self.cache.release(lease, failed=failed)

    def hear(self) -> None:
        for event in self.cache.take_events():
            self.count["queued"] += isinstance(event, Queued)
            if isinstance(event, BlockStored) and event.medium == "GPU":
                self.count["blocks_stored"] += len(event.block_hashes)
            elif isinstance(event, BlockRemoved) and event.medium == "GPU":
                blocks = len(event.block_hashes)
                self.count["blocks_evicted"] += blocks
                self.count["blocks_expired"] += blocks * (event.reason == "lifetime")
                self.count["blocks_dropped"] += blocks * (event.reason == "failed")


def counted(name: str, seed: int) -> tuple[Counted, Run]:
    cache = Counted(capacity=(6, 16, 40)[seed % 3], **SETTINGS[name])
    run = Run(cache, seed)  # type: ignore[arg-type]
    run._clear = lambda: None  # type: ignore[method-assign]  # what is cleared is not counted
    run.steps(200)
    run.end()
    for _ in range(20):
        run._poll()
        run.end()
    assert not run.leases
    for ticket in run.tickets:
        ticket.cancel()
    cache.hear()
    return cache, run


def wrong(name: str, seed: int) -> set[str]:
    cache, _ = counted(name, seed)
    found = cache.metrics()
    return {
        field for field, exported in metric_names().items() if found[exported] != cache.count[field]
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_every_counter_is_what_was_counted(name: str) -> None:
    total: Counter[str] = Counter()
    for seed in range(9):
        assert wrong(name, seed) == set(), seed
        total += counted(name, seed)[0].count
    expected = set(metric_names())
    if not SETTINGS[name].get("second_tier"):
        expected -= {"offloads", "loads"}
        expected -= {"external_prefix_cache_queries", "external_prefix_cache_hits"}
    if SETTINGS[name].get("when_full") != "degrade":
        expected -= {"degraded"}
    if name != "queue":
        expected -= {"queued"}
    assert expected <= set(total), "every counter counted something"


def test_counters_do_not_depend_on_who_listens() -> None:
    for seed in range(6):
        loud, deaf = (make_cache(max_events=most, tenants={}) for most in (1 << 20, 0))
        for cache in (loud, deaf):
            Run(cache, seed, tenants=("",)).steps(200).end()
        assert deaf.metrics() == loud.metrics()


def test_a_wrong_counter_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsched.cache.departures import Departures

    def uncounted(self: Departures, whys: bytes) -> None:
        self.counters.blocks_evicted += len(whys)

    monkeypatch.setattr(Departures, "_count", uncounted)
    assert {each for seed in range(9) for each in wrong("plain", seed)} == {
        "blocks_expired",
        "blocks_dropped",
    }


def test_queries_are_prompt_tokens_of_requests_that_ran_once() -> None:
    cache = make_cache(capacity=4, tenants={}, when_full="queue")
    names = metric_names()

    def now() -> tuple[float, float]:
        found = cache.metrics()
        return found[names["prefix_cache_queries"]], found[names["prefix_cache_hits"]]

    first = cache.acquire(Request(hashes=[1, 2, 3], tokens=11)).lease
    assert first is not None
    assert now() == (11, 0)
    waits = cache.acquire(Request(hashes=[1, 4, 5], tokens=12))
    assert waits.outcome is Outcome.QUEUE
    cache.poll()
    assert now() == (11, 0), "looking again for one that waits counts nothing"
    assert cache.acquire(Request(hashes=[], tokens=99)).outcome is Outcome.REJECT
    cache.lookup(Request(hashes=[1, 2, 3], tokens=11))
    cache.fork(first).close()
    assert now() == (11, 0)
    first.close()
    assert waits.ticket is not None
    assert waits.ticket.admission is not None
    assert now() == (23, 4)
    assert waits.ticket.admission.lease is not None
    waits.ticket.admission.lease.extend(2)
    waits.ticket.admission.lease.close()
    with cache.acquire(Request(hashes=[1, 4, 5], tokens=12)):
        assert now() == (35, 16), "the whole prompt: vLLM's engine asks for one token less"


def test_gauges() -> None:
    cache = make_cache(capacity=10, tenants={"apart": Tenant(quota_blocks=6)})
    names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")

    def now() -> list[float]:
        return [cache.metrics()[f"vllm:{name}"] for name in names]

    assert now() == [0.0, 0, 0]
    one = cache.acquire(Request(hashes=[1, 2, 3], tokens=13)).lease
    two = cache.acquire(Request(hashes=[1, 2, 4], tenant="apart")).lease
    assert one is not None
    assert two is not None
    assert now() == [0.7, 2, 0], "four blocks, and three of another namespace"
    twin = one.fork()
    assert now() == [0.7, 3, 0]
    one.close()
    two.close()
    assert now() == [0.4, 1, 0]
    twin.close()
    assert now() == [0.0, 0, 0]
    assert cache.metrics()["kvsched:cached_blocks"] == 6
    pin = cache.pin(Request(hashes=[1, 2]), "ops")
    assert now()[0] == 0.2
    assert cache.metrics()["kvsched:pinned_blocks"] == 2
    cache.unpin(pin)


def test_names_are_vllms_where_they_mean_the_same() -> None:
    names = set(metric_names().values())
    assert {name for name in names if name.startswith("vllm:")} == {
        f"vllm:{name}_total"
        for name in (
            "prefix_cache_queries",
            "prefix_cache_hits",
            "external_prefix_cache_queries",
            "external_prefix_cache_hits",
            "prompt_tokens",
            "prompt_tokens_cached",
            "generation_tokens",
        )
    }
    assert all(name.startswith(("vllm:", "kvsched:")) for name in make_cache().metrics())


def test_prometheus_reads_the_text() -> None:
    cache = make_cache(second_tier=second())
    Run(cache, 1).steps(100)
    labels = {"model_name": 'a "model"\\\nof two lines', "engine": "0"}
    families = list(text_string_to_metric_families(cache.metrics_text(labels)))
    found = {}
    for family in families:
        (sample,) = family.samples
        assert sample.labels == labels
        assert family.type == ("counter" if sample.name.endswith("_total") else "gauge")
        found[sample.name] = sample.value
    assert found == cache.metrics()
    assert len(families) == len(found)
    plain = list(text_string_to_metric_families(cache.metrics_text()))
    assert [family.samples[0].labels for family in plain] == [{}] * len(plain)


@pytest.mark.parametrize("name", ["", "model-name", "1st", "a b", "__name__"])
def test_a_label_that_prometheus_has_not_is_refused(name: str) -> None:
    cache: KVCacheScheduler = make_cache()
    with pytest.raises(UsageError, match="label"):
        cache.metrics_text({name: "x"})


def test_block_is_what_the_counts_assume() -> None:
    assert make_cache().block_size == BLOCK
