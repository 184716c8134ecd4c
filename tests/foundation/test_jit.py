"""Binding, compiling and the disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factory import make_trace

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, digest
from kvsched.replay.run import replay

STEP = 1


def hook(value: int) -> int:
    return value


def helper(value: int) -> int:
    return hook(value) * STEP


def total(count: int) -> int:
    found = 0
    for value in range(count):
        found += helper(value)
    return found


def doubled(value: int) -> int:
    return 2 * value


def test_a_name_is_bound_in_all_that_is_called() -> None:
    for compiled in (False, True):
        assert bind(total, None, compiled)(5) == 10
        assert bind(total, {"hook": doubled}, compiled)(5) == 20
    assert total(5) == 10


def test_the_digest_says_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = digest(total, {})
    assert digest(total, {}) == plain
    assert digest(total, {"hook": doubled}) != plain
    monkeypatch.setattr(sys.modules[__name__], "STEP", 3)
    assert digest(total, {}) != plain


def second(pair: tuple[int, float], at: int) -> float:
    return pair[at]


def mixed(count: int) -> float:
    """Only a constant index picks from a tuple of unlike values."""
    return second((count, 0.5), 1) + second((count, 0.5), 0)


def sort_of(value: object) -> int:
    return 1 if isinstance(value, bool) else 2


def kinds(count: int) -> int:
    return 10 * sort_of(count > 0) + sort_of(count)


def wrapped(value: np.uint64) -> np.uint64:
    return value - np.uint64(1)


def unsigned(values: np.ndarray) -> np.uint64:
    return wrapped(values[0])


def squared(value: int) -> int:
    return value * value


def narrow(values: np.ndarray) -> int:
    return squared(values[0]) + squared(3)


def faulty(value: int) -> int:
    if value > 2:
        raise ValueError("too large")
    return value


def raising(count: int) -> int:
    return faulty(count)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, so that everything is compiled."""
    monkeypatch.setenv("KVSCHED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_a_part_takes_every_integer_as_the_widest_signed_one() -> None:
    assert bind(mixed, None, True)(7) == 7.5
    assert bind(kinds, None, True)(7) == 12
    assert bind(unsigned, None, True)(np.zeros(1, np.uint64)) == 2**64 - 1
    # 100,000 squared does not fit into 32 bits.
    bound: Any = bind(narrow, None, True)
    assert bound(np.array([100_000], np.int32)) == 10**10 + 9
    part = bound.py_func.__globals__["squared"]
    assert [str(types[0]) for types in part.overloads] == ["int64"]


def test_what_a_part_raises_arrives(cache: Path) -> None:
    for kept in (0, 1):
        assert len(list(cache.rglob("*.nbc"))) == kept
        assert bind(raising, None, True)(2) == 2
        with pytest.raises(ValueError, match="too large"):
            bind(raising, None, True)(3)


@pytest.mark.usefixtures("cache")
def test_a_part_is_no_machine_code_of_its_own() -> None:
    bound: Any = bind(total, None, True)
    assert bound(5) == 10
    part = bound.py_func.__globals__["helper"]
    assert part.signatures
    assert all(
        not each.library._codegen._engine.is_symbol_defined(each.fndesc.llvm_func_name)
        for each in part.overloads.values()
    )
    whole = bound.overloads[bound.signatures[0]]
    assert whole.library._codegen._engine.is_symbol_defined(whole.fndesc.llvm_func_name)


PROGRAM = """
import numpy as np
from kvsched.trace.model import Origin, Trace
from kvsched.replay.run import replay
chains = np.array([0, 1, 2, 0, 1], np.int32)
trace = Trace(np.arange(5.0), np.full(5, 16), np.full(5, 1), np.arange(6), chains,
              np.full(3, -1, np.int32), np.zeros(3, np.int32), np.full(3, 16, np.int32),
              np.arange(3), 16, Origin("made", "test", "s"))
print(replay(trace, "POLICY", 2).request_hits.tolist())
"""

OWN = """
from typing import NamedTuple
import numpy as np
from kvsched import Policy

class Count(NamedTuple):
    stored: np.ndarray

class Own(Policy):
    \"\"\"The first or the last of the resident blocks leaves; for chains of one block.\"\"\"
    name = "own"
    track_leaves = False

    @staticmethod
    def on_insert(table, state, node, rank):
        state.stored[0] += 1

    @staticmethod
    def victim(table, state, incoming, rank):
        found = -1
        for node in range(len(table.resident)):
            if table.resident[node] and (found < 0 or not FIRST):
                found = node
        return found

    def prepare(self, setup):
        return Count(np.zeros(1, np.int64))
"""


def run(policy: str, folder: Path, then: str = "", **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("POLICY", policy) + then],
        env={**os.environ, "KVSCHED_CACHE_DIR": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_an_edited_policy_is_noticed_in_the_next_process(tmp_path: Path) -> None:
    file, cache = tmp_path / "own.py", tmp_path / "cache"
    file.write_text(OWN.replace("FIRST", "1"))
    assert run(f"{file}:Own", cache) == "[0, 0, 0, 0, 0]"
    kept = sorted(cache.rglob("*.nb?"))
    assert kept, "nothing was kept on disk"
    assert run(f"{file}:Own", cache) == "[0, 0, 0, 0, 0]"
    assert sorted(cache.rglob("*.nb?")) == kept, "the second run compiled again"
    file.write_text(OWN.replace("FIRST", "0"))
    assert run(f"{file}:Own", cache) == "[0, 0, 0, 1, 0]"


def test_an_edited_policy_is_noticed_in_the_same_process(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    trace = make_trace([(0,), (1,), (2,), (0,), (1,)], [1] * 5, [0] * 5)
    for first, hits in ((1, [0, 0, 0, 0, 0]), (0, [0, 0, 0, 1, 0]), (1, [0, 0, 0, 0, 0])):
        file.write_text(OWN.replace("FIRST", str(first)))
        result = replay(trace, f"{file}:Own", 2, compiled=False)
        assert result.request_hits.tolist() == hits


def test_plain_python_needs_no_compiler(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN.replace("FIRST", "0"))
    said = "import sys; print('numba' in sys.modules)"
    plain = run(f"{file}:Own", tmp_path / "cache", said, KVSCHED_COMPILED="0")
    assert plain == "[0, 0, 0, 1, 0]\nFalse"
    assert not (tmp_path / "cache").exists()


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert run("lru", blocked / "below") == "[0, 0, 0, 0, 0]"


def test_a_hook_that_does_not_compile_is_the_users_error(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        textwrap.dedent(
            """
            from kvsched import RankedPolicy

            class Own(RankedPolicy):
                name = "own"

                @staticmethod
                def key(table, state, node):
                    return sorted({"a": node}.items(), key=str)[0][1]
            """
        )
    )
    trace = make_trace([(1,), (2,), (3,)], [1] * 3, [0] * 3)
    with pytest.raises(UsageError, match="policy own does not compile") as caught:
        replay(trace, f"{file}:Own", 1)
    assert "KVSCHED_COMPILED=0" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert replay(trace, f"{file}:Own", 1, compiled=False).evictions == 2


ANSWERS = """
from typing import NamedTuple
import numpy as np
from kvsched import Policy
from kvsched.policy.parameters import Parameter

class Answer(NamedTuple):
    given: np.ndarray

class Own(Policy):
    name = "own"
    parameters = {"answer": Parameter(0, "the victim; 9 for the incoming node", -100)}

    @staticmethod
    def victim(table, state, incoming, rank):
        return incoming if state.given[0] == 9 else state.given[0]

    def prepare(self, setup):
        return Answer(np.array([int(self.values["answer"])]))
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_a_victim_that_is_none_is_refused(tmp_path: Path, compiled: bool) -> None:
    """The incoming node, one far outside, one below, and one with a resident child."""
    file = tmp_path / "own.py"
    file.write_text(ANSWERS)
    trace = make_trace([(1, 2), (3,)], [1] * 2, [0] * 2)
    for answer in (9, 10**9, -7, 0):
        with pytest.raises(
            UsageError, match=r"its victim for request 1 \(from 0\) is no evictable"
        ):
            replay(trace, f"{file}:Own:answer={answer}", 2, compiled=compiled)
    assert replay(trace, f"{file}:Own:answer=1", 2, compiled=compiled).evictions == 1


def test_a_hook_wrapped_twice_is_bound_as_itself() -> None:
    bound = bind(
        total, {"helper": staticmethod(staticmethod(lambda value: 2 * value))}, compiled=False
    )
    assert bound(4) == 12
