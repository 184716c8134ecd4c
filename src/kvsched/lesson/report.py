"""What a check found: a verdict a task, and how it is told."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from kvsched.lesson.frame import Text

STATUS = {
    "passed": Text("passed", "通过"),
    "failed": Text("failed", "未通过"),
    "open": Text("not filled in yet", "尚未填写"),
    "not reached": Text("not reached", "未检查"),
}
TOGETHER = Text("all together", "合在一起")


@dataclass(frozen=True)
class Verdict:
    """What became of one task (0: all of them together). ``status`` is a key of `STATUS`."""

    task: int
    name: str
    status: str
    message: str = ""


@dataclass(frozen=True)
class Report:
    """The verdicts of one check, in the order of the tasks; it prints as the learner reads it."""

    lesson: int
    file: str
    language: str
    verdicts: tuple[Verdict, ...]
    fault: str = ""
    """Why nothing could be checked, where the file itself is the fault."""
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every task passed."""
        return not self.fault and all(each.status == "passed" for each in self.verdicts)

    @property
    def first(self) -> Verdict | None:
        """The first task that failed, else the first not filled in; None where all passed."""
        left = [each for each in self.verdicts if each.status != "passed"]
        return next((each for each in left if each.status == "failed"), left[0] if left else None)

    def __str__(self) -> str:
        say = self.language
        width = max((len(each.name) for each in self.verdicts), default=0)
        lines = [
            f"{Text('Lesson', '第').say(say)} {self.lesson}{Text('', ' 课').say(say)}"
            + (f": {self.file}" if self.file else "")
        ]
        for each in self.verdicts:
            number = each.task or "+"
            lines.append(f"  {number} {each.name:{width}}  {STATUS[each.status].say(say)}")
        if self.fault:
            lines += ["", self.fault]
        elif (first := self.first) and first.message:
            where = (
                Text(f"Task {first.task}, ", f"任务 {first.task}，").say(say) if first.task else ""
            )
            lines += ["", f"{where}{first.name}: {first.message}"]
        if self.passed:
            lines += ["", Text("All tasks pass.", "全部通过。").say(say)]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
