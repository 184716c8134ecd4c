"""What the cache's tests share: most of them need no compiled kernel."""

from __future__ import annotations

import pytest


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run uncompiled: the same source, and no 10 s of compiling for each policy.

    Compiled kernels are held to the replay's by `test_degenerate`, and to the machine's rules by
    `test_machine`, `test_saved` and `test_threads`.
    """
    monkeypatch.setenv("KVSCHED_COMPILED", "0")
