"""How results show themselves in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | str):
        return html.escape(str(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def facts(title: str, values: Mapping[str, Any]) -> str:
    """Return an HTML table of two columns under a title; names and texts are escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{_shown(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{rows}</table>"


def table(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML table of rows that have the same columns."""
    if not rows:
        return f"<table><caption>{html.escape(title)}</caption></table>"
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_shown(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"
