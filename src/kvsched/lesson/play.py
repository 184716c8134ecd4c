"""The step-through as a page: every run of it worked out here, and only shown there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsched.foundation.errors import UsageError
from kvsched.foundation.version import VERSION
from kvsched.lesson.chapter import RECENCY_WEIGHT
from kvsched.lesson.play_policies import record
from kvsched.lesson.play_requests import Request, capacities, check_capacity
from kvsched.lesson.play_words import LABELS, LANGUAGES, SENTENCES, Message
from kvsched.lesson.recording import Recording, Row, Step, number
from kvsched.report.figures import as_script
from kvsched.report.html import page


def record_all(
    requests: tuple[Request, ...], own: int | None, policies: tuple[str, ...]
) -> tuple[list[Recording], int]:
    """Record every policy at every capacity that is offered, and say which capacity is first.

    Policies in the order given, capacities ascending. Raises UsageError for a capacity that an
    entry does not fit, and for a policy that is unknown, given twice or in need of more than these
    requests have.
    """
    offered, first = capacities(requests, own)
    check_capacity(requests, first)
    runs = [record(requests, capacity, policy) for policy in policies for capacity in offered]
    labels = [run.policy for run in runs[:: len(offered)]]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"policy {label} is given twice")
    return runs, first


def play_page(
    requests: tuple[Request, ...],
    own: int | None,
    policies: tuple[str, ...],
    language: str = "en",
) -> str:
    """Return the page, which needs nothing else: no network, no other file.

    It opens at the first policy and the capacity ``own`` (`capacities` chooses where it is None).
    The same arguments give the same bytes. Raises UsageError like `record_all`.
    """
    runs, first = record_all(requests, own, policies)
    at = LANGUAGES.index(language)
    return page(
        "play.html",
        {},
        r={"kvsched": VERSION},
        language="zh-Hans" if language == "zh" else language,
        words={key: each[at] for key, each in LABELS.items()},
        data=as_script(page_data(runs, first, language)),
        figures={},
    )


def page_data(runs: list[Recording], first: int, language: str) -> dict[str, Any]:
    """Return what the page's script shows, as one JSON object."""
    requests = runs[0].requests
    prefixes = list(dict.fromkeys(request.prefix for request in requests))
    return {
        "language": language,
        "languages": list(LANGUAGES),
        "words": {
            name: {key: each[at] for key, each in {**LABELS, **SENTENCES}.items()}
            for at, name in enumerate(LANGUAGES)
        },
        "prefixes": prefixes,
        "requests": [[prefixes.index(prefix), size] for prefix, size in requests],
        "capacities": list(dict.fromkeys(run.capacity for run in runs)),
        "policies": [
            {"name": run.policy, "note": _message(note(run))}
            for run in {run.policy: run for run in runs}.values()
        ],
        "first": first,
        # What the recency term would be if it were worked out anew, by the time since the last use.
        "recency": [number(RECENCY_WEIGHT / (1 + age)) for age in range(len(requests) + 1)],
        "runs": {f"{run.policy} {run.capacity}": _run(run, prefixes) for run in runs},
    }


def note(run: Recording) -> Message:
    """Say in a sentence or two whom a run's policy lets go first."""
    key = f"note.{run.policy.split(':')[0]}"
    if key in SENTENCES:
        return Message(key, {})
    return Message("note.other", {"summary": run.summary})


def _run(run: Recording, prefixes: list[str]) -> dict[str, Any]:
    """Return one run; a row that several steps share is written once."""
    rows: dict[str, int] = {}
    written: list[list[Any]] = []

    def place(row: Row) -> int:
        shown = _row(row, prefixes)
        name = repr(shown)
        if name not in rows:
            rows[name] = len(written)
            written.append(shown)
        return rows[name]

    steps = [_step(step, place) for step in run.steps]
    records = [
        [number(each.score), each.last_used, prefixes.index(each.prefix)] for each in run.records
    ]
    return {"steps": steps, "rows": written, "records": records}


def _row(row: Row, prefixes: list[str]) -> list[Any]:
    shown: list[Any] = [prefixes.index(row.prefix), row.bytes_, row.hits, row.last_used]
    if row.terms is not None:
        return [*shown, number(row.terms.recency), number(row.terms.size), number(row.terms.score)]
    return shown if row.standing is None else [*shown, _message(row.standing)]


def _step(step: Step, place: Callable[[Row], int]) -> dict[str, Any]:
    """Return a step without what it does not have."""
    found: dict[str, Any] = {
        "request": step.request,
        "kind": step.kind,
        "said": _message(step.said),
        "ledger": [place(row) for row in step.ledger],
        "used": step.used,
        "hits": step.hits,
        "hitBytes": step.hit_bytes,
        "evictions": step.evictions,
        "heap": step.heap,
        "stale": step.stale,
        "popped": step.popped,
        "pushed": step.pushed,
        "gone": None if step.gone is None else place(step.gone),
    }
    return {name: value for name, value in found.items() if value not in (None, ())}


def _message(message: Message) -> list[Any]:
    values = {
        name: _message(value) if isinstance(value, Message) else value
        for name, value in message.values.items()
    }
    return [message.key, values]
