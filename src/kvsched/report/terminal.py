"""A study in the terminal: short tables that fit 80 columns."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.report.format import count, gib, name, seconds, share, short, times
from kvsched.study.result import AnatomyRow, StudyResult

CLASSES = (
    ("hit", "green"),
    ("regret", "red"),
    ("capacity", "yellow"),
    ("compulsory", "blue"),
    ("tail", "bright_black"),
)
BAR = 60


def print_study(result: StudyResult, console: Console) -> None:
    """Print the workload, the policies, the anatomy, the targets, the worth and the advice."""
    _workload(result, console)
    _policies(result, console)
    _anatomy(result, console)
    _targets(result, console)
    _worth(result, console)
    console.print()
    for sentence in result.recommendation.sentences:
        console.print(f"[bold]{escape(sentence)}[/bold]", soft_wrap=False)
    for warning in result.warnings:
        console.print(f"[yellow]Warning: {escape(warning)}[/yellow]")


def _workload(result: StudyResult, console: Console) -> None:
    trace, capacity, ceiling = result.trace, result.capacity, result.ceiling
    console.print(
        f"[bold]{escape(name(trace.source))}[/bold]: {count(trace.requests)} requests in "
        f"{seconds(trace.duration_s)}, {short(trace.prompt_tokens)} prompt tokens, "
        f"{count(trace.distinct_blocks)} distinct blocks of {trace.block_size}"
    )
    console.print(
        f"Ceiling: {share(ceiling.token_share)} of the prompt tokens could be reused. "
        f"Capacity: {count(capacity.blocks)} blocks"
        + ("" if capacity.gib is None else f" ({gib(capacity.gib)})")
    )
    for step in capacity.derivation:
        console.print(f"  [dim]{escape(step)}[/dim]")


def _policies(result: StudyResult, console: Console) -> None:
    table = Table(title="Policies at this capacity", title_justify="left", box=None, pad_edge=False)
    table.add_column("policy")
    for heading in ("hit", "gap closed", "evictions", "prefill saved"):
        table.add_column(heading, justify="right")
    table.add_column("")
    most = max((row.token_share or 0.0) for row in result.policies) or 1.0
    for row in result.policies:
        label = escape(row.policy) + (" [dim](bound)[/dim]" if row.looks_ahead else "")
        bar = "█" * round(16 * (row.token_share or 0.0) / most)
        if console.encoding and not console.encoding.lower().startswith("utf"):
            bar = bar.replace("█", "#")
        table.add_row(
            f"[bold]{label}[/bold]" if row.policy == result.policy else label,
            share(row.token_share),
            share(row.gap_closed),
            count(row.evictions),
            seconds(row.prefill_seconds_saved),
            bar,
        )
    console.print()
    console.print(table)


def _anatomy(result: StudyResult, console: Console) -> None:
    row = result.anatomy.overall
    if not row.tokens:
        return
    console.print()
    console.print(f"Where the prompt tokens went under {escape(result.anatomy.policy)}:")
    block = "█" if (console.encoding or "utf").lower().startswith("utf") else "#"
    bar = Text()
    for label, colour in CLASSES:
        bar.append(block * round(BAR * getattr(row, label) / row.tokens), style=colour)
    console.print(bar)
    console.print(_legend(row))
    console.print(
        f"[dim]regret: opt-fit would have hit · capacity: opt-fit misses too · luck "
        f"{share(row.luck / row.tokens)} · bypass {share(result.anatomy.bypass / row.tokens)}[/dim]"
    )


def _legend(row: AnatomyRow) -> Text:
    legend = Text()
    for label, colour in CLASSES:
        legend.append(f"{label} {share(getattr(row, label) / row.tokens)}   ", style=colour)
    return legend


def _targets(result: StudyResult, console: Console) -> None:
    shares = sorted({target.share for target in result.targets})
    table = Table(
        title="Blocks for a share of the ceiling", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("policy")
    for each in shares:
        table.add_column(share(each, 0), justify="right")
    table.add_column("knee", justify="right")
    knees = {knee.policy: knee for knee in result.knees}
    for policy in [row.policy for row in result.policies]:
        found = {t.share: t for t in result.targets if t.policy == policy}
        cells = [_size(found[each].blocks, found[each].gib) for each in shares if each in found]
        knee = knees.get(policy)
        cells.append("–" if knee is None else _size(knee.blocks, knee.gib))
        table.add_row(escape(policy), *cells)
    console.print()
    console.print(table)
    console.print("[dim]exact for lru; for the others the smallest on the grid[/dim]")


def _size(blocks: int | None, size: float | None) -> str:
    return gib(size) if size is not None else count(blocks)


def _worth(result: StudyResult, console: Console) -> None:
    worth = result.worth
    if worth is None:
        console.print("\n[dim]Name --model and --gpu to see what the hits are worth.[/dim]")
        return
    console.print()
    console.print(
        f"Worth under {escape(result.policy)}: {short(worth.prefill_flops_saved)}FLOP of "
        f"{short(worth.prefill_flops)}FLOP of prefill"
        + (
            ""
            if worth.prefill_seconds_saved is None
            else f", {seconds(worth.prefill_seconds_saved)} of one {worth.accelerator}"
        )
        + f"; throughput at most {times(worth.gain_bound or worth.flops_gain_bound)}, with an "
        f"unlimited cache {times(worth.ceiling_gain_bound)}"
    )
