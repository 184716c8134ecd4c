"""The process in which a learner's code runs: ``python -m kvsched.lesson.child``.

A job comes in JSON on stdin; lines of JSON go to the file that the job names, each as soon as it is
known, so that the parent knows how far a process came that did not end.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from kvsched.lesson import grading
from kvsched.lesson.frame import Text, Wrong
from kvsched.lesson.lessons import find
from kvsched.lesson.load import load

MEMORY_BYTES = 2 << 30


class _Printed(io.TextIOBase):
    """Takes what a learner prints, and keeps the first line."""

    def __init__(self) -> None:
        self.first = ""
        self.seen = False

    def write(self, text: str) -> int:
        if not self.seen and text.strip():
            self.seen, self.first = True, text.strip().splitlines()[0][:80]
        return len(text)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on every system
        return
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    least = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (least, most))


def main() -> None:
    """Do the job on stdin."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    language = job["language"]
    lesson = find(job["lesson"])
    _limit_memory()
    printed = _Printed()
    sys.stdout = sys.stderr = printed
    with Path(job["answers"]).open("a", encoding="utf-8") as answers:

        def tell(**values: Any) -> None:
            answers.write(json.dumps(values) + "\n")
            answers.flush()

        grading.off()
        try:
            namespace, faults = load(Path(job["file"]))
            tell(loaded=[fault.say(language) for fault in faults])
        except Wrong as wrong:
            tell(fault=wrong.message.say(language))
            namespace = {}
            job["tasks"] = []
        for number in job["tasks"]:
            tell(begun=number)
            verdict = grading.verdict(lesson, number, namespace, language)
            tell(task=number, status=verdict.status, message=verdict.message)
        if printed.seen:
            said = Text(
                f"(Your code prints, first: {printed.first!r}. The check does not mind.)",
                f"（你的代码有输出，第一行：{printed.first!r}。检查不受影响。）",
            )
            tell(printed=said.say(language))
    # Threads that a learner left behind are not waited for.
    os._exit(0)


if __name__ == "__main__":
    main()
