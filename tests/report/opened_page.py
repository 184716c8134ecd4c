"""A page opened in a browser, and what goes wrong in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def opened_page(browser: Any, html: str, folder: Path, width: int) -> Iterator[Any]:
    """Yield the page, which said nothing, ran no name as code, and asked for nothing outside."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    faults: list[str] = []
    page.on("console", lambda said: faults.append(said.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "request",
        lambda asked: asked.url.startswith(("file:", "data:")) or faults.append(asked.url),
    )
    page.goto(path.as_uri())
    page.wait_for_timeout(300)
    assert faults == []
    yield page
    assert faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.broken") is None, "no name ran as code"
    page.close()


def drawn_figures(page: Any) -> list[str]:
    """Return the ids of the figures with marks in them."""
    found: list[str] = page.evaluate(
        """() => Array.from(document.querySelectorAll(".figure"))
          .filter(f => f.querySelector(".scatterlayer path")).map(f => f.id)"""
    )
    return found
