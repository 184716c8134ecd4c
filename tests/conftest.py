"""Shared fixtures: the real traces and the acceptance integers beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _shared(*parts: str) -> Path:
    path = Path(os.environ.get("KVSCHED_SHARED", ROOT.parent / "shared")).joinpath(*parts)
    if not path.exists():
        reason = f"{'/'.join(parts)} is not beside this checkout (set KVSCHED_SHARED)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have the real traces: {reason}")
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces; skips in a clone without it, fails on CI without it."""
    return _shared("traces")


@pytest.fixture(scope="session")
def shared_acceptance() -> Path:
    """The folder of integers to reproduce; skips or fails like `shared_traces`."""
    return _shared("acceptance")
