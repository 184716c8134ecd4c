"""Lesson 37: which prefixes a KV cache keeps."""

from __future__ import annotations

from kvsched.lesson.cache_scheduling import checks
from kvsched.lesson.cache_scheduling.mistakes import MISTAKES
from kvsched.lesson.frame import Lesson, Task, Text

LESSON = Lesson(
    number=37,
    title=Text("KV cache scheduling", "KV Cache 调度"),
    package=__name__,
    defines=(checks.CLASS,),
    tasks=(
        Task(1, "score", "_score", Text("the score", "评分"), checks.check_score),
        Task(2, "refresh", "_refresh_queue", Text("the refresh", "刷新队列"), checks.check_refresh),
        Task(
            3,
            "stale check",
            "_evict_until_fit",
            Text("the stale check, and who leaves", "过期检查与驱逐"),
            checks.check_evict,
        ),
        Task(
            4,
            "new entry",
            "touch",
            Text("a hit and a new entry", "命中与新条目"),
            checks.check_touch,
        ),
        Task(5, "snapshot", "snapshot", Text("the snapshot", "快照"), checks.check_snapshot),
    ),
    mistakes=MISTAKES,
    together=checks.check_together,
)
