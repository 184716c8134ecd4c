"""Wrong versions of lesson 37 that are known, as edits of its solution."""

from __future__ import annotations

from kvsched.lesson.frame import Mistake, Text

_SCORE = "return hits + recency - penalty"
_STALE = "if entry is None or (priority, last_used) != (entry.priority, entry.last_used):"
_PUSH = "heapq.heappush(self.queue, record)"
_SCORED = "entry.priority = self._score(entry.hits, entry.bytes, entry.last_used)\n"
_RECORD = "        record = (entry.priority, "
_NEW = "Entry(prefix, bytes_, hits=1, last_used=self.time)"
_KEY = "key=lambda e: (-e.priority, e.last_used, e.prefix)"
_HIT = """\
            entry.hits += 1
            entry.last_used = self.time
            self._refresh_queue(prefix)
"""
_ROOM = "self.current_bytes + needed > self.capacity_bytes"

MISTAKES = (
    Mistake(
        "recency missing",
        1,
        _SCORE,
        "return hits - penalty",
        Text(
            "That is what comes without the recency term, 0.5 / (1 + time since the last use).",
            "这正是缺少“最近使用”一项 0.5 / (1 + 距最近使用的时间) 时的结果。",
        ),
    ),
    Mistake(
        "recency sign flipped",
        1,
        _SCORE,
        "return hits - recency - penalty",
        Text(
            "That is what comes when recency is subtracted: a recent use should raise the score.",
            "这正是减去“最近使用”一项时的结果：最近使用应当提高分数。",
        ),
    ),
    Mistake(
        "size term missing",
        1,
        _SCORE,
        "return hits + recency",
        Text(
            "That is what comes without the size term, 0.25 * size / capacity.",
            "这正是缺少“大小”一项 0.25 * 大小 / 容量 时的结果。",
        ),
    ),
    Mistake(
        "size sign flipped",
        1,
        _SCORE,
        "return hits + recency + penalty",
        Text(
            "That is what comes when the size is added: a large entry should lose score.",
            "这正是加上“大小”一项时的结果：大的条目应当扣分。",
        ),
    ),
    Mistake(
        "size not over the capacity",
        1,
        "0.25 * size / self.capacity_bytes",
        "0.25 * size",
        Text(
            "That is what comes when the size is not divided by the capacity.",
            "这正是大小没有除以容量时的结果。",
        ),
    ),
    Mistake(
        "hits missing",
        1,
        _SCORE,
        "return recency - penalty",
        Text("That is what comes without the hits.", "这正是缺少命中次数时的结果。"),
    ),
    Mistake(
        "most valuable first",
        2,
        _RECORD,
        _RECORD.replace("entry", "-entry"),
        Text(
            "The priority goes into the record with its sign turned: heapq gives the smallest "
            "first, so the most valuable entry would leave first.",
            "记录里的优先级被取了负：heapq 先弹出最小的，于是最有价值的条目会先离开。",
        ),
    ),
    Mistake(
        "score not kept",
        2,
        _SCORED + _RECORD,
        _SCORED.replace("entry.priority", "score", 1) + _RECORD.replace("entry.priority", "score"),
        Text(
            "The score is pushed, but not kept in entry.priority: every record looks stale then.",
            "分数压入了堆，却没有存入 entry.priority：这样每条记录看上去都过期了。",
        ),
    ),
    Mistake(
        "nothing pushed",
        2,
        _PUSH,
        "pass",
        Text("No record is pushed on self.queue.", "没有向 self.queue 压入记录。"),
    ),
    Mistake(
        "no stale check",
        3,
        _STALE,
        "if entry is None:",
        Text(
            "A stale record is taken for the entry as it is now. Compare the record's priority and "
            "last use with the entry's before it leaves (the stale check).",
            "过期记录被当成了条目现在的状态。驱逐前要把记录的优先级、最近使用时间与条目比较"
            "（过期检查）。",
        ),
    ),
    Mistake(
        "everything stale",
        3,
        _STALE,
        "if True:",
        Text(
            "Every record is passed over as stale, those that are as their entry too: the heap "
            "runs empty, and nothing leaves.",
            "每条记录都被当作过期跳过，包括与条目一致的：堆被取空，却没有条目离开。",
        ),
    ),
    Mistake(
        "evicts everything",
        3,
        f"while {_ROOM}:",
        "while self.entries:",
        Text(
            "Everything is evicted; stop as soon as the bytes needed fit.",
            "所有条目都被驱逐了；放得下就应停止。",
        ),
    ),
    Mistake(
        "ledger not reduced",
        3,
        "            self.current_bytes -= entry.bytes\n",
        "",
        Text(
            "The ledger does not shrink: take the bytes of what leaves out of self.current_bytes.",
            "账本没有减少：要从 self.current_bytes 中减去离开的字节。",
        ),
    ),
    Mistake(
        "entry not removed",
        3,
        "            del self.entries[prefix]\n",
        "",
        Text(
            "What leaves stays in self.entries: take it out.",
            "离开的条目仍在 self.entries 里：要把它删除。",
        ),
    ),
    Mistake(
        "hits from 0",
        4,
        _NEW,
        _NEW.replace("hits=1", "hits=0"),
        Text(
            "A new entry starts with hits = 1: its first use counts.",
            "新条目的 hits 从 1 开始：第一次使用也算。",
        ),
    ),
    Mistake(
        "hits never counted",
        4,
        _HIT,
        _HIT.replace("            entry.hits += 1\n", ""),
        Text(
            "A hit does not count: entry.hits should grow by 1.",
            "命中没有计数：entry.hits 应加 1。",
        ),
    ),
    Mistake(
        "last use never updated",
        4,
        _HIT,
        _HIT.replace("            entry.last_used = self.time\n", ""),
        Text(
            "A hit leaves entry.last_used as it was: it should become the time now.",
            "命中后 entry.last_used 没有更新：应改为现在的时间。",
        ),
    ),
    Mistake(
        "hit not refreshed",
        4,
        _HIT,
        _HIT.replace("            self._refresh_queue(prefix)\n", ""),
        Text(
            "A hit is not refreshed: its priority and record stay old.",
            "命中后没有刷新：优先级和记录仍是旧的。",
        ),
    ),
    Mistake(
        "hit takes the new size",
        4,
        _HIT,
        "            self.current_bytes += bytes_ - entry.bytes\n"
        "            entry.bytes = bytes_\n" + _HIT,
        Text(
            "A hit changes the bytes; the chapter leaves them as they were when it was added.",
            "命中时改了字节数；本章保持新增时的字节数不变。",
        ),
    ),
    Mistake(
        "bytes not counted",
        4,
        "        self.current_bytes += bytes_\n",
        "",
        Text(
            "The bytes of a new entry are not counted in self.current_bytes.",
            "新条目的字节没有计入 self.current_bytes。",
        ),
    ),
    Mistake(
        "no room made",
        4,
        "        self._evict_until_fit(bytes_)\n",
        "",
        Text(
            "No room is made for a new entry: call self._evict_until_fit first.",
            "没有为新条目腾出空间：先调用 self._evict_until_fit。",
        ),
    ),
    Mistake(
        "ties by priority only",
        5,
        _KEY,
        "key=lambda e: -e.priority",
        Text(
            "Ties of the priority are left as they come; they go by last use, then by prefix.",
            "优先级相同时没有再排序：应按最近使用时间，再按前缀。",
        ),
    ),
    Mistake(
        "ties the other way",
        5,
        _KEY,
        _KEY.replace(" e.last_used", " -e.last_used"),
        Text(
            "Ties of the priority go by last use, the earlier first; here the later comes first.",
            "优先级相同时，最近使用时间早的在前；这里晚的排在了前面。",
        ),
    ),
    Mistake(
        "sorted by the rounded priority",
        5,
        _KEY,
        _KEY.replace("-e.priority", "-round(e.priority, 4)"),
        Text(
            "Rounding comes before sorting; it is for show only.",
            "排序用了舍入后的优先级；舍入只用于显示。",
        ),
    ),
    Mistake(
        "lowest first",
        5,
        _KEY,
        _KEY.replace("-e.priority", "e.priority"),
        Text(
            "The lowest priority comes first; it should be the highest.",
            "最低优先级排在了最前；应为最高的。",
        ),
    ),
    Mistake(
        "not rounded",
        5,
        "round(e.priority, 4)",
        "e.priority",
        Text("The priority is not rounded to 4 places.", "优先级没有保留 4 位小数。"),
    ),
)
