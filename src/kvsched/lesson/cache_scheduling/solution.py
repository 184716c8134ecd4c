# en: Lesson 37: which prefixes does a KV cache keep?
# en: Fill in the five methods, then run: kvsched lesson check 37
# zh: 第 37 课：KV Cache 应该保留哪些前缀？
# zh: 补全五个方法，然后运行：kvsched lesson check 37

import heapq
from dataclasses import dataclass


@dataclass
class Entry:
    # en: One cached prefix, as the ledger (sim.entries) knows it.
    # zh: 账本（sim.entries）里的一条缓存前缀。
    prefix: str
    bytes: int
    hits: int
    last_used: int
    priority: float = 0.0


class KVCacheSchedulerSim:
    def __init__(self, capacity_bytes=1024):
        if capacity_bytes <= 0:
            raise ValueError("capacity_bytes must be positive")
        self.capacity_bytes = capacity_bytes
        # en: The ledger: what is cached, and how many bytes that takes.
        # zh: 账本：缓存了什么，一共占多少字节。
        self.entries = {}
        self.current_bytes = 0
        # en: A heap of records (priority, last used, prefix), the smallest first.
        # zh: 堆，记录为（优先级，最近使用时间，前缀），最小的在前。
        self.queue = []
        # en: The clock: one tick a touch.
        # zh: 时钟：每次 touch 走一格。
        self.time = 0
        self.log = []

    def _score(self, hits, size, last_used):
        # en: Task 1. Return what an entry is worth now:
        # en: hits + 0.5 / (1 + time since it was last used) - 0.25 * size / capacity
        # zh: 任务 1：返回一条缓存现在的价值：
        # zh: 命中次数 + 0.5 / (1 + 距最近使用的时间) - 0.25 * 大小 / 容量
        # solution begins
        # en: The newer the last use, the smaller the age and the larger this term: 0.5 at most.
        # zh: 最近使用越新，age 越小，这一项越大，最多 0.5。
        age = self.time - last_used
        recency = 0.5 / (1 + age)
        # en: An entry as large as the whole cache loses a quarter of a hit.
        # zh: 和整个缓存一样大的条目，扣掉四分之一次命中。
        penalty = 0.25 * size / self.capacity_bytes
        return hits + recency - penalty
        # solution ends

    def _refresh_queue(self, prefix):
        # en: Task 2. Score the entry of prefix now, keep the score in entry.priority, and push the
        # en: record (priority, last_used, prefix) on self.queue with heapq.heappush.
        # en: Old records stay where they are.
        # zh: 任务 2：给 prefix 的条目重新评分，存入 entry.priority，
        # zh: 再用 heapq.heappush 把记录（priority, last_used, prefix）压入 self.queue。
        # zh: 旧记录留在原处。
        # solution begins
        entry = self.entries[prefix]
        entry.priority = self._score(entry.hits, entry.bytes, entry.last_used)
        record = (entry.priority, entry.last_used, prefix)
        # en: heapq gives the smallest first, and the least valuable entry is to leave first:
        # en: so the priority goes in as it is.
        # zh: heapq 先弹出最小的，而最不值得保留的应先离开：优先级原样放入，不取负。
        heapq.heappush(self.queue, record)
        # solution ends

    def _evict_until_fit(self, needed):
        # en: Task 3. While needed bytes do not fit beside self.current_bytes, pop the smallest
        # en: record. It is stale when its prefix has left, or when its priority or its last use is
        # en: not the entry's any more: pass over it. Otherwise the entry leaves: take it out of
        # en: self.entries and its bytes out of self.current_bytes, and log "evict:" + prefix.
        # zh: 任务 3：只要 needed 字节放不下，就弹出最小的记录。
        # zh: 如果前缀已经离开，或记录里的优先级、最近使用时间与条目不再一致，
        # zh: 它就是过期记录：跳过。否则驱逐该条目：从 self.entries 中删除，
        # zh: 从 self.current_bytes 中减去它的字节，并记录 "evict:" + prefix。
        # solution begins
        while self.current_bytes + needed > self.capacity_bytes:
            priority, last_used, prefix = heapq.heappop(self.queue)
            entry = self.entries.get(prefix)
            # en: Lazy deletion: a record is true only while it says what the entry says.
            # zh: 懒删除：只有和条目一致的记录才有效。
            if entry is None or (priority, last_used) != (entry.priority, entry.last_used):
                continue
            del self.entries[prefix]
            self.current_bytes -= entry.bytes
            self.log.append("evict:" + prefix)
        # solution ends

    def touch(self, prefix, bytes_):
        if not isinstance(prefix, str) or not prefix:
            raise ValueError("prefix must be a string that is not empty")
        if bytes_ <= 0 or bytes_ > self.capacity_bytes:
            raise ValueError("bytes_ must be positive and fit the capacity")
        self.time += 1
        # en: Task 4. A prefix in the ledger is a hit: one more hit, last used now, refreshed, and
        # en: "reuse:" + prefix in the log; its bytes stay. Any other is a new entry: make room,
        # en: then put Entry(prefix, bytes_, hits=1, last_used=now) in the ledger, count its bytes,
        # en: refresh, and log "add:" + prefix.
        # zh: 任务 4：前缀已在账本里就是命中：命中次数加一，最近使用时间改为现在，刷新队列，
        # zh: 记录 "reuse:" + prefix，字节数不变。否则新增：先腾出空间，
        # zh: 把 Entry(prefix, bytes_, hits=1, last_used=现在) 放入账本，计入字节，
        # zh: 刷新队列，记录 "add:" + prefix。
        # solution begins
        if prefix in self.entries:
            entry = self.entries[prefix]
            entry.hits += 1
            entry.last_used = self.time
            self._refresh_queue(prefix)
            self.log.append("reuse:" + prefix)
            return
        # en: Room first: the new entry must not be among those that may leave for it.
        # zh: 先腾空间：新条目不能参与这次驱逐。
        self._evict_until_fit(bytes_)
        self.entries[prefix] = Entry(prefix, bytes_, hits=1, last_used=self.time)
        self.current_bytes += bytes_
        self._refresh_queue(prefix)
        self.log.append("add:" + prefix)
        # solution ends

    def schedule(self, requests):
        for prefix, bytes_ in requests:
            self.touch(prefix, bytes_)
        return list(self.log)

    def snapshot(self):
        # en: Task 5. Return a list of rows (prefix, bytes, priority rounded to 4 places, hits), the
        # en: highest priority first; ties go by last use (earlier first), then by prefix.
        # en: Change nothing.
        # zh: 任务 5：返回行的列表（前缀，字节，保留 4 位小数的优先级，命中次数），
        # zh: 优先级高的在前；相同时按最近使用时间（早的在前），再按前缀排序。
        # zh: 不改变任何状态。
        # solution begins
        # en: Sort by the priority itself; rounding is for show only.
        # zh: 按未舍入的优先级排序；舍入只用于显示。
        entries = sorted(self.entries.values(), key=lambda e: (-e.priority, e.last_used, e.prefix))
        return [(e.prefix, e.bytes, round(e.priority, 4), e.hits) for e in entries]
        # solution ends
