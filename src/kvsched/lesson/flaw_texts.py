"""The texts of `kvsched.lesson.flaws`, by the name of the example; ``{…}`` names a fact."""

from __future__ import annotations

from dataclasses import dataclass

from kvsched.lesson.frame import Text


@dataclass(frozen=True)
class FlawText:
    """What is wrong, why, what the example shows, and what is done instead."""

    title: Text
    why: Text
    shows: Text
    instead: Text


TEXTS = {
    "old_and_hot": FlawText(
        Text("An old hot prefix is never let go", "曾经很热的旧前缀永远不会离开"),
        Text(
            "The score is computed when an entry is used, so its age is 0 there and the recency "
            "term always 0.5. Later nobody computes it again. What is left is LFU.",
            "分数只在条目被使用时计算，那时 age 为 0，“最近使用”一项总是 0.5；"
            "之后再没有人重新计算。剩下的就是 LFU。",
        ),
        Text(
            "Unused for {unused_for} touches, is “old” still kept? {kept}; the two new ones push "
            "each other out and hit {hits_of_the_new} times. Recency terms found: {recency}.",
            "“old” 已有 {unused_for} 次 touch 没有使用，仍被保留（{kept}）；两个新前缀互相驱逐，"
            "命中 {hits_of_the_new} 次。出现过的“最近使用”项：{recency}。",
        ),
        Text(
            "Let hits fade with a half-life: the policy “decay” keeps log2 of the sum of "
            "2^(time/half-life), which needs no second look: entries that are not used keep their "
            "order. With a half-life of 10 s the new ones hit {hits_of_the_new} times.",
            "让命中随半衰期衰减：策略 “decay” 保存 2^(时间/半衰期) 之和的 log2，"
            "不需要重新计算：未使用的条目之间顺序不变。半衰期 10 秒时，新前缀命中 "
            "{hits_of_the_new} 次。",
        ),
    ),
    "grows": FlawText(
        Text("The heap and the log grow for ever", "堆和日志只增不减"),
        Text(
            "A use pushes a record, and records go only when they come up during an eviction. The "
            "log has a line for each decision since the start.",
            "每次使用都压入一条记录，只有驱逐时弹到的记录才会消失。日志从一开始就为每个决定留"
            "一行。",
        ),
        Text(
            "{entries} entry, {records} records, {lines} lines of log.",
            "{entries} 条缓存，{records} 条记录，{lines} 行日志。",
        ),
        Text(
            "An indexed heap knows where each entry stands, so a use moves its record: "
            "{records} after as many uses. The live scheduler keeps events only if asked to: "
            "{events} here, after a thousand uses.",
            "带索引的堆知道每个条目的位置，使用时移动它的记录：同样多次使用后只有 {records} "
            "条。在线调度器只在要求时保存事件：使用一千次后这里是 {events} 个。",
        ),
    ),
    "another_size": FlawText(
        Text("A hit with another size is ignored", "命中时的新大小被忽略"),
        Text(
            "A conversation grows with every turn; the ledger keeps the size of the first.",
            "对话每一轮都在变长；账本却一直是第一次的大小。",
        ),
        Text(
            "The ledger counts {counted} bytes of 100, while {really} are needed. Log: {log}.",
            "账本记为 {counted} 字节（容量 100），实际需要 {really}。日志：{log}。",
        ),
        Text(
            "A prompt is a chain of blocks, and a longer one more blocks: the longer chat "
            "hits {hit} tokens and stores the rest, and what the scheduler counts, {counted}"
            " of 100, is all that there is.",
            "提示是一串块，变长就是多几个块：更长的对话命中 {hit} 个 token，其余存入；调度器"
            "记的 {counted}（容量 100）就是全部。",
        ),
    ),
    "running": FlawText(
        Text("A running request's entry can be evicted", "正在运行的请求的缓存可能被驱逐"),
        Text(
            "A request reads its keys and values at every token it generates. The chapter has no "
            "notion of a request that is running.",
            "请求每生成一个 token 都要读它的 key 和 value。本章没有“正在运行”的概念。",
        ),
        Text("Log: {log}. Still there: {kept}.", "日志：{log}。还在吗：{kept}。"),
        Text(
            "A request holds a lease, and what it holds is no candidate. The second "
            "request's outcome is {outcome} ({reason}); all {kept} tokens of the first are "
            "there meanwhile. Once it is released, the second has its turn: {later}.",
            "请求持有租约，它持有的不参与驱逐。第二个请求的结果是 {outcome}（{reason}）；其间"
            "第一个的 {kept} 个 token 都在。释放之后轮到第二个：{later}。",
        ),
    ),
    "scan": FlawText(
        Text("One scan empties the cache", "一次扫描清空缓存"),
        Text(
            "Whatever comes is stored, whatever it costs the others. The score decides who leaves, "
            "never who may come in.",
            "来什么就存什么，不管别人付出什么代价。分数只决定谁离开，不决定谁可以进来。",
        ),
        Text(
            "{evicted} hot entries made way for a prompt that never comes again; in the cache now: "
            "{left}.",
            "{evicted} 条热缓存为一个再也不会出现的提示让路；现在缓存里是 {left}。",
        ),
        Text(
            "Storing must be a choice. With the hot prefixes pinned, the live scheduler "
            "serves the scan without storing it ({outcome}), and all {hits} hot tokens hit "
            "afterwards. For what nobody has pinned: the optimum that may choose not to "
            "store hits {hits_of_opt} of the next 5 requests, the chapter's order "
            "{hits_of_chapter}.",
            "存储应当是一种选择。固定热前缀后，在线调度器只服务这次扫描而不存储（{outcome}）"
            "，之后 {hits} 个热 token 全部命中。没有固定的呢？可以选择不存的最优策略在随后 5 "
            "个请求中命中 {hits_of_opt} 个，本章的顺序命中 {hits_of_chapter} 个。",
        ),
    ),
    "history": FlawText(
        Text("History is lost at eviction", "驱逐时历史丢失"),
        Text(
            "How often a prefix was seen, even if it left since, is among the best signs that it "
            "comes again. The chapter forgets it with the entry.",
            "一个前缀出现过多少次（即使后来离开了）是它会再次出现的最好迹象之一。"
            "本章随条目一起忘掉了它。",
        ),
        Text(
            "Used {uses} times; back again, its hits are {hits}.",
            "用过 {uses} 次；回来后 hits 是 {hits}。",
        ),
        Text(
            "A sketch counts uses of what is there and what is not, in a fixed room: {uses} here "
            "(to 15 at most, and all are halved from time to time). The policy “wtinylfu” decides "
            "by it; “s3fifo” and “arc” keep ghosts: names without data.",
            "草图用固定的空间统计在与不在缓存里的前缀："
            "这里是 {uses}（最多数到 15，所有计数不时减半）。"
            "策略 “wtinylfu” 据此决定；“s3fifo” 和 “arc” 保留幽灵记录：只有名字没有数据。",
        ),
    ),
    "shared": FlawText(
        Text("Shared prefixes are charged twice", "共享的前缀被重复计费"),
        Text(
            "An entry is a whole prefix. Two that begin alike are two entries, each with the "
            "bytes of the beginning, and neither hits the other.",
            "一条缓存是一整个前缀。开头相同的两条各自计入开头的字节，彼此也不命中。",
        ),
        Text(
            "{needed} bytes would do, and 100 are there. Log: {log}.",
            "{needed} 字节就够了，容量有 100。日志：{log}。",
        ),
        Text(
            "Blocks have their place in a tree of prefixes: the second prompt hits {hit}"
            " tokens, and {cached} are cached in all.",
            "块在前缀树中各有位置：第二个提示命中 {hit} 个 token，一共缓存 {cached} 个。",
        ),
    ),
    "dear": FlawText(
        Text("What costs most to recompute is penalised most", "重算代价最大的扣分最多"),
        Text(
            "A large entry loses score for its room; that it also takes longest to compute again "
            "counts for nothing. With blocks of one size room is the same for all, and cost is "
            "what differs: a block deep in a prompt attends to all before it.",
            "大的条目因占空间扣分；而它重新计算也最久，这一点却不算。块一样大时，"
            "空间都相同，不同的是代价：提示深处的块要注意它之前的一切。",
        ),
        Text(
            "Of a greeting and a document {evicted} left, and must be computed again.",
            "问候和文档中，离开的是 {evicted}，要重新计算。",
        ),
        Text(
            "The policy “gdsf:attention_tokens=N” ranks by the cost of computing a block where it "
            "stands: afterwards the greeting hits {greeting} blocks, the document {document} of "
            "{of}.",
            "策略 “gdsf:attention_tokens=N” 按块在其位置上的计算代价排序："
            "之后问候命中 {greeting} 块，文档命中 {document} 块（共 {of} 块）。",
        ),
    ),
    "ledger": FlawText(
        Text("NaN, infinity and True corrupt the ledger", "NaN、无穷大和 True 破坏账本"),
        Text(
            "NaN is neither below 0 nor above the capacity, so it passes both checks; every "
            "comparison with it is false, so nothing is ever too much again. True is 1.",
            "NaN 既不小于 0 也不大于容量，两项检查都能通过；和它比较永远是假，"
            "于是再也不会“超出”。True 就是 1。",
        ),
        Text(
            "After one size of NaN the ledger says {bytes_after_nan}; {really} bytes are in a "
            "cache of {capacity}. Evictions, also with a capacity of infinity and of NaN: "
            "{evicted}. A cache of True bytes: {true}.",
            "一个 NaN 之后账本是 {bytes_after_nan}；容量 {capacity} 的缓存里有 {really} 字节。"
            "驱逐次数（包括容量为无穷大和 NaN 的）：{evicted}。容量为 True 的缓存：{true}。",
        ),
        Text(
            "Sizes and capacities are whole numbers, and what is not is refused by "
            "name: {refused}.",
            "大小和容量都是整数，不是的会指名拒绝：{refused}。",
        ),
    ),
    "half": FlawText(
        Text("A batch that fails half-way is half applied", "中途失败的批次只应用了一半"),
        Text(
            "The requests before the bad one stay applied, those after it are lost, and the caller "
            "has an exception instead of a log.",
            "坏请求之前的已经生效，之后的丢失，调用者得到的是异常而不是日志。",
        ),
        Text("“{error}”, and the log: {log}.", "“{error}”，而日志是：{log}。"),
        Text(
            "A live scheduler answers each request with an outcome of its own: {answers}. "
            "The one after the bad one goes on.",
            "在线调度器对每个请求给出各自的结果：{answers}。坏请求之后的照常进行。",
        ),
    ),
}
