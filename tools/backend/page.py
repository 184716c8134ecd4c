"""The page of a measured backend: README.md from the files that the commands wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROWS = ("TTFT p50", "TTFT p90", "TPOT p50", "hit rate", "output throughput")
Row = tuple[str, ...]


def read(path: Path) -> Any:
    """Return a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def number(value: float | None, unit: str) -> str:
    """Return a measured number with its unit."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}%" if unit in ("share", "") else f"{value:,.3g} {unit}"


def share(value: float | None) -> str:
    """Return a relative change with its sign."""
    return "–" if value is None else f"{100 * value:+.1f}%"


def table(headings: Row, rows: Iterable[Row]) -> list[str]:
    """Return a Markdown table; the first column is of names."""
    lines = [f"| {' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def machine(environment: dict[str, Any]) -> list[str]:
    """Return what it was measured on."""
    cpu, memory = environment.get("cpu") or {}, environment.get("memory") or {}
    system, python = environment.get("machine") or {}, environment.get("python") or {}
    total = memory.get("total_bytes")
    if not cpu:
        return ["The machine is not described.", ""]
    facts = [
        ("processor", f"{cpu.get('model')}, {cpu.get('usable')} cores usable"),
        ("memory", "–" if not total else f"{total / 2**30:.0f} GiB"),
        ("system", f"{system.get('system')} {system.get('release')}, {system.get('architecture')}"),
        ("Python of the client", str(python.get("version"))),
    ]
    return table(("machine", ""), facts)


def comparison(path: Path) -> list[str]:
    """Return a comparison: a heading, a table, the decision."""
    found = read(path)
    lines = [f"### {found['a']['name']} → {found['b']['name']}", ""]
    rows = []
    for change in found["changes"]:
        if change["name"] not in ROWS:
            continue
        unit = "share" if change["name"] == "hit rate" else change["unit"]
        low, high = change["low"], change["high"]
        inside = "–" if low is None else f"{number(low, unit)} to {number(high, unit)}"
        rows.append(
            (
                change["name"],
                number(change["a"], unit),
                number(change["b"], unit),
                share(change["relative"]),
                inside,
            )
        )
    lines += table(("", "A", "B", "B/A − 1", "95% interval of B − A"), rows)
    return [*lines, f"**{found['decision']}**: {found['reason'].partition(': ')[2]}.", ""]


def workload(path: Path) -> str:
    """Return what a folder's runs were sent, in a sentence."""
    found = read(next(path.rglob("result.json")))["workload"]
    return (
        f"{found['requests']:,} requests, {found['prompt_tokens']:,} prompt tokens and "
        f"{found['output_tokens']:,} generated ({found['source']}, scale {found['scale']})."
    )


def calibration(folder: Path) -> list[str]:
    """Return predictions against measurements."""
    found = read(folder / "calibration.json")
    lines = [f"- {sentence}" for sentence in found["sentences"]]
    lines.append("")
    rows = []
    for run in found["runs"]:
        for title, field in (("TTFT", "ttft"), ("TPOT", "tpot")):
            error = run[field]
            if error is None:
                continue
            told, predicted = error["measured"], error["predicted"]
            rows.append(
                (
                    f"{run['name']}, {title}",
                    f"{1e3 * told['p50']:,.3g} ms",
                    f"{1e3 * predicted['p50']:,.3g} ms",
                    share(error["error_p50"]),
                    share(error["error_p90"]),
                    f"{run['cached']['different']:,} of {run['cached']['compared']:,}",
                )
            )
    return lines + table(
        ("requests kept back", "measured p50", "predicted p50", "error p50", "error p90",
         "cached tokens differ"),
        rows,
    )  # fmt: skip


def write_page(folder: Path) -> None:
    """Write README.md beside the records."""
    result = read(next((folder / "shared-prefix").rglob("result.json")))
    engine = result["engine"]
    lines = [
        "# A real vLLM, measured",
        "",
        "Made by `make backend KEEP=1`: `records.jsonl` has every run, comparison and calibration "
        "as a record (`kvsched records import` reads it), this page the tables. The model is a "
        "llama of six layers and made-up weights, in float32 on one core: what is judged is the "
        "cache and the scheduler, not a model.",
        "",
        f"Engine: {engine['kind']} {engine['version']}, started with "
        f"`{' '.join(engine['arguments'])}`. kvsched {result['kvsched']}.",
        "",
        *machine(result["environment"]),
    ]
    for title, name in (
        ("Prefix caching off and on, shared prefixes", "shared-prefix"),
        ("Prefix caching off and on, a slice of the conversation trace", "conversation"),
        ("Scheduler settings, the same slice", "scheduler"),
    ):
        lines += [f"## {title}", "", workload(folder / name), ""]
        for path in sorted((folder / name).glob("comparison*.json"), key=_by_number):
            lines += comparison(path)
    lines += ["## Prediction against measurement", "", *calibration(folder / "calibration")]
    text = "\n".join(lines).rstrip() + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _by_number(path: Path) -> tuple[int, str]:
    last = path.stem.rpartition("-")[2]
    return (int(last) if last.isdigit() else 0, path.stem)
