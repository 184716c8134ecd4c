"""Which requests and capacities a step-through takes, and how it refuses others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsched.foundation.errors import InputError, UsageError
from kvsched.lesson.play import record_all
from kvsched.lesson.play_requests import (
    GRID,
    MOST_REQUESTS,
    Request,
    capacities,
    check_capacity,
    read_requests,
)


def test_a_list_and_a_file_say_the_same(tmp_path: Path) -> None:
    expected = (Request("exam", 60), Request("chat", 16), Request("a b:c", 5))
    path = tmp_path / "requests.txt"
    path.write_text("exam 60\n\n  chat\t16\r\na b:c 5\n", encoding="utf-8")
    assert read_requests(str(path)) == expected
    assert read_requests("exam:60, chat:16,a b:c:5") == expected


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("exam 60\nchat\n", 2),
        ("exam sixty\n", 1),
        ("a 1\na 0\n", 2),
        ("a -1\n", 1),
        ("a 1e3\n", 1),
        ("a 99999999999999999999\n", 1),
        ("a\x07b 3\n", 1),
        ("x" * 41 + " 3\n", 1),
        ("a ٣\n", 1),
        ("a 2147483648", 1),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, text: str, row: int) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as raised:
        read_requests(str(path))
    assert raised.value.row == row
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        "nothing.txt",
        "a:1,b",
        "a:1,,b:2",
        ":5",
        "a:",
        "a:x",
        "a:1" + ",a:1" * MOST_REQUESTS,
        "x" * 5000 + ":1",
    ],
)
def test_a_bad_list_is_refused(given: str) -> None:
    with pytest.raises(UsageError):
        read_requests(given)


def test_an_empty_or_binary_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.txt"
    path.write_bytes(b"\n \n")
    with pytest.raises(UsageError, match="no request"):
        read_requests(str(path))
    path.write_bytes(b"\xff\xfe 3\n")
    with pytest.raises(InputError, match="UTF-8"):
        read_requests(str(path))


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    own=st.none() | st.integers(10**6, 10**7),
)
def test_every_capacity_offered_runs(sizes: list[int], own: int | None) -> None:
    requests = tuple(Request(f"p{number}", size) for number, size in enumerate(sizes))
    offered, first = capacities(requests, own)
    assert offered == sorted(set(offered))
    assert first in offered
    assert first == own or own is None
    assert len(offered) <= GRID + 1
    assert offered[0] == max(sizes)
    assert sum(sizes) in offered
    for capacity in offered:
        check_capacity(requests, capacity)


@pytest.mark.parametrize("capacity", [0, -1, 59, 2**31])
def test_a_capacity_that_cannot_be_is_refused(capacity: int) -> None:
    with pytest.raises(UsageError):
        record_all((Request("exam", 60),), capacity, ("chapter",))


def test_a_policy_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        record_all((Request("exam", 60),), 60, ("lru", "chapter", "lru"))
