"""How long commands take to start, against importing what they stand on."""

from __future__ import annotations

import sys
from pathlib import Path

import inputs
from measure import Section, alternate, at_most, process

SIDES = """\
Whole processes, files and compiled code warm. `kvsched --help` against a Python that imports typer
and ends; `kvsched replay` of the conversation trace (LRU, 5,859 blocks) against one that imports
numba and ends."""


def kvsched() -> list[str]:
    """The command as installed beside this Python, else from the source."""
    installed = Path(sys.executable).with_name("kvsched")
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "from kvsched.cli.main import main; main()"]


def run() -> Section:
    """Measure."""
    replay = [
        *kvsched(), "replay", str(inputs.conversation_path()), "--policy", "lru",
        "--capacity-blocks", "5859", "--format", "json",
    ]  # fmt: skip
    helped, typer = alternate(
        process([*kvsched(), "--help"]), process([sys.executable, "-c", "import typer"]), rounds=9
    )
    replayed, numba = alternate(
        process(replay), process([sys.executable, "-c", "import numba"]), rounds=9
    )
    section = Section("Starting", SIDES)
    section.rows = [
        at_most("kvsched --help / import typer", helped, typer, 2.5),
        at_most("kvsched replay / import numba", replayed, numba, 4),
    ]
    return section
