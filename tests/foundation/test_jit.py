"""Binding, compiling and the disk cache."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from factory import make_trace

from kvsched.foundation.errors import UsageError
from kvsched.foundation.jit import bind, digest
from kvsched.policy import registry
from kvsched.policy.base import Policy
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
from kvsched import RankedPolicy

class Own(RankedPolicy):
    \"\"\"An order.\"\"\"
    name = "own"

    @staticmethod
    def key(table, state, node):
        return SIGN * state.touched[node]
"""


def run(policy: str, folder: Path, **env: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("POLICY", policy)],
        env={**os.environ, "KVSCHED_CACHE_DIR": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_an_edited_policy_is_noticed_and_a_damaged_cache_survived(tmp_path: Path) -> None:
    file, cache = tmp_path / "own.py", tmp_path / "cache"
    file.write_text(OWN.replace("SIGN", "1"))
    lru = run(f"{file}:Own", cache)
    assert lru == "[0, 0, 0, 0, 0]"
    kept = sorted(cache.rglob("*.nb?"))
    assert kept, "nothing was kept on disk"
    assert run(f"{file}:Own", cache) == lru
    assert sorted(cache.rglob("*.nb?")) == kept, "the second run compiled again"
    file.write_text("# The same code in another file's words.\n" + OWN.replace("SIGN", "1"))
    assert run(f"{file}:Own", cache) == lru
    file.write_text(OWN.replace("SIGN", "-1"))
    mru = run(f"{file}:Own", cache)
    assert mru == "[0, 0, 0, 1, 0]"
    for path in cache.rglob("*.nb?"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    assert run(f"{file}:Own", cache) == mru
    assert run(f"{file}:Own", tmp_path / "own.py" / "no", KVSCHED_COMPILED="0") == mru


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert run("lru", blocked / "below") == "[0, 0, 0, 0, 0]"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("class Own: pass", "Own", "no subclass"),
        ("from kvsched import Policy\nclass Own(Policy): pass", "Own", "no name"),
        ("x = 1", "Own", "has no Own"),
        ("import nothing_of_the_kind", "Own", "ModuleNotFoundError"),
        ("def (", "Own", "SyntaxError"),
    ],
)
def test_a_policy_file_that_will_not_do(tmp_path: Path, text: str, name: str, said: str) -> None:
    file = tmp_path / "own.py"
    file.write_text(text)
    with pytest.raises(UsageError, match=said):
        registry.find(f"{file}:{name}")


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


@pytest.mark.parametrize("victim", ["incoming", "10**9", "-7", "0"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_victim_that_is_none_is_refused(tmp_path: Path, victim: str, compiled: bool) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        textwrap.dedent(
            f"""
            from kvsched import RankedPolicy

            class Own(RankedPolicy):
                name = "own"

                @staticmethod
                def victim(table, state, incoming, rank):
                    return {victim}
            """
        )
    )
    trace = make_trace([(1, 2), (3,)], [1] * 2, [0] * 2)
    with pytest.raises(UsageError, match=r"its victim for request 1 \(from 0\) is no evictable"):
        replay(trace, f"{file}:Own", 2, compiled=compiled)


def test_an_installed_package_can_offer_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Offered(Policy):
        """From elsewhere."""

        name = "offered"

    class Point:
        name = "offered"

        def load(self) -> type[Policy]:
            return Offered

    def points(**wanted: Any) -> list[Point]:
        fits = wanted["group"] == "kvsched.policies" and wanted.get("name", "offered") == "offered"
        return [Point()] if fits else []

    monkeypatch.setattr(importlib.metadata, "entry_points", points)
    assert "offered" in registry.names()
    assert registry.find("offered") is Offered
