"""The report's text: what it holds, what it hides, and that it is the same every time."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest
from by_hand import HOSTILE, make_result

from kvsched.report import figures
from kvsched.report.format import gib, name, seconds, share, short, visible
from kvsched.report.html import render_html


class _Outline(HTMLParser):
    """Elements, handlers and text of a page, scripts' content left out."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.handlers: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.handlers += [key for key, _ in attrs if key.startswith("on")]
        self.links += [value or "" for key, value in attrs if key in ("src", "href")]
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if not self._script:
            self.text.append(data)


def _outline(html: str) -> _Outline:
    found = _Outline()
    found.feed(html)
    return found


def _words(html: str) -> str:
    return re.sub(r"\s+", " ", " ".join(_outline(html).text))


def test_the_same_result_gives_the_same_bytes() -> None:
    assert render_html(make_result()) == render_html(make_result())


def test_needs_nothing_else() -> None:
    page = _outline(render_html(make_result()))
    assert page.links == ["data:,"]
    assert "link" in page.elements
    assert not {"img", "iframe", "object", "embed", "base"} & set(page.elements)


def test_holds_the_answer() -> None:
    result = make_result()
    words = _words(render_html(result))
    for expected in (
        *result.recommendation.sentences,
        *result.warnings,
        *result.capacity.derivation,
        *result.definitions.values(),
        result.command,
        result.trace.digest,
        "52.8%",
        "19.7%",
        "37.4%",
        "1.12×",
        "54.7 GiB",
        "344,424 distinct blocks (69.2%",
        "735,375",
        "by window of time",
    ):
        assert expected in words, expected


def test_hostile_names_are_text() -> None:
    usual = _outline(render_html(make_result()))
    html = render_html(make_result(hostile=True))
    page = _outline(html)
    assert set(page.elements) == set(usual.elements)
    assert page.elements.count("script") == usual.elements.count("script")
    assert page.handlers == []
    assert page.links == ["data:,"]
    words = "".join(page.text)
    for hostile in HOSTILE:
        assert name(hostile) in words, hostile
    assert "x" * 61 not in words.replace(visible(make_result(hostile=True).command), "")
    for invisible in "\u202e\u2066\u200b\u2028\x00\x1b":
        assert invisible not in html.partition("<script>")[0]


def test_a_script_s_data_cannot_end_it() -> None:
    for figure in figures.figures(make_result(hostile=True)).values():
        raw = figures.as_script(figure)
        assert "<" not in raw
        assert "\u2028" not in raw
        assert json.loads(raw) == figure


def test_names_cannot_be_templates_of_plotly() -> None:
    policy = "%{x}<b>"
    base = make_result()
    rename = {"lru": policy}
    hostile = msgspec.structs.replace(
        base,
        policy=policy,
        curves=tuple(
            msgspec.structs.replace(c, policy=rename.get(c.policy, c.policy)) for c in base.curves
        ),
        policies=tuple(
            msgspec.structs.replace(p, policy=rename.get(p.policy, p.policy)) for p in base.policies
        ),
        knees=tuple(
            msgspec.structs.replace(k, policy=rename.get(k.policy, k.policy)) for k in base.knees
        ),
    )
    own = figures.curves(hostile)["data"][-2]
    assert own["name"] == "&#37;{x}&lt;b&gt;"
    assert own["hovertemplate"].count("%{x}") == 0
    render_html(hostile)


def test_figures_are_whole() -> None:
    result = make_result()
    found = figures.figures(result)
    assert [curve["name"] for curve in found["figure-curves"]["data"]] == [
        *(c.policy for c in result.curves if c.policy != "lru"),
        "lru",
        "here",
    ]
    shares = [trace["x"][0] for trace in found["figure-anatomy"]["data"]]
    assert sum(shares) == pytest.approx(1.0)
    assert sum(found["figure-reuse"]["data"][0]["y"]) == pytest.approx(1.0, abs=1e-5)


def test_a_small_block_is_not_drawn_at_nothing() -> None:
    base = make_result()
    small = msgspec.structs.replace(base.capacity, bytes_per_block=16)
    drawn = figures.curves(msgspec.structs.replace(base, capacity=small), in_gib=True)
    assert min(x for trace in drawn["data"] for x in trace["x"]) > 0


def test_without_a_model_there_are_no_gib() -> None:
    html = render_html(make_result(hardware=False))
    assert "figure-curves-gib" not in html
    assert "What the hits are worth" not in html
    assert "name a model and a GPU to know" in html


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (share(None), "–"),
        (share(0.3664), "36.6%"),
        (share(-0.0612), "−6.1%"),
        (share(0.0), "0.0%"),
        (share(0.0002), "<0.1%"),
        (share(0.9, 0), "90%"),
        (short(12_345_678), "12.3 M"),
        (short(999_999), "1 M"),
        (short(999), "999"),
        (short(0), "0"),
        (gib(54.73), "54.7 GiB"),
        (gib(0.0123), "0.012 GiB"),
        (gib(2350.4), "2,350 GiB"),
        (seconds(3276.0), "54.6 min"),
        (seconds(0.0), "0 s"),
        (seconds(90_000.0), "25.0 h"),
        (name("a" * 61), "a" * 59 + "…"),
        (name("\u202eabc"), "\ufffdabc"),
    ],
)
def test_numbers_and_names_are_written(written: str, expected: str) -> None:
    assert written == expected
