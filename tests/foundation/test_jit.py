"""Binding, compiling and the disk cache."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

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
from kvsched.policy.base import Parameter

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
