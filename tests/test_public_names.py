"""What `import kvsched` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import kvsched

NAMES = {
    "KVCacheScheduler",
    "Parameter",
    "Policy",
    "RankedPolicy",
    "Setup",
    "Trace",
    "load_trace",
    "lru_curve",
    "policies",
    "ranked_columns",
    "replay",
    "simulate",
    "study",
    "sweep",
}


def run(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def test_exported_names() -> None:
    assert set(kvsched.__all__) == NAMES
    assert set(dir(kvsched)) == NAMES | {"__version__"}
    for name in NAMES:
        assert getattr(kvsched, name).__module__.startswith("kvsched."), name
        assert getattr(kvsched, name).__doc__, name


def test_rooms_do_not_hide_functions_of_the_same_name() -> None:
    assert run(
        "import kvsched.replay.run, kvsched.study.result, kvsched\n"
        "print(callable(kvsched.replay), callable(kvsched.study), kvsched.replay is "
        "kvsched.replay)"
    ) == ("True True True")


def test_importing_loads_nothing_heavy() -> None:
    heavy = run(
        "import kvsched, sys\nprint({'numpy', 'numba', 'plotly', 'rich'} & set(sys.modules))"
    )
    assert heavy == "set()"


def test_the_command_line_loads_typer_alone() -> None:
    code = (
        "import kvsched.cli.app, sys\n"
        "print({'numpy', 'numba', 'plotly', 'rich', 'msgspec'} & set(sys.modules))"
    )
    assert run(code) == "set()"


def test_policies_lists_the_built_in_ones() -> None:
    assert {"lru", "fifo", "lfu", "slru", "chapter", "decay", "opt", "opt-fit"} <= set(
        kvsched.policies()
    )
