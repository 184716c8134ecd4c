"""Checking a learner's work: in this process for a notebook, in one of its own for a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvsched.foundation.errors import KvschedError, UsageError
from kvsched.lesson.frame import Lesson, Open, Text, Wrong, choose_language
from kvsched.lesson.lessons import find
from kvsched.lesson.report import TOGETHER, Report, Verdict

TIME_LIMIT_S = 10.0
POLL_S = 0.1

_state = {"on": True}


def off() -> None:
    """Let `check` do nothing: a notebook that is graded must not grade itself."""
    _state["on"] = False


def check(
    number: int, namespace: Mapping[str, Any], task: int | None = None, language: str | None = None
) -> Report | None:
    """Check what a notebook has defined so far: ``check(37, globals())``, or one task of it.

    Runs in this process; a call that does not end is stopped after 20,000 lines. Returns a report
    that shows itself; None while `kvsched lesson check` runs the notebook. Raises UsageError for a
    lesson or a task that there is not.
    """
    lesson = find(number)
    language = choose_language(language)
    if not _state["on"]:
        return None
    numbers = [each.number for each in lesson.tasks]
    if task is not None and task not in numbers:
        raise UsageError(f"lesson {number} has no task {task}; its tasks are 1 to {numbers[-1]}")
    chosen = numbers if task is None else [task]
    verdicts = [verdict(lesson, each, namespace, language) for each in chosen]
    if task is None and lesson.together and all(each.status == "passed" for each in verdicts):
        together = verdict(lesson, 0, namespace, language)
        verdicts += [together] if together.status != "passed" else []
    return Report(number, "", language, tuple(verdicts))


def verdict(lesson: Lesson, number: int, namespace: Mapping[str, Any], language: str) -> Verdict:
    """Check task ``number`` (0: all together) of ``namespace``; never raises."""
    name = _name(lesson, number, language)
    task = next((each for each in lesson.tasks if each.number == number), None)
    act = task.check if task else lesson.together
    try:
        if act:
            act(namespace)
    except Open:
        filled = Text(
            f"{task.fills if task else ''} still raises NotImplementedError: fill it in.",
            f"{task.fills if task else ''} 仍抛出 NotImplementedError：请补全。",
        )
        return Verdict(number, name, "open", filled.say(language))
    except Wrong as wrong:
        return Verdict(number, name, "failed", wrong.message.say(language))
    except BaseException as error:  # noqa: BLE001  # the learner's objects may do anything
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        said = Text(
            f"The result cannot be looked at ({what}). Are the fields as they were given?",
            f"无法查看结果（{what}）。字段还和给出的一样吗？",
        )
        return Verdict(number, name, "failed", said.say(language))
    return Verdict(number, name, "passed")


def _name(lesson: Lesson, number: int, language: str) -> str:
    for task in lesson.tasks:
        if task.number == number:
            return task.fills
    return TOGETHER.say(language)


def grade(
    number: int, path: Path, language: str | None = None, time_limit_s: float = TIME_LIMIT_S
) -> Report:
    """Check the file or notebook at ``path`` in a process of its own.

    A process gets ``time_limit_s`` seconds a task; where it does not end, that task has failed, and
    another process goes on with the next. Raises UsageError where the file cannot be read, and
    KvschedError where no process can be started.
    """
    lesson = find(number)
    language = choose_language(language)
    if not 0 < time_limit_s < float("inf"):
        raise UsageError(f"--time-limit must be a number of seconds above 0, not {time_limit_s}")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    left = [task.number for task in lesson.tasks]
    found: dict[int, Verdict] = {}
    fault, notes = "", []
    while left and not fault:
        answers, ended = _ask(number, path, left, language, time_limit_s)
        told, fault, said = _heard(lesson, answers, ended, language)
        found |= told
        notes = said
        left = [each for each in left if each not in found]
    if lesson.together and not fault and all(each.status == "passed" for each in found.values()):
        answers, ended = _ask(number, path, [0], language, time_limit_s)
        told, fault, _ = _heard(lesson, answers, ended, language)
        found |= {key: value for key, value in told.items() if value.status != "passed"}
    verdicts = [
        found.get(task.number, Verdict(task.number, task.fills, "not reached"))
        for task in lesson.tasks
    ]
    verdicts += [found[0]] if 0 in found else []
    return Report(number, str(path), language, tuple(verdicts), fault, tuple(notes))


def _heard(
    lesson: Lesson, answers: Sequence[dict[str, Any]], ended: Text, language: str
) -> tuple[dict[int, Verdict], str, list[str]]:
    """Return the verdicts in ``answers``, the fault of the whole file, and what is to be noted."""
    found: dict[int, Verdict] = {}
    fault = ""
    notes: list[str] = []
    loaded = False
    begun: int | None = None
    for answer in answers:
        fault = answer.get("fault", fault)
        loaded = loaded or "loaded" in answer
        begun = answer.get("begun", begun)
        if answer.get("loaded"):
            notes += ["", *answer["loaded"]]
        if "printed" in answer:
            notes += ["", answer["printed"]]
        if "task" in answer:
            key = answer["task"]
            name = _name(lesson, key, language)
            found[key] = Verdict(key, name, answer["status"], answer["message"])
    if not fault and not loaded:
        fault = (Text("The file", "文件") + ended).say(language)
    elif begun is not None and begun not in found:
        said = Text("The code", "代码") + ended
        found[begun] = Verdict(begun, _name(lesson, begun, language), "failed", said.say(language))
    return found, fault, notes


def _ask(
    number: int, path: Path, tasks: list[int], language: str, time_limit_s: float
) -> tuple[list[dict[str, Any]], Text]:
    """Run a child; return its answers, and how it ended."""
    with tempfile.TemporaryDirectory(prefix="kvsched-lesson-") as folder:
        answers = Path(folder, "answers")
        answers.touch()
        job = {
            "lesson": number,
            "file": str(path.resolve()),
            "language": language,
            "tasks": tasks,
            "answers": str(answers),
        }
        ended = _run(json.dumps(job) + "\n", answers, time_limit_s)
        lines = answers.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")], ended


def _run(job: str, answers: Path, time_limit_s: float) -> Text:
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        child = subprocess.Popen(  # this Python, and a module of ours
            [sys.executable, "-P", "-m", "kvsched.lesson.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
    except OSError as error:
        raise KvschedError(f"no process can be started for the check ({error})") from error
    try:
        with contextlib.suppress(OSError):
            child.communicate(job, timeout=POLL_S)
    except subprocess.TimeoutExpired:
        if not _ends(child, answers, time_limit_s):
            return Text(
                f" does not end within {time_limit_s:g} s: a loop without an end?",
                f"在 {time_limit_s:g} 秒内没有结束：是不是有一个不会结束的循环？",
            )
    finally:
        _end(child)
    return Text(
        f" ends the process (exit code {child.returncode}).",
        f"结束了进程（退出码 {child.returncode}）。",
    )


def _ends(child: subprocess.Popen[str], answers: Path, time_limit_s: float) -> bool:
    """Wait for the child; return False when it has told nothing new for ``time_limit_s``."""
    told, since = 0, time.monotonic()
    while time.monotonic() - since < time_limit_s:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLL_S)
            return True
        if (size := answers.stat().st_size) != told:
            told, since = size, time.monotonic()
    return False


def _end(child: subprocess.Popen[str]) -> None:
    """End the child, and what it may have started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()
