"""The report in a real browser: drawn, quiet, answering, readable at every width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_result import hostile_result, real_result

from kvsched.report.html import render_html


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    found = {}
    for name, result in (("real", real_result()), ("hostile", hostile_result())):
        found[name] = folder / f"{name}.html"
        found[name].write_text(render_html(result), encoding="utf-8")
    broken = (
        found["real"].read_text(encoding="utf-8").replace('"type":"bar"', '"type":5,"x0":{}', 1)
    )
    found["broken"] = folder / "broken.html"
    found["broken"].write_text(
        broken.replace('id="figure-reuse-data"', 'id="figure-reuse-data-gone"'), encoding="utf-8"
    )
    return found


class Opened:
    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_page(**options)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_timeout(800)

    def check_quiet(self) -> None:
        assert self.said == [], "no console message, no error"
        outside = [url for url in self.asked if not url.startswith(("file:", "data:", "blob:"))]
        assert outside == [], "no request leaves the file"

    def check_drawn(self) -> None:
        """Every figure has marks, those behind tabs too once their tab is pressed."""
        for button in self.page.locator("[data-show]").all():
            button.click()
            self.page.wait_for_timeout(120)
        places = self.page.locator(".figure")
        assert places.count() >= 4
        for at in range(places.count()):
            place = places.nth(at)
            marks = place.locator(".scatterlayer path, .barlayer path")
            assert marks.count() > 0, f"{place.get_attribute('id')} is not drawn"


@pytest.mark.parametrize("name", ["real", "hostile"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_figure_is_drawn_and_nothing_complains(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    opened = Opened(browser, pages[name], viewport={"width": width, "height": 900})
    opened.check_drawn()
    opened.check_quiet()
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "the page does not scroll sideways"
    assert opened.page.evaluate("window.broken") is None, "no name of the trace ran as code"
    assert opened.page.locator("img").count() == 0
    opened.page.close()


def test_the_check_of_drawing_can_fail(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["broken"])
    with pytest.raises(AssertionError):
        opened.check_drawn()
    opened.page.close()


def test_hovering_shows_values(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["real"], viewport={"width": 1280, "height": 900})
    page = opened.page
    for place, said in (("figure-curves-gib", "hit"), ("figure-anatomy", "tokens")):
        figure = page.locator(f"#{place}")
        figure.scroll_into_view_if_needed()
        marks = ".scatterlayer .point" if "curves" in place else ".barlayer path"
        box = figure.locator(marks).first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(300)
        assert said in figure.locator(".hoverlayer").text_content()
    page.close()


def test_hostile_names_are_shown_as_text_in_figures(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["hostile"], viewport={"width": 1280, "height": 900})
    labels = opened.page.locator("#figure-anatomy-depth .yaxislayer-above").text_content()
    assert "<script>window.broken=1</script>" in labels
    assert opened.page.locator("#figure-anatomy-depth a").count() == 0
    opened.page.close()


def test_dark_and_print(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["real"], color_scheme="dark")
    page = opened.page

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground() == "rgb(20, 24, 29)"
    page.locator("#theme").click()
    assert ground() == "rgb(255, 255, 255)"
    page.locator("#theme").click()
    assert ground() == "rgb(20, 24, 29)"
    page.emulate_media(media="print", color_scheme="dark")
    assert ground() == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert len(page.pdf()) > 50_000
    opened.check_quiet()
    page.close()


@pytest.mark.parametrize(("before", "after"), [(1280, 390), (390, 1280)])
def test_figures_follow_the_window(
    browser: Any, pages: dict[str, Path], before: int, after: int
) -> None:
    opened = Opened(browser, pages["real"], viewport={"width": before, "height": 900})
    page = opened.page
    page.set_viewport_size({"width": after, "height": 900})
    page.wait_for_timeout(900)
    for place in page.locator(".figure:not([hidden])").all():
        box, drawn = place.bounding_box(), place.locator("svg.main-svg").first.bounding_box()
        assert abs(drawn["width"] - box["width"]) <= 1, "a figure is as wide as its place"
        assert drawn["height"] <= box["height"] + 1, "and stays inside it"
        assert box["height"] > 60
    hidden = page.locator('[data-show="figure-curves"]')
    hidden.click()
    page.wait_for_timeout(300)
    place = page.locator("#figure-curves")
    drawn = place.locator("svg.main-svg").first.bounding_box()
    assert abs(drawn["width"] - place.bounding_box()["width"]) <= 1
    opened.check_quiet()
    page.close()
