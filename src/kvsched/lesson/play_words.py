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


def tell(message: Message, language: str) -> str:
    """Return the sentence, a message in a slot told first. The page's script does the same."""

    def filled(slot: re.Match[str]) -> str:
        value = message.values[slot[1]]
        return tell(value, language) if isinstance(value, Message) else str(value)

    return _SLOT.sub(filled, SENTENCES[message.key][LANGUAGES.index(language)])


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
