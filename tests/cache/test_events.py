"""The stream of events: a mirror kept from it alone equals the cache; vLLM reads it."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from random_run import BLOCK, Run, hash_of, make_cache, second

from kvsched.cache import KVCacheScheduler, Request
from kvsched.cache.events import (
    AllBlocksCleared,
    Announcer,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    EventBatch,
    Hit,
    encode_batch,
)
from kvsched.cache.state import LOST, READY
from kvsched.kernel.table import NONE

Mirrored = Counter[tuple[str | None, Any]]

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "back": {"second_tier": second()},
    "through": {"second_tier": second("through", "fifo", 6)},
    "tier": {"second_tier": second(), "when_full": "degrade", "when_oversize": "degrade",
             "degrade": "tier"},
    "head": {"when_full": "degrade", "when_oversize": "degrade"},
    "queue": {"when_full": "queue"},
    "alone": {"tenants": {}},
}  # fmt: skip


class Mirror:
    """What can be hit, by the events of vLLM alone: how often each hash is in each medium."""

    def __init__(self) -> None:
        self.cached: Mirrored = Counter()

    def hear(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.cached.clear()
            elif isinstance(event, BlockStored):
                self.cached.update((event.medium, each) for each in event.block_hashes)
                above = event.parent_block_hash
                assert above is None or sum(self.cached[at, above] for at in ("GPU", "CPU"))
            elif isinstance(event, BlockRemoved):
                for each in event.block_hashes:
                    self.cached[event.medium, each] -= 1
                    assert self.cached[event.medium, each] >= 0, "removed what was not there"
        self.cached += Counter()


def reachable(cache: KVCacheScheduler) -> Mirrored:
    """What can be hit, by the cache's own columns: resident, not lost, and so all before it."""
    found: Mirrored = Counter()
    for home in cache.store.homes.values():
        live = home.partition.live
        table = live.table
        first = (table.resident == 1) & (live.ready != LOST)
        own = np.zeros_like(first)
        medium = ""
        if home.second is not None:
            below = home.second.partition.live
            # What a degraded request is still to write can be loaded once it has ended.
            own = (below.table.resident == 1) & (below.ready == READY)
            medium = home.second.settings.medium
        for node in np.flatnonzero(first | own).tolist():
            above = int(table.parent[node])
            here, there = bool(first[node]), bool(own[node])
            while above != NONE and (here or there):
                here &= bool(first[above])
                there &= bool(first[above] | own[above])
                above = int(table.parent[above])
            key = cache.maker.to_hash(home.partition.names.keys[node])
            if here:
                found["GPU", key] += 1
            if there:
                found[medium, key] += 1
    return found


def looked_up(run: Run) -> Counter[Any]:
    """How many namespaces' look-ups end at or behind each path that was ever asked for."""
    cache = run.cache
    found: set[tuple[Any, ...]] = set()
    for path, space, tenant in run.asked:
        request = run.request(path, space, tenant)
        if cache.lookup(request) >= len(path) * BLOCK:
            found.add((tuple(cache.maker.make(request).space.tolist()), tenant == "apart", path))
    return Counter(hash_of(path) for _, _, path in found)


def follow(cache: KVCacheScheduler, seed: int, steps: int, **more: Any) -> Run:
    """Run, comparing the mirror with the cache after each operation."""
    mirror = Mirror()

    def after(what: str) -> None:
        mirror.hear(cache.take_events())
        assert mirror.cached == reachable(cache), what
        cache.check()
        if not run.ids:
            named = Counter({key: n for (at, key), n in mirror.cached.items() if at == "GPU"})
            assert named == looked_up(run), what

    run = Run(cache, seed, after=after, **more)
    run.steps(steps)
    run.end()
    return run


@pytest.mark.parametrize("ids", [False, True], ids=["hashes", "ids"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_mirror_of_the_events_is_the_cache(name: str, ids: bool) -> None:
    did: Counter[str] = Counter()
    for seed in range(6):
        capacity = (6, 16, 40)[seed % 3]
        cache = make_cache(capacity=capacity, **SETTINGS[name])
        run = follow(cache, seed, 150, ids=ids, policies=("lru", "arc", "sieve", "gdsf"))
        did.update(run.did)
        assert cache.events.lost == 0
    assert min(did[what] for what in ("fail", "fork", "extend", "expire", "clear", "policy")) > 0


# The check fails where the stream is broken.


def _never_removed(self: Announcer, keys: Iterable[Any], medium: str, reason: str) -> None:
    """What leaves for its lifetime is not told."""
    if reason != "lifetime":
        _removed(self, keys, medium, reason)


def _lost_untold(self: Announcer, keys: Iterable[Any], medium: str, reason: str) -> None:
    if reason != "failed":
        _removed(self, keys, medium, reason)


def _first_tier_alone(
    self: Announcer, keys: Any, parent: Any, medium: str, tokens: Any = None, **named: Any
) -> None:
    if medium == "GPU":
        _stored(self, keys, parent, medium, tokens, **named)


_removed = Announcer.removed
_stored = Announcer.stored


@pytest.mark.parametrize(
    ("name", "method", "broken"),
    [
        ("plain", "removed", _never_removed),
        ("plain", "removed", _lost_untold),
        ("back", "stored", _first_tier_alone),
    ],
)
def test_a_broken_stream_is_noticed(
    name: str, method: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Announcer, method, broken)

    def follow_many() -> None:
        for seed in range(20):
            follow(make_cache(**SETTINGS[name]), seed, 150)

    with pytest.raises(AssertionError):
        follow_many()


def test_a_number_that_a_call_let_go_is_not_reused_in_it() -> None:
    """What left is told by its number after the call: of a reused one the mirror would notice."""
    cache = make_cache(capacity=4, history_blocks=0, tenants={})
    mirror = Mirror()
    for root in range(6):
        path = tuple((root, at) for at in range(4))
        with cache.acquire(Request(hashes=[hash_of(path[: at + 1]) for at in range(4)])):
            mirror.hear(cache.take_events())
            assert mirror.cached == reachable(cache)


# What is lost.


def chain(names: str) -> list[bytes]:
    return [name.encode() * 8 for name in names]


def gone(cache: KVCacheScheduler) -> list[tuple[Any, str | None, str | None]]:
    return [
        (each, event.medium, event.reason)
        for event in cache.take_events()
        if isinstance(event, BlockRemoved)
        for each in event.block_hashes
    ]


def test_a_block_that_is_found_no_more_is_told_at_once_and_once() -> None:
    cache = make_cache(tenants={})
    failing = cache.acquire(Request(hashes=chain("abc"))).lease
    waiting = cache.acquire(Request(hashes=chain("abcd"))).lease
    assert failing is not None
    assert waiting is not None
    cache.computed(failing, BLOCK)
    cache.take_events()
    cache.release(failing, failed=True)
    assert gone(cache) == [(each, "GPU", "failed") for each in chain("bcd")]
    again = cache.acquire(Request(hashes=chain("abcd"))).lease
    assert again is not None
    assert again.hit_blocks == 1
    cache.take_events()
    cache.release(waiting)
    assert gone(cache) == [], "b, c and d are stored again, under other numbers"
    cache.release(again)
    assert cache.lookup(Request(hashes=chain("abcd"))) == 4 * BLOCK
    assert cache.metrics()["kvsched:blocks_dropped_total"] == 3


def test_what_others_stored_below_a_lost_block_is_dropped_with_it() -> None:
    cache = make_cache(tenants={}, second_tier=second("through"))
    failing = cache.acquire(Request(hashes=chain("ab"))).lease
    assert failing is not None
    with cache.acquire(Request(hashes=chain("abcd"))) as lease:
        cache.computed(lease, 0)
    cache.take_events()
    cache.release(failing, failed=True)
    told = gone(cache)
    assert {each for each, medium, _ in told if medium == "GPU"} == set(chain("abcd"))
    assert cache.cached_blocks == 0
    assert reachable(cache) == Counter()
    cache.check()


def test_nothing_is_stored_below_what_is_lost() -> None:
    cache = make_cache(tenants={})
    failing = cache.acquire(Request(token_ids=[1, 2, 3, 4])).lease
    waiting = cache.acquire(Request(token_ids=[1, 2, 3, 4, 5])).lease
    assert failing is not None
    assert waiting is not None
    cache.release(failing, failed=True)
    assert waiting.extend([6, 7, 8, 9]).outcome == "admit"
    assert waiting.lost_from == 0
    assert reachable(cache) == Counter()
    cache.release(waiting)
    assert cache.cached_blocks == 0
    cache.check()


# vLLM's form.


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    path = Path(__file__).parent / "recordings" / "vllm-events.jsonl.gz"
    found: dict[str, Any] = msgspec.json.decode(gzip.decompress(path.read_bytes()))
    return found


OURS = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
    "KVEventBatch": EventBatch,
}


def vllm_classes(recorded: dict[str, Any]) -> type[msgspec.Struct]:
    """vLLM's batch, made from what its classes were when recorded."""
    made: dict[str, Any] = {}
    for name, form in recorded["classes"].items():
        fields: list[Any] = [
            each["name"] if each["required"] else (each["name"], Any, None)
            for each in form["fields"]
        ]
        if name == "KVEventBatch":
            union = made["BlockStored"] | made["BlockRemoved"] | made["AllBlocksCleared"]
            fields[1] = ("events", list[union])  # type: ignore[valid-type]
        made[name] = msgspec.defstruct(
            name,
            fields,
            array_like=form["array_like"],
            omit_defaults=form["omit_defaults"],
            tag=form["tag"],
            tag_field=form["tag_field"],
        )
    batch: type[msgspec.Struct] = made["KVEventBatch"]
    return batch


@pytest.mark.parametrize("name", OURS)
def test_classes_have_vllms_form(name: str, recorded: dict[str, Any]) -> None:
    form, ours = recorded["classes"][name], OURS[name]
    fields = [
        {"name": each.name, "required": each.required} for each in msgspec.structs.fields(ours)
    ]
    config = ours.__struct_config__
    assert fields[: len(form["fields"])] == form["fields"]
    assert [each["name"] for each in fields[len(form["fields"]) :]] in ([], ["reason"])
    assert (config.array_like, config.omit_defaults) == (form["array_like"], form["omit_defaults"])
    assert (config.tag, config.tag_field) == (form["tag"], form["tag_field"])


def ours(recorded: dict[str, Any]) -> list[bytes]:
    """The recorded runs through this cache, each encoded as a batch."""
    cache = KVCacheScheduler(
        recorded["blocks"], recorded["block_size"], hash_seed=recorded["seed"], max_events=100
    )
    batches = []
    for at, run in enumerate(recorded["runs"]):
        named = {name: value for name, value in run.items() if name != "tokens"}
        if "lora_name" in named:
            named["lora_path"] = "nowhere"  # as the recorder has it
        full = len(run["tokens"]) // recorded["block_size"] * recorded["block_size"]
        with cache.acquire(Request(token_ids=run["tokens"][:full], **named)):
            pass
        batches.append(encode_batch(cache.take_events(), float(at)))
    assert cache.clear()
    batches.append(encode_batch(cache.take_events(), float(len(batches))))
    return batches


def test_the_bytes_are_those_that_vllms_pool_gave(recorded: dict[str, Any]) -> None:
    theirs = [base64.b64decode(batch) for batch in recorded["batches"]]
    made = ours(recorded)
    same = [at for at, run in enumerate(recorded["runs"]) if "lora_name" not in run]
    # The cleared batch too.
    for at in [*same, len(theirs) - 1]:
        assert made[at] == theirs[at]
    batch = vllm_classes(recorded)
    for mine, its in zip(made, theirs, strict=True):
        one, two = (msgspec.msgpack.decode(each, type=batch) for each in (mine, its))
        for event, other in zip(one.events, two.events, strict=True):  # type: ignore[attr-defined]
            assert type(event) is type(other)
            for name in (
                "block_hashes", "parent_block_hash", "token_ids", "block_size", "medium",
                "lora_name", "extra_keys",
            ):  # fmt: skip
                assert getattr(event, name, None) == getattr(other, name, None)


def test_whole_hashes_and_batches_of_a_rank(recorded: dict[str, Any]) -> None:
    events = [
        BlockStored([b"a" * 32], b"b" * 32, [], 4, None, "CPU", None),
        Hit("r", 4, 0),
        BlockRemoved([7], "GPU", reason="policy"),
    ]
    batch = vllm_classes(recorded)
    found: Any = msgspec.msgpack.decode(encode_batch(events, 1.5, 3, int_hashes=False), type=batch)
    assert (found.ts, found.data_parallel_rank, len(found.events)) == (1.5, 3, 2)
    assert found.events[0].block_hashes == [b"a" * 32]
    assert found.events[1].block_hashes == [7]
    plain: Any = msgspec.msgpack.decode(encode_batch(events, 1.5))
    assert plain[1][0]["block_hashes"] == [int.from_bytes(b"a" * 8, "big")]
    assert plain[1][0]["parent_block_hash"] == int.from_bytes(b"b" * 8, "big")


def test_an_event_that_vllm_could_not_read_is_noticed(recorded: dict[str, Any]) -> None:
    batch = vllm_classes(recorded)
    short = {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": None}
    with pytest.raises(msgspec.ValidationError, match="token_ids"):
        msgspec.msgpack.decode(msgspec.msgpack.encode([0.0, [short]]), type=batch)


# What is kept of the stream.


def test_the_oldest_events_go_first_and_are_counted() -> None:
    cache = make_cache(tenants={}, max_events=3)
    for name in "abcd":
        with cache.acquire(Request(hashes=chain(name), id=name)):
            pass
    taken = cache.take_events()
    assert [type(event).__name__ for event in taken] == ["Admitted", "BlockStored", "Admitted"]
    assert cache.events.lost == 5
    assert cache.events.sequence == 8
    assert cache.metrics()["kvsched:lost_events"] == 5
    assert cache.take_events() == []
    silent = make_cache(tenants={}, max_events=0)
    with silent.acquire(Request(hashes=chain("a"))):
        pass
    assert silent.take_events() == []
    assert silent.events.sequence == 0


def test_tokens_and_keys_of_what_decoding_fills_are_told() -> None:
    cache = make_cache(tenants={})
    request = Request(
        token_ids=[1, 2, 3, 4, 5], lora_name="l", cache_salt="s", model_revision="r", session="x"
    )
    with cache.acquire(request) as lease:
        lease.extend([6, 7])
        lease.extend([8, 9, 10, 11, 12, 13])
    stored = [event for event in cache.take_events() if isinstance(event, BlockStored)]
    assert [event.token_ids for event in stored] == [[1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12]]
    assert [event.extra_keys for event in stored] == [[("l", "s", "r")], [("l",), ("l",)]]
    assert [event.parent_block_hash for event in stored] == [None, stored[0].block_hashes[0]]
    assert {event.session_id for event in stored} == {"x"}
