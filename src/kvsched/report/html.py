"""A study as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import json
from typing import Any

from kvsched.report import figures, format
from kvsched.study.result import StudyResult

GROUP_NAMES = {
    "depth": "by depth in the prompt",
    "turn": "by turn",
    "type": "by type",
    "tenant": "by tenant",
    "session": "by session",
    "window": "by window of time",
}
"""In the order of the tabs."""

FILTERS = (
    "share",
    "count",
    "short",
    "gib",
    "seconds",
    "times",
    "name",
    "visible",
    "block_tokens",
)
"""Of `kvsched.report.format`, for the template."""


def page(template: str, filters: dict[str, Any], **values: Any) -> str:
    """Return a page from a template of this room; where it draws figures, it embeds plotly."""
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvsched.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    for name in FILTERS:
        environment.filters[name] = getattr(format, name)
    environment.filters.update(filters)
    return environment.get_template(template).render(plotly=get_plotlyjs, **values)


def render_html(result: StudyResult) -> str:
    """Return the report. The same result gives the same bytes; names from the trace are escaped.

    About 5 MB, nearly all of it plotly's own JavaScript, which draws the figures.
    """
    drawn = figures.figures(result)
    return page(
        "report.html",
        {"json": _json},
        r=result,
        exact=any(curve.exact_everywhere for curve in result.curves),
        overall=result.anatomy.overall,
        classes=list(figures.CLASS_COLOURS.items()),
        groups={group: title for group, title in GROUP_NAMES.items() if group in result.anatomy.by},
        figures={place: figures.as_script(figure) for place, figure in drawn.items()},
        targets=_target_rows(result),
        shares=sorted({target.share for target in result.targets}),
        own=next(row for row in result.policies if row.policy == result.policy),
        fit=next(row for row in result.policies if row.policy == "opt-fit"),
        grid=_grid_rows(result),
        bins=list(zip(figures.bins(result.reuse.blocks), result.reuse.blocks.counts, strict=True)),
        most=result.ceiling.token_share or 1.0,
    )


def _json(value: Any) -> str:
    """Return options as compact JSON, to read."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _target_rows(result: StudyResult) -> list[dict[str, Any]]:
    knees = {knee.policy: knee for knee in result.knees}
    return [
        {
            "policy": row.policy,
            "targets": sorted(
                (target for target in result.targets if target.policy == row.policy),
                key=lambda target: target.share,
            ),
            "knee": knees[row.policy],
            "exact": all(t.exact for t in result.targets if t.policy == row.policy),
        }
        for row in result.policies
    ]


def _grid_rows(result: StudyResult) -> list[dict[str, Any]]:
    """The curves at the capacities that all of them have, as a table's rows."""
    prompt, size = result.trace.prompt_tokens, result.capacity.bytes_per_block
    found = [dict(zip(c.capacity_blocks, c.hit_tokens, strict=True)) for c in result.curves]
    common = sorted(set.intersection(*(set(curve) for curve in found))) if found else []
    return [
        {
            "blocks": blocks,
            "gib": None if size is None else blocks * size / 2**30,
            "shares": [curve[blocks] / prompt if prompt else None for curve in found],
        }
        for blocks in common
    ]
