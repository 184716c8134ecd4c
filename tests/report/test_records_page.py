"""Records of evidence, in a real browser and in the terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from make_result import HOSTILE
from opened_page import opened_page
from rich.console import Console
from some_records import a_record

from kvsched.evidence.record import Record, sealed
from kvsched.evidence.record_compare import compare_records
from kvsched.report.records import (
    ids_to_tell_apart,
    print_record,
    print_record_comparison,
    print_records,
    render_records,
    signed,
)

FIRST = sealed(a_record())
SECOND = sealed(a_record(corrects=FIRST.record_id, decision="reject", status="failed"))
CORRECTIONS = {FIRST.record_id: (SECOND.record_id,)}


def hostile() -> list[Record]:
    """Texts as an unsound registry could hold them too."""
    return [
        msgspec.structs.replace(
            sealed(a_record()),
            task=text,
            name=text,
            reason=text,
            config={text: text, "list": [text]},
            environment={text: {text: text}},
            metrics={text: 1.5, "b" + text: None},
            missing={"b" + text: text, "other" + text: text},
        )
        for text in HOSTILE
    ]


PAGES = {
    "plain": render_records([FIRST, SECOND], CORRECTIONS),
    "hostile": render_records(hostile(), {}),
    "empty": render_records([], {}),
}


@pytest.mark.parametrize(("name", "width"), [("plain", 1280), ("hostile", 375), ("empty", 375)])
def test_in_a_browser(browser: Any, tmp_path: Path, name: str, width: int) -> None:
    with opened_page(browser, PAGES[name], tmp_path, width) as page:
        rows = page.evaluate(
            "document.querySelectorAll('main section:nth-of-type(2) tbody tr').length"
        )
        assert rows == {"plain": 2, "hostile": len(HOSTILE), "empty": 0}[name]
        if name == "plain":
            assert page.evaluate("document.querySelectorAll('tr.old').length") == 1
            assert page.inner_text("tr.old").count(f"superseded by {SECOND.record_id[:8]}") == 1
            page.click("tr.old a")
            assert page.evaluate("location.hash") == f"#r-{FIRST.record_id}"


def test_the_page_needs_nothing_else_and_is_the_same_again() -> None:
    for text in ("http://", "https://", "src=", "@import"):
        assert text not in PAGES["plain"]
    assert PAGES["plain"] == render_records([FIRST, SECOND], CORRECTIONS)
    assert "no objective was set" in PAGES["plain"]
    assert "There is no record yet" in PAGES["empty"]


def printed(draw: Any, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    draw(Console(file=file, width=80, highlight=False))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("records", [[FIRST, SECOND], hostile()], ids=["plain", "hostile"])
def test_the_terminal_holds_80_columns(records: list[Record], encoding: str) -> None:
    texts = [
        printed(lambda console: print_records(records, CORRECTIONS, console), encoding),
        *(
            printed(lambda console, it=each: print_record(it, CORRECTIONS, console), encoding)
            for each in records
        ),
        printed(
            lambda console: print_record_comparison(
                compare_records(records[0], records[1]), console
            ),
            encoding,
        ),
    ]
    for text in texts:
        assert all(len(line) <= 80 for line in text.splitlines())
        assert not set(text) & {"\x1b", "\u202e", "\x00"}, "no control reaches a terminal"


def test_a_failed_record_says_so() -> None:
    shown = printed(lambda console: print_records([FIRST, SECOND], CORRECTIONS, console))
    assert "reject, failed" in shown
    assert f"superseded by {SECOND.record_id[:8]}" in shown


def test_ids_are_long_enough_to_tell_apart() -> None:
    one = msgspec.structs.replace(FIRST, record_id="a" * 12 + "0" * 20)
    other = msgspec.structs.replace(FIRST, record_id="a" * 12 + "1" * 20)
    assert ids_to_tell_apart([one, other]) == 13
    assert ids_to_tell_apart([FIRST]) == 8


def test_signs() -> None:
    assert [signed(value) for value in (None, 0, 1.5, -2)] == ["–", "+0", "+1.5", "−2"]
