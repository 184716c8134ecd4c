"""A preflight in the terminal: one short table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvsched.evidence.preflight.report import Preflight
from kvsched.report.console import print_lines
from kvsched.report.format import visible

STYLES = {"ok": "green", "warning": "yellow", "blocked": "bold red"}


def print_preflight(result: Preflight, console: Console) -> None:
    """Print each check with its status, reason and next action, and the status over all."""
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "status"):
        table.add_column(heading, no_wrap=True)
    table.add_column("reason → next action", overflow="fold")
    for check in result.checks:
        said = check.reason
        if check.status != "ok" and check.next_action:
            said += f" → {check.next_action}"
        table.add_row(
            Text(visible(check.name)), Text(check.status, STYLES[check.status]), Text(visible(said))
        )
    last = Text(f"{result.status}: {visible(result.decision.reason)}", STYLES[result.status])
    print_lines([table, last], console)
