"""The README's commands and code run as they stand; both languages have the same."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(sh|python|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(command: str, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ended = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "KVSCHED_REGISTRY": "records.sqlite"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


def test_everything_in_the_readme_runs(tmp_path: Path) -> None:
    ran = 0
    for kind, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        if text.startswith("# my_lru.py"):
            (tmp_path / "my_lru.py").write_text(text, encoding="utf-8")
        elif kind == "yaml":
            (tmp_path / "experiment.yaml").write_text(text, encoding="utf-8")
        elif kind == "python":
            (tmp_path / "snippet.py").write_text(text, encoding="utf-8")
            run(f"{sys.executable} snippet.py", tmp_path)
            ran += 1
        elif not text.startswith("make "):
            run(text, tmp_path)
            ran += 1
    assert ran >= 4
    assert (tmp_path / "kvsched-study" / "report.html").stat().st_size > 100_000
    assert (tmp_path / "evictions.jsonl").stat().st_size > 0
    assert (tmp_path / "records.sqlite").stat().st_size > 0
    assert (tmp_path / "change" / "comparison.html").stat().st_size > 100_000
    assert (tmp_path / "planned" / "comparison.json").stat().st_size > 0


def test_both_languages_show_the_same_commands() -> None:
    pages = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "README.zh.md")]
    english, chinese = (
        [
            re.sub(r"  # .*", "", text)
            for _, text in BLOCK.findall(page)
            if not text.startswith("make ")
        ]
        for page in pages
    )
    assert english == chinese


def test_an_lru_takes_fewer_than_25_lines() -> None:
    blocks = [text for _, text in BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))]
    policy = next(text for text in blocks if text.startswith("# my_lru.py"))
    assert len(policy.splitlines()) < 25
