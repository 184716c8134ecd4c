"""The page in a real browser: every click shows what was recorded for that step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvsched.lesson.play import play_page
from kvsched.lesson.play_policies import DEFAULT_POLICIES, record
from kvsched.lesson.play_requests import (
    DEFAULT_CAPACITY,
    DEFAULT_REQUESTS,
    LONGEST_PREFIX,
    MOST_REQUESTS,
    Request,
    capacities,
)
from kvsched.lesson.play_words import LABELS, tell
from kvsched.lesson.recording import Recording

HOSTILE = (
    Request("</script><b>x", 5),
    Request("<img src=x onerror='window.broken=1'>", 6),
    Request("W" * LONGEST_PREFIX, 7),
    Request("{prefix}", 4),
    Request("</script><b>x", 5),
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play") / "page.html"
    path.write_text(
        play_page(DEFAULT_REQUESTS, DEFAULT_CAPACITY, DEFAULT_POLICIES), encoding="utf-8"
    )
    return path


class Opened:
    def __init__(self, browser: Any, path: Path, hash: str = "", **options: Any) -> None:
        self.page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri() + hash)
        self.page.wait_for_selector("#said:not(:empty)")

    def close(self) -> None:
        assert self.said == [], "no console message, no error"
        outside = [url for url in self.asked if not url.startswith(("file:", "data:"))]
        assert outside == [], "no request leaves the file"
        self.page.close()

    def click(self, name: str) -> None:
        self.page.locator(f"#{name}").click()

    def text(self, place: str) -> str:
        return str(self.page.locator(place).text_content())

    def texts(self, place: str) -> list[str]:
        return list(self.page.locator(place).all_text_contents())

    def check(self, run: Recording, at: int, language: str = "en") -> None:
        """Hold all that the page shows to step ``at`` of a recorded run."""
        step = run.steps[at]
        assert self.text("#said") == tell(step.said, language)
        assert self.page.locator("#position").input_value() == str(at + 1)
        numbers = [int(each) for each in re.findall(r"\d+", self.text("#count"))]
        assert numbers == [at + 1, len(run.steps)]
        present = self.page.locator("#requests [aria-current]")
        request = run.requests[step.request]
        assert str(present.text_content()).startswith(f"{step.request + 1} {request.prefix}")
        shown = self.texts("#bar > div:not(.free)")
        assert shown == [f"{row.prefix}{row.bytes_}" for row in step.ledger]
        free = run.capacity - step.used
        word = LABELS["free"][["en", "zh"].index(language)]
        assert self.texts("#bar .free") == ([f"{word}{free}"] if free else [])
        self.check_ledger(run, at, language)
        self.check_heap(run, at)
        asked = sum(size for _, size in run.requests[: step.request + 1])
        stats = [re.findall(r"\d+", each) for each in self.texts("#stats dd")]
        assert stats[0] == [str(step.hits), str(step.request + 1)]
        assert stats[1] == [str(step.hit_bytes), str(asked)]
        assert stats[2] == [str(step.evictions)]

    def check_ledger(self, run: Recording, at: int, language: str) -> None:
        step = run.steps[at]
        rows = [*([step.gone] if step.gone else []), *step.ledger]
        lines = self.page.locator("#ledger tbody tr")
        assert lines.count() == max(len(rows), 1)
        for number, row in enumerate(rows):
            cells = lines.nth(number).locator("th, td").all_text_contents()
            assert cells[0].startswith(row.prefix)
            assert cells[1:4] == [str(row.bytes_), str(row.hits), str(row.last_used)]
            gone = step.gone is not None and number == 0
            assert ("gone" in (lines.nth(number).get_attribute("class") or "")) == gone
            if row.terms is not None:
                hits, recency, size = row.terms
                score = f"{hits} + {recency:.4f} − {size:.4f} = {row.terms.score:.4f}"
                assert cells[4] == score
                assert cells[5] == f"{0.5 / (1 + step.request + 1 - row.last_used):.4f}"
            else:
                assert row.standing is not None
                assert cells[4] == tell(row.standing, language)

    def check_heap(self, run: Recording, at: int) -> None:
        step = run.steps[at]
        assert self.page.locator("#heap-section").is_visible() == bool(run.records)

        def told(number: int) -> str:
            each = run.records[number]
            return f"{each.prefix}{each.score:.4f}@{each.last_used}"

        records = self.page.locator("#heap .record")
        assert records.count() == len(step.heap)
        kinds = records.evaluate_all("all => all.map(each => Array.from(each.classList))")
        texts = records.all_text_contents()
        for number, text, kind in zip(step.heap, texts, kinds, strict=True):
            assert text.startswith(told(number))
            assert ("old" in kind) == (number in step.stale)
            assert ("fresh" in kind) == (number == step.pushed)
        popped = self.page.locator("#popped .record")
        assert popped.count() == (step.popped is not None)
        if step.popped is not None:
            assert popped.text_content() == told(step.popped)
            kind = "out" if step.kind == "stale" else "left"
            assert kind in str(popped.get_attribute("class")).split()
            if kind == "out":
                line = popped.locator("b").evaluate("e => getComputedStyle(e).textDecorationLine")
                assert line == "line-through", "a stale record is crossed out"


def test_forward_through_every_step_and_back(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file)
    run = record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter")
    for at in range(len(run.steps)):
        opened.check(run, at)
        if at + 1 < len(run.steps):
            opened.click("forward")
    assert opened.page.locator("#forward").is_disabled()
    for at in range(len(run.steps) - 2, len(run.steps) - 8, -1):
        opened.click("back")
        opened.check(run, at)
    opened.click("first")
    opened.check(run, 0)
    assert opened.page.locator("#back").is_disabled()
    opened.click("last")
    opened.check(run, len(run.steps) - 1)
    opened.close()


def test_the_check_can_fail(browser: Any, page_file: Path, tmp_path: Path) -> None:
    run = record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter")
    at = next(number for number, step in enumerate(run.steps) if step.kind == "stale")
    text = page_file.read_text(encoding="utf-8")
    for right, wrong in (
        ("stale.includes(number)", "stale.includes(-1)"),
        ("step.popped === undefined", "true"),
        ("row[5]", "row[4]"),
        ("data.recency[step.request + 1", "data.recency[step.request + 2"),
    ):
        assert right in text
        broken = tmp_path / "broken.html"
        broken.write_text(text.replace(right, wrong, 1), encoding="utf-8")
        opened = Opened(browser, broken, f"#step={at + 1}")
        with pytest.raises(AssertionError):
            opened.check(run, at)
        opened.page.close()


def test_jumps_by_slider_request_list_and_keys(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file)
    page, run = opened.page, record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter")
    page.locator("#position").fill("21")
    opened.check(run, 20)
    page.locator("#requests button").nth(8).click()
    opened.check(run, next(at for at, step in enumerate(run.steps) if step.request == 8))
    page.locator("#all-steps summary").click()
    page.locator("#all button").nth(30).click()
    opened.check(run, 30)
    page.locator("h1").click()
    for key, at in (
        ("ArrowRight", 31),
        ("ArrowLeft", 30),
        ("End", len(run.steps) - 1),
        ("Home", 0),
    ):
        page.keyboard.press(key)
        opened.check(run, at)
    page.keyboard.press(" ")
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    page.wait_for_function("document.getElementById('position').value === '2'")
    page.keyboard.press(" ")
    assert page.locator("#play").get_attribute("aria-label") == "Play"
    opened.check(run, 1)
    opened.close()


@pytest.mark.parametrize("policy", DEFAULT_POLICIES)
def test_capacity_and_policy_are_changed_and_the_run_seen_again(
    browser: Any, page_file: Path, policy: str
) -> None:
    opened = Opened(browser, page_file)
    opened.page.locator("#policy").select_option(policy)
    for capacity in (60, 88, DEFAULT_CAPACITY, 116):
        opened.page.locator("#capacity").select_option(str(capacity))
        run = record(DEFAULT_REQUESTS, capacity, policy)
        for at in (*range(0, len(run.steps) - 1, 7), len(run.steps) - 1):
            opened.page.locator("#position").fill(str(at + 1))
            opened.check(run, at)
    opened.close()


def test_another_run_is_shown_at_the_same_request(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file)
    opened.page.locator("#requests button").nth(6).click()
    opened.page.locator("#policy").select_option("lru")
    run = record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "lru")
    opened.check(run, next(at for at, step in enumerate(run.steps) if step.request == 6))
    opened.close()


def test_the_table_of_all_runs(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file)
    offered, _ = capacities(DEFAULT_REQUESTS, DEFAULT_CAPACITY)
    assert opened.texts("#compare thead th")[1:] == [str(each) for each in offered]
    lines = opened.page.locator("#compare tbody tr")
    for number, policy in enumerate(DEFAULT_POLICIES):
        shown = [str(each.text_content()) for each in lines.nth(number).locator("td").all()]
        runs = [record(DEFAULT_REQUESTS, capacity, policy) for capacity in offered]
        assert shown == [str(run.steps[-1].hits) for run in runs]
    lines.nth(4).locator("button").nth(2).click()
    assert opened.page.locator("#policy").input_value() == "opt"
    assert opened.page.locator("#capacity").input_value() == str(offered[2])
    assert lines.nth(4).locator("button").nth(2).get_attribute("aria-pressed") == "true"
    opened.close()


def test_a_link_opens_where_it_was_copied(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file)
    opened.page.locator("#policy").select_option("gdsf")
    opened.page.locator("#capacity").select_option("78")
    opened.page.locator("#position").fill("9")
    opened.page.locator('[data-language="zh"]').click()
    copied = "#" + opened.page.url.split("#")[1]
    opened.close()
    again = Opened(browser, page_file, copied)
    again.check(record(DEFAULT_REQUESTS, 78, "gdsf"), 8, "zh")
    again.close()
    wrong = Opened(browser, page_file, "#policy=none&capacity=x&step=999&language=fr")
    run = record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter")
    wrong.check(run, len(run.steps) - 1)
    wrong.close()


def test_language(browser: Any, page_file: Path, tmp_path: Path) -> None:
    opened = Opened(browser, page_file)
    run = record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "chapter")
    assert opened.text("h1") == LABELS["title"][0]
    opened.page.locator('[data-language="zh"]').click()
    assert opened.text("h1") == LABELS["title"][1]
    assert opened.page.evaluate("document.documentElement.lang") == "zh-Hans"
    opened.click("forward")
    opened.check(run, 1, "zh")
    opened.close()
    path = tmp_path / "zh.html"
    chinese = play_page(DEFAULT_REQUESTS, DEFAULT_CAPACITY, ("lru",), "zh")
    path.write_text(chinese, encoding="utf-8")
    opened = Opened(browser, path)
    opened.check(record(DEFAULT_REQUESTS, DEFAULT_CAPACITY, "lru"), 0, "zh")
    opened.close()
    assert '<html lang="zh-Hans">' in chinese
    assert LABELS["lead"][1] in chinese.split("<script")[0], "readable without a script"


@pytest.mark.parametrize("width", [1280, 390])
def test_names_are_text_and_nothing_scrolls_sideways(
    browser: Any, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "hostile.html"
    path.write_text(play_page(HOSTILE, 11, ("chapter", "lru")), encoding="utf-8")
    opened = Opened(browser, path, viewport={"width": width, "height": 900})
    run = record(HOSTILE, 11, "chapter")
    for at in range(len(run.steps)):
        opened.check(run, at)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        if at + 1 < len(run.steps):
            opened.click("forward")
    assert opened.page.evaluate("window.broken") is None
    assert opened.page.locator("img").count() == 0
    opened.close()


def test_dark_light_and_print(browser: Any, page_file: Path) -> None:
    opened = Opened(browser, page_file, color_scheme="dark")
    page = opened.page

    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert ground() == "rgb(20, 24, 29)"
    opened.click("theme")
    assert ground() == "rgb(255, 255, 255)"
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#forward").is_visible()
    assert page.locator("#said").is_visible()
    assert len(page.pdf()) > 20_000
    opened.close()


def test_the_page_is_small_whole_and_the_same_every_time() -> None:
    page = play_page(DEFAULT_REQUESTS, DEFAULT_CAPACITY, DEFAULT_POLICIES)
    assert page == play_page(DEFAULT_REQUESTS, DEFAULT_CAPACITY, DEFAULT_POLICIES)
    assert len(page.encode()) < 500_000
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)
    many = tuple(Request(f"p{n * 7 % 11}", 10 + n * 7 % 11) for n in range(MOST_REQUESTS))
    largest = play_page(many, None, DEFAULT_POLICIES)
    assert len(largest.encode()) < 1_500_000
    inside = largest.split('id="play-data">')[1].split("</script>")[0]
    assert len(json.loads(inside)["runs"]) == len(DEFAULT_POLICIES) * len(capacities(many, None)[0])
