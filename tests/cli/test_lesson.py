from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def lesson(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LANG": "C.UTF-8", "LC_ALL": "", "PYTHONUTF8": "1", **more}
    return subprocess.run(
        [sys.executable, "-m", "kvsched", "lesson", *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment,
        check=False,
    )


def test_a_learner_goes_from_start_to_solution(tmp_path: Path) -> None:
    assert "37  KV cache scheduling" in lesson("list", cwd=tmp_path).stdout
    started = lesson("start", "37", cwd=tmp_path)
    assert started.returncode == 0
    assert "lesson-37/exercise.py" in started.stdout
    checked = lesson("check", "37", cwd=tmp_path)
    assert checked.returncode == 1
    assert checked.stdout.count("not filled in yet") == 5
    assert lesson("solution", "37", "mine", cwd=tmp_path).returncode == 0
    # Only the notebook is filled in: it is the one to check.
    (tmp_path / "mine/solution.ipynb").rename(tmp_path / "lesson-37/exercise.ipynb")
    checked = lesson("check", "37", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    assert "exercise.ipynb" in checked.stdout
    assert "All tasks pass." in checked.stdout


def test_nothing_is_written_over(tmp_path: Path) -> None:
    assert lesson("start", "37", "here", cwd=tmp_path).returncode == 0
    file = tmp_path / "here/exercise.py"
    file.write_text("mine")
    (tmp_path / "here/exercise.ipynb").unlink()
    again = lesson("start", "37", "here", cwd=tmp_path)
    assert again.returncode == 2
    assert "is there already; --force writes over it" in again.stderr
    assert file.read_text() == "mine"
    assert not (tmp_path / "here/exercise.ipynb").exists()
    assert lesson("start", "37", "here", "--force", cwd=tmp_path).returncode == 0
    assert file.read_text() != "mine"


def test_a_wrong_version_in_json(tmp_path: Path) -> None:
    text = lesson("solution", "37", cwd=tmp_path).stdout
    (tmp_path / "a.py").write_text(text.replace("hits=1", "hits=0"), encoding="utf-8")
    ran = lesson("check", "37", "a.py", "--format", "json", cwd=tmp_path)
    assert ran.returncode == 1
    answer = json.loads(ran.stdout)
    assert [each["status"] for each in answer["tasks"]] == [*["passed"] * 3, "failed", "passed"]
    assert not answer["passed"]
    assert "starts with hits = 1" in answer["tasks"][3]["message"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "37"), "has no exercise.py"),
        (("check", "37", "none.py"), "cannot be read"),
        (("check", "38"), "there is no lesson 38"),
        (("start", "38"), "there is no lesson 38"),
        (("solution", "1"), "there is no lesson 1"),
        (("flaws", "11"), "there is no flaw 11"),
        (("list", "--language", "fr"), "the lessons are in en and zh"),
    ],
)
def test_wrong_use_is_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    ran = lesson(*arguments, cwd=tmp_path)
    assert ran.returncode == 2
    assert words in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_locale_and_the_option_choose_the_language(tmp_path: Path) -> None:
    assert "调度" in lesson("list", cwd=tmp_path, LANG="zh_CN.UTF-8").stdout
    english = lesson("list", "--language", "en", cwd=tmp_path, LANG="zh_CN.UTF-8").stdout
    assert "调度" not in english
    assert lesson("start", "37", "--language", "zh", cwd=tmp_path).returncode == 0
    assert "任务 1" in (tmp_path / "lesson-37/exercise.py").read_text(encoding="utf-8")


def test_the_flaws_are_shown_with_their_code(tmp_path: Path) -> None:
    every = lesson("flaws", cwd=tmp_path)
    assert every.returncode == 0
    assert every.stdout.count("Instead: ") == 10
    assert every.stdout == lesson("flaws", cwd=tmp_path).stdout
    one = lesson("flaws", "7", "--language", "zh", cwd=tmp_path).stdout
    assert "def shared()" in one
    assert "发生了什么" in one
