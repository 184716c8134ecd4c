"""Keys against those that vLLM's own hasher returned, each rule broken, and what is refused."""

from __future__ import annotations

import array
import enum
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvsched.cache.hashing import ALGORITHMS, DEFAULT_SEED, BlockHasher
from kvsched.foundation.errors import UsageError

RECORDING = Path(__file__).parent / "recordings" / "vllm-hashes.jsonl.gz"
with gzip.open(RECORDING, "rt", encoding="utf-8") as _lines:
    CASES = [json.loads(line) for line in _lines][1:]

DIGESTS = {
    "sha256_cbor": lambda data: hashlib.sha256(data).digest(),
    "xxhash_cbor": xxhash.xxh3_128_digest,
}


def ours(case: dict[str, Any], **more: Any) -> list[str]:
    hasher = BlockHasher(case["block_size"], case["algorithm"], case["seed"])
    name, path = case["lora"] or (None, "")
    asked = {"lora_name": name, "lora_path": path, "cache_salt": case["salt"], **more}
    return [key.hex() for key in hasher.chain(case["token_ids"], **asked)]


def test_keys_are_those_that_vllm_returned() -> None:
    assert len(CASES) > 100
    for case in CASES:
        assert ours(case) == case["hashes"]


def test_the_recording_has_what_it_should_tell_apart() -> None:
    assert {case["algorithm"] for case in CASES} == set(ALGORITHMS)
    assert {case["seed"] for case in CASES} >= {None, "0"}
    assert any(case["lora"] and case["salt"] and len(case["hashes"]) > 1 for case in CASES)
    assert any(len(case["token_ids"]) % case["block_size"] for case in CASES)
    assert any(case["prompt"] < len(case["token_ids"]) for case in CASES)


class Rules:
    """The rules once more, over the library that vLLM uses; a subclass breaks one."""

    def parent(self, before: bytes) -> Any:
        return before

    def tokens(self, ids: list[int]) -> Any:
        return tuple(ids)

    def keys(self, case: dict[str, Any], block: int) -> Any:
        found = [("lora", *case["lora"])] if case["lora"] else []
        if case["salt"] and not block:
            found.append(("cache_salt", case["salt"]))
        return tuple(found) or None

    def seed(self, case: dict[str, Any]) -> Any:
        return DEFAULT_SEED if case["seed"] is None else case["seed"]

    def blocks(self, case: dict[str, Any]) -> int:
        return len(case["token_ids"]) // case["block_size"]

    def hashes(self, case: dict[str, Any]) -> list[str]:
        def digest(item: Any) -> bytes:
            return DIGESTS[case["algorithm"]](cbor2.dumps(item, canonical=True))

        size, before, found = case["block_size"], digest(self.seed(case)), []
        for block in range(self.blocks(case)):
            ids = case["token_ids"][block * size : (block + 1) * size]
            before = digest((self.parent(before), self.tokens(ids), self.keys(case, block)))
            found.append(before.hex())
        return found


class SaltInEveryBlock(Rules):
    def keys(self, case: dict[str, Any], block: int) -> Any:
        return super().keys(case, 0)


class AdapterInTheFirstBlock(Rules):
    def keys(self, case: dict[str, Any], block: int) -> Any:
        return super().keys(case if not block else {**case, "lora": None}, block)


class AdapterWithoutPath(Rules):
    def keys(self, case: dict[str, Any], block: int) -> Any:
        adapter = case["lora"] and case["lora"][:1]
        return super().keys({**case, "lora": adapter}, block)


class SaltBeforeAdapter(Rules):
    def keys(self, case: dict[str, Any], block: int) -> Any:
        found = super().keys(case, block)
        return found and tuple(reversed(found))


class NoKeysAreAnEmptyTuple(Rules):
    def keys(self, case: dict[str, Any], block: int) -> Any:
        return super().keys(case, block) or ()


class NoParent(Rules):
    def parent(self, before: bytes) -> Any:
        return None


class ParentAsNumber(Rules):
    def parent(self, before: bytes) -> Any:
        return int.from_bytes(before, "big")


class TokensAsSet(Rules):
    def tokens(self, ids: list[int]) -> Any:
        return tuple(sorted(ids))


class TokensAsBytes(Rules):
    def tokens(self, ids: list[int]) -> Any:
        return np.array(ids, np.int64).tobytes()


class SeedAsNumber(Rules):
    def seed(self, case: dict[str, Any]) -> Any:
        return DEFAULT_SEED if case["seed"] is None else int(case["seed"])


class NoSeed(Rules):
    def seed(self, case: dict[str, Any]) -> Any:
        return ""


class PartialBlockToo(Rules):
    def blocks(self, case: dict[str, Any]) -> int:
        return -(-len(case["token_ids"]) // case["block_size"])


def test_the_rules_written_out_agree() -> None:
    assert all(Rules().hashes(case) == case["hashes"] for case in CASES)


@pytest.mark.parametrize("broken", Rules.__subclasses__())
def test_a_broken_rule_is_noticed(broken: type[Rules]) -> None:
    assert any(broken().hashes(case) != case["hashes"] for case in CASES)


def test_a_list_and_a_tuple_are_the_same_in_cbor() -> None:
    # They differ in the pickle of vLLM's other algorithms.
    listed = type("Listed", (Rules,), {"tokens": lambda self, ids: list(ids)})()
    assert all(listed.hashes(case) == case["hashes"] for case in CASES[:20])


ids = st.lists(
    st.one_of(st.integers(0, 300), st.integers(0, 2**17), st.integers(0, 2**63 - 1)), max_size=40
)
texts = st.text(min_size=1, max_size=30)


@given(ids, st.integers(1, 30), st.sampled_from(ALGORITHMS), texts, st.none() | texts, texts)
def test_any_ids_are_encoded_as_cbor2_does(tokens, size, algorithm, seed, salt, name) -> None:
    case = {"algorithm": algorithm, "seed": seed, "block_size": size, "token_ids": tokens}
    case |= {"lora": (name, ""), "salt": salt}
    assert ours(case) == Rules().hashes(case)


@given(ids, st.integers(0, 5), st.integers(1, 5), st.none() | texts, st.none() | texts)
def test_a_chain_goes_on_from_its_parent(tokens, blocks, size, salt, name) -> None:
    hasher = BlockHasher(size)
    blocks = min(blocks, len(tokens) // size)
    head, tail = tokens[: blocks * size], tokens[blocks * size :]
    whole = hasher.chain(tokens, lora_name=name, cache_salt=salt, extra=("tenant",))
    first = hasher.chain(head, lora_name=name, cache_salt=salt, extra=("tenant",))
    if not first:
        return
    assert whole == first + hasher.chain(tail, parent=first[-1], lora_name=name)
    with_all = hasher.chain(tail, parent=first[-1], lora_name=name, cache_salt=salt, extra=("x",))
    assert whole == first + with_all
    if tail[: size * (len(tail) // size)]:
        assert whole != first + hasher.chain(tail, lora_name=name, cache_salt=salt)


NAMESPACES = st.tuples(st.none() | texts, st.none() | texts, st.lists(texts, max_size=2))


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=16),
    st.lists(NAMESPACES, min_size=2, max_size=6, unique_by=repr),
    st.sampled_from(ALGORITHMS),
)
def test_no_two_namespaces_share_a_key(tokens, namespaces, algorithm) -> None:
    hasher = BlockHasher(2, algorithm)
    chains = [
        hasher.chain(tokens, lora_name=name, cache_salt=salt, extra=tuple(extra))
        for name, salt, extra in namespaces
    ]
    keys = [key for chain in chains for key in chain]
    assert len(set(keys)) == len(keys)


def test_namespaces_of_the_same_words_differ() -> None:
    chain = BlockHasher(1).chain
    found = [
        chain([1], cache_salt="a")[0],
        chain([1], lora_name="a")[0],
        chain([1], lora_name="a", lora_path="a")[0],
        chain([1], extra=("a",))[0],
        chain([1], extra=("a", "b"))[0],
        chain([1], extra=("b", "a"))[0],
        chain([1], extra=("ab",))[0],
        chain([1])[0],
        BlockHasher(1, seed="a").chain([1])[0],
    ]
    assert len(set(found)) == len(found)


def test_without_extra_keys_the_chain_is_the_engines() -> None:
    case = next(case for case in CASES if case["salt"] and len(case["hashes"]) > 1)
    assert ours(case, extra=()) == case["hashes"]
    assert not set(ours(case, extra=("tenant",))) & set(case["hashes"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_kind_of_row_of_ids_gives_the_same(algorithm: str) -> None:
    hasher = BlockHasher(4, algorithm)
    tokens = [5, 300, 70_000, 23, 24, 255, 256, 9, 1]
    found = hasher.chain(tokens)
    assert [len(key) for key in found] == [hasher.digest_size] * 2
    same = [tuple(tokens), array.array("q", tokens), [np.int32(token) for token in tokens]]
    same += [np.array(tokens, kind) for kind in (np.int32, np.uint32, np.int64, np.uint64, ">i8")]
    same += [np.repeat(np.array(tokens), 2)[::2], [enum.IntEnum("E", {"e": 5}).e, *tokens[1:]]]
    for each in same:
        assert hasher.chain(each) == found
    assert hasher.chain(range(4)) == hasher.chain([0, 1, 2, 3])
    assert hasher.chain([]) == hasher.chain(np.empty(0, np.int64)) == hasher.chain([1, 2, 3]) == []


@pytest.mark.parametrize("many", [15, 16, 65_535, 65_536])
def test_long_lists_and_arrays_agree(many: int) -> None:
    tokens = list(range(many))
    assert BlockHasher(8).chain(tokens) == BlockHasher(8).chain(np.arange(many))


DEEP: list[Any] = []
DEEP.append(DEEP)


@pytest.mark.parametrize(
    "wrong",
    [
        *(True, False, 1.0, -1, -(2**40), 2**63, 2**64 - 1, 2**64, 2**70, None, "7", b"7", [1]),
        *(float("nan"), 1j, object(), DEEP, np.int64(-1), np.float32(1), np.uint64(2**63)),
        np.bool_(True),
    ],
)
@pytest.mark.parametrize("others", [[1, 2], [np.int64(1), 2]])
def test_what_is_no_token_id_is_named_by_its_position(wrong: Any, others: list[Any]) -> None:
    for tokens in ([*others, wrong], [*others, wrong, 5, 6, 7]):
        with pytest.raises(UsageError, match="token id at position 2: ") as told:
            BlockHasher(2).chain(tokens)
        assert "\n" not in str(told.value)


def test_arrays_that_are_no_row_of_ids_are_refused() -> None:
    for wrong in (np.ones(4), np.ones(4, bool), np.ones((2, 2), int), np.array(3), np.array(["a"])):
        with pytest.raises(UsageError, match="not an array of"):
            BlockHasher(2).chain(wrong)
    for wrong in (np.array([1, 2, -3]), np.array([1, 2, 2**63], np.uint64)):
        with pytest.raises(UsageError, match=f"position 2: {wrong[2]} is"):
            BlockHasher(2).chain(wrong)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"cache_salt": ""}, "cache_salt is empty"),
        ({"lora_name": ""}, "lora_name is empty"),
        ({"lora_path": "p"}, "lora_path needs lora_name"),
        ({"cache_salt": 7}, "cache_salt is text"),
        ({"cache_salt": "\ud800"}, "not Unicode"),
        ({"extra": "tenant"}, "a tuple of texts"),
        ({"extra": ("a", 1)}, "an extra key is text"),
        ({"parent": b"short"}, "has 32 bytes"),
        ({"parent": "0" * 32}, "has 32 bytes"),
        ({"parent": b""}, "has 32 bytes"),
    ],
)
def test_wrong_names_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        BlockHasher(2).chain([1, 2], **asked)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ((0,), "a block size"),
        ((True,), "a block size"),
        ((16.0,), "a block size"),
        ((16, "sha256"), "'sha256': there are sha256_cbor and xxhash_cbor"),
        ((16, "sha256_cbor", 7), "seed is text"),
    ],
)
def test_a_wrong_hasher_is_refused(asked: tuple[Any, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        BlockHasher(*asked)


def test_a_parent_of_the_other_algorithm_is_refused() -> None:
    [key] = BlockHasher(1, "xxhash_cbor").chain([1])
    with pytest.raises(UsageError, match="has 32 bytes"):
        BlockHasher(1).chain([1], parent=key)
