"""What a step-through says, in English and Chinese; page and terminal say the same."""

from __future__ import annotations

import re
from typing import NamedTuple

LANGUAGES = ("en", "zh")
_SLOT = re.compile(r"\{(\w+)\}")


class Message(NamedTuple):
    """A sentence by its key in `SENTENCES`, with what stands in its slots."""

    key: str
    values: dict[str, str | int | Message]


Values = dict[str, str | int | Message]
"""What stands in the slots of a sentence."""


def tell(message: Message, language: str) -> str:
    """Return the sentence in ``language``. The page's script does the same."""
    sentence = SENTENCES[message.key][LANGUAGES.index(language)]
    return fill(sentence, message.values, language)


def fill(text: str, values: Values, language: str) -> str:
    """Fill the slots of ``text``; a message in a slot is told first."""

    def filled(slot: re.Match[str]) -> str:
        value = values[slot[1]]
        return tell(value, language) if isinstance(value, Message) else str(value)

    return _SLOT.sub(filled, text)


SENTENCES: dict[str, tuple[str, str]] = {
    "arrive": (
        "Request {number} asks for “{prefix}”, {bytes} bytes.",
        "请求 {number}：需要“{prefix}”，{bytes} 字节。",
    ),
    "reuse": (
        "“{prefix}” is in the ledger: a hit. Its hits go from {before} to {hits}, its last use "
        "is {time}.",
        "“{prefix}”在账本中：命中。命中数从 {before} 变为 {hits}，最近使用时刻为 {time}。",
    ),
    "reuse.resized": (
        "“{prefix}” is in the ledger: a hit. Its hits go from {before} to {hits}, its last use "
        "is {time}. It is asked for with {asked} bytes and stays at {bytes}: the chapter ignores "
        "the size of a hit.",
        "“{prefix}”在账本中：命中。命中数从 {before} 变为 {hits}，最近使用时刻为 {time}。"
        "请求给出 {asked} 字节，账本仍记 {bytes} 字节：本章的版本忽略命中时的大小。",
    ),
    "miss.fits": (
        "“{prefix}” is not in the ledger: a miss. It needs {bytes} bytes and {free} are free: it "
        "fits.",
        "“{prefix}”不在账本中：未命中。需要 {bytes} 字节，空闲 {free} 字节：放得下。",
    ),
    "miss.full": (
        "“{prefix}” is not in the ledger: a miss. It needs {bytes} bytes and {free} are free: "
        "something has to leave.",
        "“{prefix}”不在账本中：未命中。需要 {bytes} 字节，空闲 {free} 字节：必须先淘汰。",
    ),
    "stale.newer": (
        "The top of the heap is ({score}, {last}, “{prefix}”). It is stale: it was written at "
        "{last}, and the ledger says last use {now}, score {current}. It is crossed out.",
        "堆顶是（{score}，{last}，“{prefix}”）。它已过期：写于时刻 {last}，"
        "而账本上最近使用为 {now}，分数为 {current}。划掉。",
    ),
    "stale.gone": (
        "The top of the heap is ({score}, {last}, “{prefix}”). It is stale: “{prefix}” has left "
        "the cache. It is crossed out.",
        "堆顶是（{score}，{last}，“{prefix}”）。它已过期：“{prefix}”已离开缓存。划掉。",
    ),
    "evict": (
        "“{prefix}” leaves. Its record is current, and its score the lowest: hits {hits} + "
        "recency {recency} − size {size} = {score}. {bytes} bytes are freed.",
        "“{prefix}”被淘汰。它的记录有效，分数最低：命中 {hits} + 新近 {recency} − 大小 {size} "
        "= {score}。释放 {bytes} 字节。",
    ),
    "evict.tie": (
        "“{prefix}” leaves. Its record is current, and its score the lowest: hits {hits} + "
        "recency {recency} − size {size} = {score}. “{other}” has the same score: the one used "
        "longer ago leaves first. {bytes} bytes are freed.",
        "“{prefix}”被淘汰。它的记录有效，分数最低：命中 {hits} + 新近 {recency} − 大小 {size} "
        "= {score}。“{other}”分数相同：更久未使用的先走。释放 {bytes} 字节。",
    ),
    "evict.policy": (
        "“{prefix}” leaves, as the first in the order of {policy} ({standing}). {bytes} bytes are "
        "freed.",
        "“{prefix}”被淘汰：按 {policy} 的次序它排在最前（{standing}）。释放 {bytes} 字节。",
    ),
    "evict.chosen": (
        "“{prefix}” leaves: {policy} chose it. {bytes} bytes are freed.",
        "“{prefix}”被淘汰：由 {policy} 选出。释放 {bytes} 字节。",
    ),
    "decline": (
        "{policy} does not store “{prefix}”.",
        "{policy} 不存“{prefix}”。",
    ),
    "decline.future": (
        "{policy} does not store “{prefix}”: nothing in the cache is needed later than it.",
        "{policy} 不存“{prefix}”：缓存里没有比它更晚才用到的。",
    ),
    "add": (
        "“{prefix}” is stored with hits 1. {used} of {capacity} bytes are in use.",
        "“{prefix}”存入，命中数为 1。已用 {used}/{capacity} 字节。",
    ),
    "push": (
        "Score: hits {hits} + recency {recency} − size {size} = {score}. The record ({score}, "
        "{last}, “{prefix}”) goes into the heap.",
        "分数：命中 {hits} + 新近 {recency} − 大小 {size} = {score}。"
        "记录（{score}，{last}，“{prefix}”）入堆。",
    ),
    "push.stale": (
        "Score: hits {hits} + recency {recency} − size {size} = {score}. The record ({score}, "
        "{last}, “{prefix}”) goes into the heap. What was written for “{prefix}” before stays "
        "there, stale.",
        "分数：命中 {hits} + 新近 {recency} − 大小 {size} = {score}。"
        "记录（{score}，{last}，“{prefix}”）入堆。以前为“{prefix}”写的记录留在堆里，已过期。",
    ),
    "by.use": ("last used at {last}", "最近使用于 {last}"),
    "by.arrival": ("stored at {stored}", "存入于 {stored}"),
    "by.count": ("hits {hits}, last used at {last}", "命中 {hits}，最近使用于 {last}"),
    "by.segment.once": ("used once, at {last}", "只用过一次，于 {last}"),
    "by.segment.again": ("used again, last at {last}", "再次用过，最近于 {last}"),
    "by.value": (
        "value {value} = clock {clock} + hits {hits} / {bytes} bytes",
        "价值 {value} = 时钟 {clock} + 命中 {hits} / {bytes} 字节",
    ),
    "by.future": ("next needed by request {next}", "下次由请求 {next} 用到"),
    "by.future.never": ("never needed again", "不再用到"),
    "by.queues": ("in the queues of {policy}", "在 {policy} 的队列中"),
    "by.place": ("number {place} to leave", "第 {place} 个离开"),
    "note.chapter": (
        "The lowest score leaves first: hits + 0.5/(1 + time since last use) − 0.25·size/capacity. "
        "A score is refreshed only when its entry is used, so the recency term is always 0.5: a "
        "prefix that was hot once stays, however long nobody asks for it.",
        "分数最低者先走：命中数 + 0.5/(1 + 距上次使用的时间) − 0.25·大小/容量。"
        "分数只在使用该项时刷新，所以新近项总是 0.5：曾经热门的前缀会一直留着，哪怕再没有人用它。",
    ),
    "note.lru": (
        "The entry that nobody has used for longest leaves first. It stands in a list; a use moves "
        "it to the end.",
        "最久未使用的先走。各项排成一个链表；使用一次就移到末尾。",
    ),
    "note.fifo": (
        "The entry stored first leaves first, however often it was used.",
        "先存入的先走，不管用过多少次。",
    ),
    "note.lfu": (
        "The entry used least often leaves first; of equals, the one used longest ago.",
        "使用次数最少的先走；次数相同时，最久未使用的先走。",
    ),
    "note.slru": (
        "Entries used once leave before entries used again; in each group, the one used longest "
        "ago.",
        "只用过一次的先于再次用过的离开；每组之内，最久未使用的先走。",
    ),
    "note.gdsf": (
        "The lowest value leaves first: a clock + hits/bytes. The clock rises to the value of what "
        "leaves, so an old entry loses what its hits were worth.",
        "价值最低者先走：时钟 + 命中数/字节数。时钟升到被淘汰项的价值，"
        "所以旧项的命中数渐渐不再值钱。",
    ),
    "note.opt": (
        "Knows the future: what is needed last leaves first, and what is needed later than all "
        "that is there is not stored. No policy to run, but a mark to reach; entries of unequal "
        "size make it a good guess, and not the bound.",
        "知道未来：最晚才用到的先走，比缓存里全部都更晚用到的就不存。它不能真的运行，只是一个目标；"
        "各项大小不等时，它只是很好的近似，不是上界。",
    ),
    "note.opt-fit": (
        "Knows the future: what is needed last leaves first, and everything is stored. Entries of "
        "unequal size make it a good guess, and not the bound.",
        "知道未来：最晚才用到的先走，全部都存。各项大小不等时，它只是很好的近似，不是上界。",
    ),
    "note.other": ("{summary}", "{summary}"),
}
"""Each in the order of `LANGUAGES`."""

LABELS: dict[str, tuple[str, str]] = {
    "title": ("KV cache scheduling, step by step", "KV 缓存调度，一步一步看"),
    "lead": (
        "A small run of chapter 37. Each step is one thing the scheduler does; change the policy "
        "or the capacity, and see the same requests again.",
        "第 37 章的一次小规模运行。每一步是调度器做的一件事；可以换策略或容量，再看同样的请求。",
    ),
    "policy": ("Policy", "策略"),
    "capacity": ("Capacity, bytes", "容量（字节）"),
    "language": ("Language", "语言"),
    "first": ("First step", "第一步"),
    "back": ("Back", "后退"),
    "forward": ("Forward", "前进"),
    "last": ("Last step", "最后一步"),
    "play": ("Play", "播放"),
    "pause": ("Pause", "暂停"),
    "position": ("Step", "步骤"),
    "help": (
        "Keys: ← → one step, Home and End the ends, space plays. A click on a request, or on a "
        "line of the list at the end, jumps there.",
        "按键：← → 走一步，Home/End 到两端，空格播放。点击请求，或末尾列表中的一行，可跳到那里。",
    ),
    "count": ("Step {step} of {steps}", "第 {step} 步，共 {steps} 步"),
    "requests": ("Requests", "请求"),
    "cache": ("The cache", "缓存"),
    "room": ("{used} of {capacity} bytes in use", "已用 {used}/{capacity} 字节"),
    "free": ("free", "空闲"),
    "nothing": ("Nothing is stored yet.", "还没有存入任何项。"),
    "hits": ("requests hit", "命中请求"),
    "hit_bytes": ("bytes hit", "命中字节"),
    "evictions": ("evictions", "淘汰"),
    "records": ("records in the heap", "堆中记录"),
    "entries": ("entries", "账本项"),
    "of": ("{part} of {all}", "{part}/{all}"),
    "ledger": ("The ledger", "账本"),
    "prefix": ("prefix", "前缀"),
    "bytes": ("bytes", "字节"),
    "uses": ("hits", "命中数"),
    "last_use": ("last use", "最近使用"),
    "score": ("score = hits + recency − size", "分数 = 命中 + 新近 − 大小"),
    "now": ("recency now", "此刻的新近"),
    "standing": ("in the policy’s own terms", "按该策略的说法"),
    "leaves": ("leaves", "离开"),
    "order": (
        "Ordered: the first to leave stands first. An indexed heap or a list holds each entry once "
        "and moves it when it is used, so there are no stale records. The chapter’s heap pays for "
        "not doing so.",
        "按次序排列：先离开的在前。带索引的堆或链表中每项只有一条，使用时就移动它，所以没有过期记录。"
        "本章的堆没有这样做，代价就是过期记录。",
    ),
    "queues": (
        "As they came: this policy keeps queues, and decides when it has to. Each entry stands in "
        "one place, so there are no stale records.",
        "按到来的先后：此策略用队列，到需要时才决定。每项只在一处，所以没有过期记录。",
    ),
    "heap": ("The heap", "堆"),
    "heap_note": (
        "The smallest record is on top. Faint records with a dashed edge are stale: nobody takes "
        "them out before they come to the top.",
        "最小的记录在顶上。虚线框的淡色记录已过期：要等到它来到堆顶才会被取出。",
    ),
    "empty": ("The heap is empty.", "堆是空的。"),
    "popped": ("Popped in this step", "这一步弹出"),
    "stale": ("stale", "过期"),
    "new": ("new", "新"),
    "hit": ("hit", "命中"),
    "miss": ("miss", "未命中"),
    "present": ("now", "当前"),
    "compare": ("The same requests elsewhere", "同样的请求，别的选择"),
    "compare_note": (
        "Requests hit of {requests}, by policy and capacity in bytes. A click shows that run.",
        "{requests} 个请求中的命中数，按策略和容量（字节）。点击即看那次运行。",
    ),
    "all": ("All steps of this run", "本次运行的全部步骤"),
    "made": ("Made by kvsched", "制作：kvsched"),
    "prompt": (
        "n next, p back, a number jumps, c BYTES capacity, o POLICY policy, q quit: ",
        "n 前进，p 后退，数字跳转，c 字节 换容量，o 策略 换策略，q 退出：",
    ),
    "unknown": ("{given} is none of these.", "{given} 不在其中。"),
    "script": (
        "The steps need JavaScript, all of which is in this file. kvsched lesson play 37 "
        "--terminal shows them without.",
        "步骤需要 JavaScript，全部都在此文件内。kvsched lesson play 37 --terminal 不需要它。",
    ),
}
"""What stands on the page beside the steps; the same two languages."""
