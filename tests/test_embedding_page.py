"""The page for embedders: its code runs as it stands, and what it shows of the example is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = "# examples/tiny_engine.py\n"


def blocks() -> list[str]:
    return BLOCK.findall((ROOT / "docs" / "embedding.md").read_text(encoding="utf-8"))


def test_its_code_runs(tmp_path: Path) -> None:
    code = [text for text in blocks() if not text.startswith(EXAMPLE)]
    assert len(code) >= 9
    script = tmp_path / "page.py"
    script.write_text("\n".join(code), encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_what_it_shows_of_the_example_is_there_in_this_order() -> None:
    example = (ROOT / "examples" / "tiny_engine.py").read_text(encoding="utf-8")
    shown = [text.removeprefix(EXAMPLE) for text in blocks() if text.startswith(EXAMPLE)]
    assert len(shown) >= 6
    places = [example.find(text) for text in shown]
    assert all(place >= 0 for place in places)
    assert places == sorted(places)
