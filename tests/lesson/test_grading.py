from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsched.foundation.errors import UsageError
from kvsched.lesson import check
from kvsched.lesson.cache_scheduling import LESSON
from kvsched.lesson.exercise import notebook, plain_file
from kvsched.lesson.frame import Lesson, Mistake
from kvsched.lesson.grading import grade
from kvsched.lesson.lessons import find, numbers
from kvsched.lesson.report import Report

WRONG = Path(__file__).parent / "wrong"
SOLUTION = plain_file(LESSON, "en", solved=True)

# What each wrong version must be told: the task, and words that fit.
TOLD = {
    "no_stale_check": (3, "stale record is taken for the entry", "evict:b add:c"),
    "everything_stale": (3, "passed over as stale", "IndexError"),
    "most_valuable_first": (2, "sign turned", "(-1.25, 1, 'a')"),
    "recency_missing": (1, "without the recency term", "expected 1.125, yours is 0.875"),
    "recency_flipped": (1, "recency is subtracted", "expected 1.125, yours is 0.625"),
    "hits_from_0": (4, "starts with hits = 1", "the hits: expected 1, yours is 0"),
    "hits_never_counted": (4, "does not count", "the hits: expected 2, yours is 1"),
    "last_use_never_updated": (4, "leaves entry.last_used as it was", "expected 2, yours is 1"),
    "evicts_everything": (3, "The log: expected", "evict:"),
    "ties_by_priority_only": (5, "by last use, the earlier first, then by prefix", "[('c', "),
    "size_missing": (1, "without the size term", "expected 1.125, yours is 1.25"),
    "ledger_not_reduced": (3, "touch('a', 1), touch('b'", "IndexError"),
    "evicts_one_only": (3, "The log: expected", "evict:a evict:b"),
    "hit_adds_its_bytes": (4, "current_bytes: expected 1, yours is 2", "touch('a', 1)"),
    "snapshot_scores_anew": (5, "snapshot()", "With these entries"),
    "heap_forgets": (2, "no record", "'a'"),
}


def failed(report: Report) -> list[int]:
    return [each.task for each in report.verdicts if each.status == "failed"]


def test_every_wrong_version_has_its_words() -> None:
    assert {path.stem for path in WRONG.glob("*.py")} == {*TOLD, "right"}


def test_a_right_version_passes_however_it_is_written() -> None:
    report = grade(37, WRONG / "right.py", "en")
    assert report.passed, str(report)
    assert str(report).count("passed") == 5


@pytest.mark.parametrize("name", TOLD)
def test_a_wrong_version_is_told_its_task_and_the_smallest_example(name: str) -> None:
    task, *words = TOLD[name]
    report = grade(37, WRONG / f"{name}.py", "en")
    assert failed(report) == [task], str(report)
    assert report.first is not None
    for each in words:
        assert each in report.first.message
    assert f"Task {task}, " in str(report)
    assert report.first.message.count("touch(") <= 4


MISTAKES = [(find(number), each) for number in numbers() for each in find(number).mistakes]


@pytest.mark.parametrize(
    ("lesson", "mistake"), MISTAKES, ids=[f"{each.number} {it.name}" for each, it in MISTAKES]
)
def test_a_mistake_that_is_known_is_named(lesson: Lesson, mistake: Mistake) -> None:
    text = plain_file(lesson, "en", solved=True)
    assert text.count(mistake.old) == 1
    namespace: dict[str, object] = {"__name__": __name__}
    exec(compile(text.replace(mistake.old, mistake.new), "wrong.py", "exec"), namespace)  # noqa: S102
    report = check(lesson.number, namespace, language="en")
    assert report is not None
    assert failed(report) == [mistake.task], str(report)
    assert str(report).endswith(mistake.hint.en)
    assert str(check(lesson.number, namespace, mistake.task, "zh")).endswith(mistake.hint.zh)


def test_every_task_has_mistakes() -> None:
    for number in numbers():
        lesson = find(number)
        assert {each.task for each in lesson.mistakes} == {each.number for each in lesson.tasks}
        assert [each.number for each in lesson.tasks] == list(range(1, len(lesson.tasks) + 1))


def test_the_same_file_gets_the_same_words() -> None:
    one, other = (str(grade(37, WRONG / "no_stale_check.py", "zh")) for _ in range(2))
    assert one == other
    assert "任务 3" in one
    assert "应为" in one


CODE = {
    "endless loop": (
        "def _score(self, hits, size, last_used):\n        while True:\n            pass",
        "does not return within 20,000 lines",
    ),
    "a loop in C": (
        "def _score(self, hits, size, last_used):\n        return sum(iter(int, 1))",
        "does not end within 1 s",
    ),
    "an exception": ("def _score(self, *_):\n        return 1 / 0", "ZeroDivisionError: division"),
    "the end": ("def _score(self, *_):\n        import sys; sys.exit(3)", "sys.exit"),
    "an abrupt end": (
        "def _score(self, *_):\n        import os; os._exit(3)",
        "ends the process (exit code 3)",
    ),
    "no number": ("def _score(self, *_):\n        return 'much'", "yours is 'much'"),
    "nothing": ("def _score(self, *_):\n        pass", "yours is None"),
    "all of memory": (
        "def _score(self, *_):\n        return len(bytearray(1 << 40))",
        "MemoryError",
    ),
    "a recursion": ("def _score(self, *a):\n        return self._score(*a)", "RecursionError"),
    "an input": ("def _score(self, *_):\n        return input()", "EOFError"),
    "too few arguments": ("def _score(self):\n        return 1", "TypeError"),
    "a gap": ("def _score(self, *_):\n        raise NotImplementedError", "fill it in"),
}


@pytest.mark.parametrize("name", CODE)
def test_code_that_misbehaves_gets_a_line_and_the_rest_is_checked(
    name: str, tmp_path: Path
) -> None:
    code, words = CODE[name]
    file = tmp_path / "mine.py"
    file.write_text(f"{SOLUTION}\n    {code}\n")
    report = grade(37, file, "en", 1.0 if name == "a loop in C" else 20.0)
    assert report.first is not None
    assert report.first.task == 1
    assert words in report.first.message
    assert [each.status for each in report.verdicts[1:]] == ["passed"] * 4, str(report)
    assert "Traceback" not in str(report)


FILES = {
    "syntax": ("class KVCacheSchedulerSim\n    pass\n", "SyntaxError: expected ':' (line 1: class"),
    "indent": ("class A:\npass\n", "IndentationError"),
    "import": ("import no_such_module\n", "No module named 'no_such_module' (line 1"),
    "endless": ("while True:\n    pass\n", "does not return within"),
    "swallows": (
        "while True:\n    try:\n        x = 1\n    except BaseException:\n        pass\n",
        "does not end within 1 s",
    ),
    "exit": ("raise SystemExit\n", "sys.exit"),
    "abrupt": ("import os\nos._exit(0)\n", "ends the process"),
    "latin": (b"# caf\xe9\n", "not UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_does_not_run_says_so(name: str, tmp_path: Path) -> None:
    text, words = FILES[name]
    file = tmp_path / "mine.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = grade(37, file, "en", 1.0 if name == "swallows" else 20.0)
    assert words in report.fault
    assert [each.status for each in report.verdicts] == ["not reached"] * 5
    assert not report.passed
    assert "Traceback" not in str(report)


def test_a_file_without_the_class_or_a_method_says_which(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    assert "no class KVCacheSchedulerSim" in str(grade(37, file, "en"))
    file.write_text(SOLUTION.replace("def snapshot", "def snap"))
    assert "no method snapshot" in str(grade(37, file, "en"))


def test_printing_does_not_disturb_and_is_said(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOLUTION + 'print("hello\\nthere")\nimport os; os.write(1, b"}{")\n')
    report = grade(37, file, "en")
    assert report.passed
    assert "'hello'" in str(report)


def test_tasks_right_alone_and_wrong_together(tmp_path: Path) -> None:
    # The learner's own record of sizes is filled in one method, and used in another.
    text = SOLUTION.replace("self.log = []", "self.log = []\n        self.own = 0").replace(
        "self.time += 1\n", "self.time += 1\n        self.own = 1\n"
    )
    text = text.replace("recency = 0.5 /", "recency = (0.5 + self.own) /")
    file = tmp_path / "mine.py"
    file.write_text(text)
    report = grade(37, file, "en")
    assert report.first is not None
    assert report.first.task == 0
    assert "all together" in str(report)


def test_a_notebook_is_graded_cell_by_cell(tmp_path: Path) -> None:
    book = json.loads(notebook(LESSON, "en", solved=True))
    book["cells"].insert(2, {"cell_type": "code", "source": ["%matplotlib inline\n", "1 / 0"]})
    file = tmp_path / "mine.ipynb"
    file.write_text(json.dumps(book))
    report = grade(37, file, "en")
    assert report.passed, str(report)
    assert "Code cell 2 raises ZeroDivisionError" in str(report)


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', "not json", '{"cells": [1]}'])
def test_what_is_no_notebook_says_so(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.ipynb"
    file.write_text(text)
    assert "no notebook" in grade(37, file, "en").fault


def test_a_file_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        grade(37, tmp_path / "none.py")
    with pytest.raises(UsageError, match="time-limit"):
        grade(37, WRONG / "right.py", "en", float("nan"))
    with pytest.raises(UsageError, match="no lesson 38"):
        grade(38, WRONG / "right.py")
    with pytest.raises(UsageError, match="no task 6"):
        check(37, {}, task=6)
