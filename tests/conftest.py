"""Shared fixtures: the real traces and integers beside the checkout, and a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from absent import absent
from hypothesis import settings

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("kvsched", deadline=None)
settings.load_profile("kvsched")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ROOT = Path(__file__).resolve().parents[1]


def _shared(*parts: str) -> Path:
    path = Path(os.environ.get("KVSCHED_SHARED", ROOT.parent / "shared")).joinpath(*parts)
    if not path.exists():
        reason = f"{'/'.join(parts)} is not beside this checkout (set KVSCHED_SHARED)"
        absent(reason)
    return path


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of real traces; skips in a clone without it, fails on CI without it."""
    return _shared("traces")


@pytest.fixture(scope="session")
def shared_acceptance() -> Path:
    """The folder of integers to reproduce; skips or fails like `shared_traces`."""
    return _shared("acceptance")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; skips on a machine without it, fails on CI without it.

    One a file: while it is open, an event loop runs in this thread, which others cannot use.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        absent("no chromium to open pages in (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()
