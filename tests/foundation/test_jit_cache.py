"""What the disk cache does with code that changed, is damaged, or is somebody else's."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsched.foundation.jit import bind, digest

STEPS = np.array([1, 2, 3])
settings = types.ModuleType("settings")


def step(value: int) -> int:
    return 3 * value


def total(count: int) -> int:
    found = 0
    for value in range(count):
        found += step(value)
    return found


def from_a_module(value: int) -> int:
    return value * int(settings.STEP)


def from_an_array(value: int) -> int:
    return value * int(STEPS[1])


def nested(count: int) -> int:
    return sum([step(value) for value in range(count)])


def ready(cache: Path) -> Any:
    """Return `total`, compiled or loaded for one number, not called yet."""
    bound: Any = bind(total, None, compiled=True)
    bound.compile("(int64,)")
    return bound


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) // 3],
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "overwritten": lambda data: np.random.default_rng(4).bytes(len(data)),
    # A long string that the file has no room for: an OverflowError of the reader's.
    "nonsense": lambda data: b"\x80\x04\x8d" + b"\xff" * 8 + data,
    "flipped": flipped,
}


def test_damaged_code_is_compiled_again(cache: Path) -> None:
    ready(cache)
    (code,), (index,) = cache.rglob("*.nbc"), cache.rglob("*.nbi")
    good = {path: path.read_bytes() for path in (code, index)}
    for damage, how in DAMAGE.items():
        for path, data in good.items():
            if damage == "flipped" and path == index:
                continue  # half of its bits are somebody's name, and as good
            path.write_bytes(how(data))
            again = ready(cache)
            assert not again.stats.cache_hits, f"{damage} {path.suffix} was taken for good"
            assert again(5) == 30
            kept = ready(cache)
            assert kept.stats.cache_hits, f"after {damage} {path.suffix} nothing is kept"
            assert kept(5) == 30
            for intact, before in good.items():
                intact.write_bytes(before)


def test_the_same_code_in_another_module_is_kept_apart(cache: Path, tmp_path: Path) -> None:
    text = "def total(count):\n    return sum([3 * value for value in range(count)])\n"
    for name in ("first", "second"):
        (tmp_path / f"{name}.py").write_text(text)
        program = f"import {name}\nfrom kvsched.foundation.jit import bind\n"
        program += f"print(bind({name}.total, None, True, allocates=True)(5))"
        ended = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.stdout.strip() == "30", ended.stderr
        (tmp_path / f"{name}.py").unlink()


def test_the_digest_sees_a_constant_of_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "STEP", 1, raising=False)
    before = digest(from_a_module, {})
    assert digest(from_a_module, {}) == before
    monkeypatch.setattr(settings, "STEP", 2)
    assert digest(from_a_module, {}) != before


def test_the_digest_sees_a_constant_array(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(from_an_array, {})
    monkeypatch.setitem(globals(), "STEPS", np.array([1, 5, 3]))
    assert digest(from_an_array, {}) != before


def test_the_digest_sees_what_a_comprehension_calls() -> None:
    def other(value: int) -> int:
        return value

    assert digest(nested, {}) != digest(nested, {"step": other})
    assert bind(nested, {"step": other}, compiled=False)(5) == 10
    assert bind(nested, {"step": other}, compiled=True, allocates=True)(5) == 10


def test_the_digest_sees_what_a_user_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    def other(value: int) -> int:
        return value

    before = digest(total, {"step": numba.njit(step)})
    assert digest(total, {"step": numba.njit(step)}) == before
    assert digest(total, {"step": numba.njit(other)}) != before


TOGETHER = """
import pathlib, sys, time
import test_jit_cache
from kvsched.foundation.jit_cache import TALLY
here = pathlib.Path(sys.argv[1])
(here / sys.argv[2]).touch()
while len(list(here.glob("ready*"))) < 2:
    time.sleep(0.01)
test_jit_cache.ready(here)
print(TALLY.compiled)
"""


def test_two_processes_compile_once(cache: Path) -> None:
    cache.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", TOGETHER, str(cache), f"ready{number}"],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    said = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sorted(said) == ["0\n", "1\n"]
