"""A real browser for the report's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; skips on a machine without it, fails on CI without it."""
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "no chromium to open the report in (Debian: apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have a browser: {reason}")
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()
