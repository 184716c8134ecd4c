"""Files that are cut off, changed, foreign, newer or claim too much: each refused, in one line."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard

from kvsched.cache import KVCacheScheduler, Request, Tenant, TierSettings
from kvsched.cache.saved_file import MAGIC, VERSION
from kvsched.foundation.errors import InputError, UsageError

REFUSED = re.compile(r".*/cache: (is no saved cache|has version .*|is cut off or was changed: .*)")
LEAD = struct.Struct("<8sIQ")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small saved cache with a tenant, a second tier, a pin and a lease."""
    path = tmp_path_factory.mktemp("small") / "cache"
    cache = KVCacheScheduler(
        4,
        4,
        tenants={"a": Tenant(quota_blocks=2)},
        second_tier=TierSettings(capacity_blocks=2),
        clock=float,
    )
    for first in range(3):
        lease = cache.acquire(Request(hashes=[first, 9], session="x")).lease
        assert lease is not None
        lease.close()
    cache.pin(Request(hashes=[2, 9]), "me")
    assert cache.acquire(Request(hashes=[7], tenant="a")).lease is not None
    cache.save(path)
    found = path.read_bytes()
    assert len(found) < 20_000
    return found


def refused(path: Path, content: bytes, match: str) -> str:
    """Demand that a file is refused in one line that names it; return the line."""
    path.write_bytes(content)
    with pytest.raises(InputError, match=match) as caught:
        KVCacheScheduler.restore(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert path.read_bytes() == content
    return said


def sealed(content: bytes) -> bytes:
    return content + hashlib.sha256(content).digest()


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the arrays of a saved cache."""
    _, _, length = LEAD.unpack(data[: LEAD.size])
    end = LEAD.size + length
    return msgspec.json.decode(data[LEAD.size : end]), data[end:-32]


def joined(header: dict[str, Any], body: bytes) -> bytes:
    """Return a file with a right checksum over whatever it says."""
    encoded = msgspec.json.encode(header)
    return sealed(LEAD.pack(MAGIC, VERSION, len(encoded)) + encoded + body)


def test_it_is_whole(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "cache").write_bytes(joined(*split(data)))
    KVCacheScheduler.restore(tmp_path / "cache").check()


def test_every_truncation_is_refused(tmp_path: Path, data: bytes) -> None:
    for length in {*range(0, 200), *range(200, len(data), 97), *range(len(data) - 40, len(data))}:
        refused(tmp_path / "cache", data[:length], "is empty|no saved cache|cut off")


def test_every_changed_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    cache = KVCacheScheduler(1, 16, "filo", clock=float)
    assert cache.acquire(Request(hashes=[1])).lease is not None
    cache.save(path)
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as stream:
        for at, byte in enumerate(data):
            stream.seek(at)
            stream.write(bytes([byte ^ 1 << (at % 8)]))
            with pytest.raises(InputError) as caught:
                KVCacheScheduler.restore(path)
            assert REFUSED.fullmatch(str(caught.value)), at
            stream.seek(at)
            stream.write(bytes([byte]))
    assert KVCacheScheduler.restore(path).capacity_blocks == 1


def test_more_than_was_written_is_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "cache", data + b"\0", "cut off or was changed")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "is empty"),
        (b"\0" * 5_000, "is no saved cache"),
        (b'{"requests": 3}\n', "is no saved cache"),
        (MAGIC, "is cut off: it has 8 bytes"),
        (sealed(LEAD.pack(MAGIC, VERSION + 1, 0)), "has version 2 of the format, and .* reads 1"),
        (sealed(LEAD.pack(MAGIC, 0, 0)), "has version 0"),
        (sealed(LEAD.pack(MAGIC, VERSION, 2**63)), "claims a header of 9,223,372,036,854,775,808"),
        (sealed(LEAD.pack(MAGIC, VERSION, 2) + b"{}"), "its header cannot be read"),
        (sealed(LEAD.pack(MAGIC, VERSION, 9) + b"[" * 9), "its header cannot be read"),
        (sealed(LEAD.pack(MAGIC, VERSION, 1) + b"\xff"), "its header cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_saved_cache_is_refused(tmp_path: Path, content: bytes, match: str) -> None:
    refused(tmp_path / "cache", content, match)


def test_another_magic_is_refused(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path / "cache", sealed(b"\x89KVcachf" + data[8:-32]), "is no saved cache")


def test_a_folder_a_pipe_and_nothing_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, match in (("", "is no file"), ("pipe", "is no file"), ("none", "cannot be read")):
        with pytest.raises(InputError, match=match):
            KVCacheScheduler.restore(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be written"):
        KVCacheScheduler(4).save(tmp_path)
    with pytest.raises(UsageError, match="cannot be written"):
        KVCacheScheduler(4).save(tmp_path / "no folder" / "cache")


# Claims that a right checksum does not make true.


def array_named(header: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in header["arrays"] if each["name"] == name)


def _blocks(header: dict[str, Any]) -> None:
    header["head"]["capacity_blocks"] = 2**28


def _history(header: dict[str, Any]) -> None:
    header["head"]["history_blocks"] = 2**29


def _second(header: dict[str, Any]) -> None:
    header["head"]["second"]["capacity_blocks"] = 2**30


def _quota(header: dict[str, Any]) -> None:
    header["head"]["tenants"][0][1]["quota_blocks"] = 2**28


def _stored(header: dict[str, Any]) -> None:
    array_named(header, "pool/free")["stored"] = 2**62


def _negative(header: dict[str, Any]) -> None:
    array_named(header, "pool/free")["stored"] = -1


def _shape(header: dict[str, Any]) -> None:
    array_named(header, "0/rank")["shape"] = [2**40]


def _dtype(header: dict[str, Any]) -> None:
    array_named(header, "0/rank")["dtype"] = "|O"


def _twice(header: dict[str, Any]) -> None:
    header["arrays"].append(array_named(header, "0/rank"))


def _missing(header: dict[str, Any]) -> None:
    array_named(header, "0/rank")["name"] = "0/rang"


def _packed(header: dict[str, Any]) -> None:
    array_named(header, "0/rank")["packed"] = False


def _plain(header: dict[str, Any]) -> None:
    array_named(header, "0/listed")["packed"] = True


def _tenants(header: dict[str, Any]) -> None:
    header["head"]["homes"].pop()


def _held(header: dict[str, Any]) -> None:
    header["head"]["pins"][0]["node"] = 10**6


def _home(header: dict[str, Any]) -> None:
    header["head"]["holds"][0]["home"] = 7


def _code(header: dict[str, Any]) -> None:
    header["head"]["homes"][0]["known"]["session"] = [["eA==", 10**9, 0]]


def _setting(header: dict[str, Any]) -> None:
    header["head"]["settings"]["when_full"] = "wait"


def _block_size(header: dict[str, Any]) -> None:
    header["head"]["block_size"] = 0


def _more(header: dict[str, Any]) -> None:
    header["head"]["colour"] = "red"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_blocks, "claims 268,435,456 blocks, but pool/free has 16 bytes"),
        (_history, "claims 4 blocks, but 0/listed has"),
        (_second, "but slots/free has 8 bytes"),
        (_quota, "but 1/listed has"),
        (_stored, "array pool/free does not lie in it"),
        (_negative, "array pool/free does not lie in it"),
        (_shape, "array 0/rank is"),
        (_dtype, "array 0/rank is"),
        (_twice, "array 0/rank does not lie in it"),
        (_missing, "array 0/rang is not a cache|array 0/rank is missing"),
        (_packed, "array 0/rank has"),
        (_plain, "but 0/listed has 0 bytes"),
        (_tenants, "its tenants are not those"),
        (_held, "node 1000000 is held, and not cached"),
        (_home, "is held, and not cached"),
        (_code, "a name of session has code 1000000000"),
        (_setting, "its header makes no sense .when_full must be one of"),
        (_block_size, "no cache can be made of it .block_size must be"),
        (_more, "its header cannot be read"),
    ],
)
def test_claims_are_checked(
    tmp_path: Path, data: bytes, change: Callable[[dict[str, Any]], None], match: str
) -> None:
    header, body = split(data)
    change(header)
    refused(tmp_path / "cache", joined(header, body), match)


def spoilt(data: bytes, name: str, change: Callable[[Any], None]) -> bytes:
    """Return a saved cache with another content of one array, under a right checksum."""
    header, body = split(data)
    parts, at = [], 0
    for each in header["arrays"]:
        part = body[at : at + each["stored"]]
        at += each["stored"]
        if each["name"] == name:
            raw = zstandard.ZstdDecompressor().decompress(part) if each["packed"] else part
            array = np.frombuffer(raw, each["dtype"]).reshape(each["shape"]).copy()
            change(array)
            part = array.tobytes()
            if each["packed"]:
                part = zstandard.ZstdCompressor().compress(part)
            each["stored"] = len(part)
        parts.append(part)
    return joined(header, b"".join(parts))


def set_to(value: int, at: Any = 0) -> Callable[[Any], None]:
    def change(array: Any) -> None:
        array[at] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("0/table/parent", set_to(10**6), "a parent is no node"),
        ("0/table/parent", set_to(0), "a chain does not end at a root"),
        ("0/table/depth", set_to(3), "a chain does not end at a root"),
        ("0/names/idle", set_to(99), "an idle number is no node"),
        ("0/names/counts", set_to(99), "numbers are in use"),
        ("0/table/resident", set_to(1, -1), "a cached node has no name"),
        ("0/counts", set_to(99, 0), "miscounted"),
        ("0/counts", set_to(99, 4), "array 0/counts has another limit"),
        ("0/block", set_to(0, slice(None)), "a block of tier 1 has two places"),
        ("0/second/block", set_to(77, slice(None)), "a block of tier 2 has two places"),
        ("pool/counts", set_to(99), "tier 1 has 99 free blocks"),
        ("0/due/counts", set_to(99), "the order of what can leave is torn"),
        ("0/levels/place", set_to(99), "the order of what can leave is torn"),
    ],
)
def test_numbers_that_lead_nowhere_are_refused(
    tmp_path: Path, data: bytes, name: str, change: Callable[[Any], None], match: str
) -> None:
    refused(tmp_path / "cache", spoilt(data, name, change), match)


def test_a_frame_of_another_length_is_refused(tmp_path: Path, data: bytes) -> None:
    header, body = split(data)
    at = 0
    for each in header["arrays"]:
        if each["name"] == "0/rank":
            frame = zstandard.ZstdCompressor().compress(b"\0" * 10**8)
            body = body[:at] + frame + body[at + each["stored"] :]
            each["stored"] = len(frame)
            break
        at += each["stored"]
    said = refused(tmp_path / "cache", joined(header, body), "does not unpack to")
    assert "0/rank" in said
