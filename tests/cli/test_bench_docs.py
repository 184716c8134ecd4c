"""The commands of docs/bench.md run as they stand, in their order, against the fake engine."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from bench_command import STUB, bench
from fake_engine import fake_engine

from kvsched.cli.bench_options import RuleChoice

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    kvsched bench (.*)$", PAGE, re.MULTILINE)
SMALL = ["--groups", "2", "--requests-per-group", "3", "--prefix-tokens", "32"]


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(STUB))
    rows = [
        {"timestamp": 10 * at, "input_length": 1000, "output_length": 9, "hash_ids": [1, at + 2]}
        for at in range(4)
    ]
    Path("traffic.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(COMMANDS) == 5
    with fake_engine() as engine:
        for command in COMMANDS:
            words = shlex.split(command.replace("http://127.0.0.1:8000", engine.url))
            if words[0] in ("prefix-cache", "scheduler"):
                words[1:1] = SMALL
            bench(*words)
    assert Path("compared.html").exists()
    assert Path("seqs", "max-num-seqs-16", "concurrency-4", "result.json").exists()


def test_the_thresholds_are_the_codes() -> None:
    told = dict(re.findall(r"`--((?:min|max)-[a-z-]+)` \(([\d.]+)\)", PAGE))
    assert told.pop("max-error-share") == "0"
    assert len(told) == 8
    for name, value in told.items():
        assert getattr(RuleChoice, name.replace("-", "_")) == float(value)
