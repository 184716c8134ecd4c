"""What readers do with the report in a browser: every kind of result, print, tables, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_hand import empty_result, make_result

from kvsched.report.html import render_html

GROUPS = ("depth", "tenant", "session", "window")
RESULTS = {
    "usual": make_result(),
    "hostile": make_result(hostile=True),
    "blocks": make_result(hardware=False),
    "empty": empty_result(),
}


def _opened(browser: Any, html: str, folder: Path, width: int = 1280, **more: Any) -> Any:
    """Open a page; ``page.faults`` grows with what goes wrong."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900}, **more)
    page.faults = []
    page.on("console", lambda said: page.faults.append(said.text))
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("dialog", lambda dialog: (page.faults.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda asked: asked.url.startswith(("file:", "data:")) or page.faults.append(asked.url),
    )
    page.goto(path.as_uri())
    page.wait_for_timeout(400)
    page.faults += _not_drawn(page)
    return page


def _not_drawn(page: Any) -> list[str]:
    """The visible figures without a mark of data in them."""
    found: list[str] = page.evaluate(
        """() => Array.from(document.querySelectorAll(".figure:not([hidden])"))
          .filter(f => !f.querySelector(".scatterlayer path, .barlayer path"))
          .map(f => f.id + " is not drawn")"""
    )
    return found


@pytest.mark.parametrize("name", RESULTS)
def test_every_kind_of_result_opens_and_fits_a_phone(
    browser: Any, tmp_path: Path, name: str
) -> None:
    page = _opened(browser, render_html(RESULTS[name]), tmp_path, width=375)
    assert page.faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.close()


def test_names_of_the_trace_stay_text_in_figures(browser: Any, tmp_path: Path) -> None:
    page = _opened(browser, render_html(RESULTS["hostile"]), tmp_path)
    page.click('[data-show="figure-anatomy-session"]')
    page.wait_for_timeout(200)
    ticks = page.locator("#figure-anatomy-session .ytick text").all_text_contents()
    for expected in (
        "<script>alert(1)</script>",
        "%{x} %{customdata} %{y:.1%}",
        "{{7*7}}{% raw %}",
        "&lt;i&gt;&amp;&#60;u&#62;",
    ):
        assert expected in ticks
    assert max(map(len, ticks)) <= 60
    bar = page.locator("#figure-anatomy-session .barlayer .trace").first.locator("path").nth(4)
    assert "%{x} %{customdata} %{y:.1%}" in _hovered(page, "figure-anatomy-session", bar)
    assert page.locator("#figure-anatomy-session a, img").count() == 0
    assert page.is_visible("details[data-with='figure-anatomy-session']")
    assert not page.is_visible("#figure-anatomy-depth")
    assert page.faults == []
    page.close()


def _hovered(page: Any, figure: str, mark: Any) -> str:
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_timeout(300)
    return str(page.locator(f"#{figure} .hoverlayer").text_content())


def test_a_point_says_policy_share_blocks_and_gib(browser: Any, tmp_path: Path) -> None:
    page = _opened(browser, render_html(RESULTS["usual"]), tmp_path)
    # fifo is first; the study's capacity is one of its points.
    curve = page.locator("#figure-curves-gib .scatterlayer .trace").first
    at = RESULTS["usual"].curves[1].capacity_blocks.index(28_019)
    shown = _hovered(page, "figure-curves-gib", curve.locator(".point").nth(at))
    for expected in ("fifo", "18.1%", "28,019 blocks", "54.7 GiB"):
        assert expected in shown
    page.close()


def test_prints_light_whole_and_as_wide_as_the_paper(browser: Any, tmp_path: Path) -> None:
    page = _opened(browser, render_html(RESULTS["usual"]), tmp_path, color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.wait_for_timeout(200)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    widths = page.evaluate(
        "Array.from(document.querySelectorAll('.figure:not([hidden]) svg.main-svg'))"
        ".map(s => s.getBoundingClientRect().width)"
    )
    assert max(widths) <= 182 / 25.4 * 96  # A4 less two margins of 14 mm
    assert page.evaluate("document.querySelectorAll('details[data-print]:not([open])').length") == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[data-print][open]').length") == 0
    assert page.faults == []
    page.close()


def test_every_figure_has_a_name_and_a_table(browser: Any, tmp_path: Path) -> None:
    page = _opened(browser, render_html(RESULTS["usual"]), tmp_path)
    unnamed = """() => [
      ...Array.from(document.querySelectorAll(".figure:not([aria-label])")),
      ...Array.from(document.querySelectorAll("table, section[aria-labelledby]")).filter(
        t => !document.getElementById(t.getAttribute("aria-labelledby"))),
      ...Array.from(document.querySelectorAll(".scroll:not([tabindex])")),
    ].map(e => e.outerHTML.slice(0, 80))"""
    assert page.evaluate(unnamed) == []
    ids = page.evaluate("Array.from(document.querySelectorAll('[id]')).map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert {"t-curves", "t-anatomy", "t-reuse", *(f"t-anatomy-{g}" for g in GROUPS)} <= set(ids)
    page.close()


BREAKS = {
    "a figure without data": ('"type":"bar"', '"type":"bar","visible":false'),
    "something fetched": ("</main>", '<img src="http://127.0.0.1:9/x.png"></main>'),
    "a name that runs": ("</main>", "<img src=x onerror=alert(1)></main>"),
}


@pytest.mark.parametrize("what", BREAKS)
def test_the_checks_can_fail(browser: Any, tmp_path: Path, what: str) -> None:
    before, after = BREAKS[what]
    html = render_html(RESULTS["usual"])
    assert before in html
    page = _opened(browser, html.replace(before, after), tmp_path)
    assert page.faults != []
    page.close()
