"""A study in the terminal: short tables that fit 80 columns."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvsched.report.console import for_any_encoding
from kvsched.report.format import (
    DASH,
    block_tokens,
    count,
    gib,
    name,
    seconds,
    share,
    short,
    times,
    visible,
)
from kvsched.study.result import AnatomyRow, StudyResult

CLASSES = (
    ("hit", "bright_blue", "█"),
    ("regret", "red", "▓"),
    ("capacity", "yellow", "▒"),
    ("compulsory", "bright_black", "░"),
    ("tail", "bright_black", "·"),
)
BAR = 72


def print_study(result: StudyResult, console: Console) -> None:
    """Print the workload, the policies, the anatomy, the targets, the worth and the advice.

    Where the console's encoding is no Unicode, signs become ASCII and other letters "?".
    """
    with for_any_encoding(console):
        _print(result, console)


def _print(result: StudyResult, console: Console) -> None:
    for part in (_workload, _policies, _served, _anatomy, _targets, _worth):
        lines = part(result)
        for line in lines:
            console.print(line)
        if lines or part is not _served:
            console.print()
    for sentence in result.recommendation.sentences:
        console.print(Text(visible(sentence), style="bold"))
    for warning in result.warnings:
        console.print(Text(f"Warning: {visible(warning)}", style="yellow"))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _workload(result: StudyResult) -> list[RenderableType]:
    trace, capacity, ceiling = result.trace, result.capacity, result.ceiling
    size = "" if capacity.gib is None else f" ({gib(capacity.gib)})"
    own = next(row for row in result.policies if row.policy == result.policy)
    fit = next(row for row in result.policies if row.policy == "opt-fit")
    lines: list[RenderableType] = [
        Text(name(trace.source), style="bold"),
        f"{count(trace.requests)} requests in {seconds(trace.duration_s)}, "
        f"{short(trace.prompt_tokens)} prompt tokens",
        f"{count(trace.distinct_blocks)} distinct blocks of {block_tokens(trace.block_size)}, "
        f"{share(result.seen_once.share)} of them seen once",
        f"Ceiling: [bold]{share(ceiling.token_share)}[/bold] of the prompt tokens could be reused",
        f"Capacity: {count(capacity.blocks)} {capacity.unit}{size}",
        f"{escape(name(result.policy))} hits [bold]{share(own.token_share)}[/bold], "
        f"and the best an engine's pool could hit is [bold]{share(fit.token_share)}[/bold]",
    ]
    if result.sample is not None and result.sample.one_in > 1:
        most = max((each.expected_error for each in result.sample.errors), default=None)
        lines.append(
            f"[bold]Estimates[/bold] from a sample: one node in {count(result.sample.one_in)}, "
            f"hit ratios ± {share(most, 2)} (one standard error) expected"
        )
    steps = [*capacity.derivation]
    if result.config.get("engine", "generic") != "generic":
        steps += [f"engine {result.definitions['engine']}"]
        steps += [f"generated tokens cached: {result.definitions['generated_tokens_cached']}"]
    return [*lines, *(Text(f"  {visible(step)}", style="dim") for step in steps)]


def _policies(result: StudyResult) -> list[RenderableType]:
    table = _table("Policies at this capacity")
    table.add_column("policy", overflow="fold")
    worth = any(row.prefill_seconds_saved is not None for row in result.policies)
    for heading in ("hit", "gap closed", "evictions", *(("prefill saved",) if worth else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("of the ceiling", no_wrap=True)
    most = result.ceiling.token_share or 1.0
    for row in result.policies:
        label = escape(name(row.policy)) + (" [dim](bound)[/dim]" if row.looks_ahead else "")
        filled = min(16, round(16 * (row.token_share or 0.0) / most))
        table.add_row(
            f"[bold]{label}[/bold]" if row.policy == result.policy else label,
            share(row.token_share),
            share(row.gap_closed),
            count(row.evictions),
            *((seconds(row.prefill_seconds_saved),) if worth else ()),
            f"[bright_blue]{'█' * filled}[/bright_blue][dim]{'·' * (16 - filled)}[/dim]",
        )
    said = [*_alike(result), *_tuned(result)]
    return [table, *(f"[dim]{escape(each)}[/dim]" for each in said)]


def _served(result: StudyResult) -> list[RenderableType]:
    """What latency the hits come to, where it was simulated."""
    served = result.served
    if served is None:
        return []
    table = _table("What requests see, served by a simulated engine")
    table.add_column("policy", overflow="fold")
    for heading in ("hit", "TTFT p50", "TTFT p99", "requests/s", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in served.rows:
        label = escape(name(row.policy))
        table.add_row(
            f"[bold]{label}[/bold]" if row.policy == result.policy else label,
            share(row.hit_ratio),
            seconds(row.ttft_p50_s),
            seconds(row.ttft_p99_s),
            short(row.requests_s),
            short(row.output_tokens_s),
            "overload" if row.overloaded else "",
        )
    said = [
        f"vLLM's scheduler, at most {count(served.max_num_seqs)} requests and "
        f"{count(served.max_num_batched_tokens)} tokens a step; {served.step_time}"
    ]
    if any(row.overloaded for row in served.rows):
        said.append("overload: the queue grows without end, and TTFT is how long the trace is")
    said += [f"{name(row.policy)}: {row.fault}" for row in served.rows if row.fault is not None]
    return [table, *(f"[dim]{escape(visible(each))}[/dim]" for each in said)]


def _tuned(result: StudyResult) -> list[str]:
    """Say what was chosen where a parameter is `auto`, and for how much of the trace."""
    lines = []
    for row in result.policies:
        if row.tuned is not None:
            chosen = [f"{key} {value:g}" for key, value in row.tuned.items() if "since" not in key]
            since = int(row.tuned["since_request"])
            left = result.trace.requests - since
            lines.append(f"{name(row.policy)}: {', '.join(chosen)}, for the last {left:,} requests")
    return lines


def _alike(result: StudyResult) -> list[str]:
    """Say which policies hit and evict the same here: equal rows are no fault."""
    same: dict[tuple[int, int], list[str]] = {}
    for row in result.policies:
        same.setdefault((row.hit_tokens, row.evictions), []).append(name(row.policy))
    groups = [" = ".join(names) for names in same.values() if len(names) > 1]
    return [f"the same hits and evictions on this trace: {'; '.join(groups)}"] if groups else []


def _widths(row: AnatomyRow) -> list[int]:
    """Cells of a bar for each class, `BAR` in all: the largest remainders are rounded up."""
    exact = [BAR * getattr(row, label) / row.tokens for label, _, _ in CLASSES]
    found = [int(each) for each in exact]
    by_rest = sorted(range(len(exact)), key=lambda at: (found[at] - exact[at], at))
    for at in by_rest[: BAR - sum(found)]:
        found[at] += 1
    return found


def _anatomy(result: StudyResult) -> list[RenderableType]:
    row = result.anatomy.overall
    if not row.tokens:
        return []
    bar, legend = Text(), Text()
    for (label, colour, sign), width in zip(CLASSES, _widths(row), strict=True):
        bar.append(sign * width, style=colour)
        legend.append(f"{sign} ", style=colour)
        legend.append(f"{label} {share(getattr(row, label) / row.tokens)}  ")
    return [
        Text(f"Where the prompt tokens went under {name(result.anatomy.policy)}", style="bold"),
        bar,
        legend[:-2],
        "[dim]regret: opt-fit would have hit it; capacity: opt-fit misses it too;[/dim]",
        f"[dim]beside them luck {share(row.luck / row.tokens)}, "
        f"bypass {share(result.anatomy.bypass / row.tokens)}[/dim]",
    ]


def _targets(result: StudyResult) -> list[RenderableType]:
    shares = sorted({target.share for target in result.targets})
    table = _table("Capacity for a share of the ceiling")
    table.add_column("policy")
    for heading in (*(share(each, 0) for each in shares), "knee"):
        table.add_column(heading, justify="right", no_wrap=True)
    sizes = {
        (t.policy, t.share): ("" if t.exact or t.blocks is None else "≤") + _size(t.blocks, t.gib)
        for t in result.targets
    }
    exact = {target.policy for target in result.targets if target.exact}
    knees = {
        knee.policy: ("" if knee.policy in exact or knee.blocks is None else "≈")
        + _size(knee.blocks, knee.gib)
        for knee in result.knees
    }
    for row in result.policies:
        cells = [sizes.get((row.policy, each), DASH) for each in shares]
        table.add_row(escape(name(row.policy)), *cells, knees.get(row.policy, DASH))
    others = "exact for lru; for the others on the grid" if exact else "on the grid"
    if result.sample is not None and result.sample.one_in > 1:
        others = "estimates from a sample; on the grid"
    return [table, f"[dim]{others}: smallest (≤), knee (≈)[/dim]"]


def _size(blocks: int | None, size: float | None) -> str:
    return gib(size) if size is not None else count(blocks)


def _worth(result: StudyResult) -> list[RenderableType]:
    worth = result.worth
    if worth is None:
        return ["[dim]Name --model and --gpu to see what the hits are worth.[/dim]"]
    lines = [
        f"{short(worth.prefill_flops_saved)}FLOP of {short(worth.prefill_flops)}FLOP of prefill "
        "saved"
    ]
    if worth.prefill_seconds_saved is not None:
        lines[0] += (
            f", {seconds(worth.prefill_seconds_saved)} of one {visible(str(worth.accelerator))}"
        )
    gain = worth.flops_gain_bound if worth.gain_bound is None else worth.gain_bound
    lines.append(
        f"throughput at most {times(gain)} that of no cache, "
        f"with an unlimited cache {times(worth.ceiling_gain_bound)}"
    )
    heading = Text(f"What {name(result.policy)}'s hits are worth", style="bold")
    return [heading, *map(Text, lines)]
