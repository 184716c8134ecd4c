"""A right version, written otherwise than the solution; the wrong ones change one thing of it."""

import heapq
from types import SimpleNamespace


class KVCacheSchedulerSim:
    def __init__(self, capacity_bytes):
        if not capacity_bytes > 0:
            raise ValueError("no capacity")
        self.capacity_bytes = capacity_bytes
        self.current_bytes = self.time = 0
        self.entries, self.queue, self.log = {}, [], []

    def _score(self, hits, size, last_used):
        share = size / self.capacity_bytes
        return sum((hits, -share / 4, 1 / (2 + 2 * (self.time - last_used))))

    def _record(self, entry):
        return (entry.priority, entry.last_used, entry.prefix)

    def _refresh_queue(self, prefix):
        entry = self.entries[prefix]
        entry.priority = self._score(entry.hits, entry.bytes, entry.last_used)
        heapq.heappush(self.queue, self._record(entry))

    def _alive(self, record):
        return record[2] in self.entries and self._record(self.entries[record[2]]) == record

    def _evict_until_fit(self, needed):
        # Tidier than it must be: stale records at the top go at once.
        while self.capacity_bytes - self.current_bytes < needed:
            while not self._alive(self.queue[0]):
                heapq.heappop(self.queue)
            self._leave(heapq.heappop(self.queue)[2])

    def _leave(self, prefix):
        self.current_bytes -= self.entries.pop(prefix).bytes
        self.log.append(f"evict:{prefix}")

    def _hit(self, entry):
        entry.hits, entry.last_used = entry.hits + 1, self.time

    def _new(self, prefix, bytes_):
        return SimpleNamespace(prefix=prefix, bytes=bytes_, hits=1, last_used=self.time, priority=0)

    def touch(self, prefix, bytes_):
        if type(prefix) is not str or len(prefix) == 0 or not 0 < bytes_ <= self.capacity_bytes:
            raise ValueError("no such entry")
        self.time += 1
        event = "reuse" if prefix in self.entries else "add"
        if event == "reuse":
            self._hit(self.entries[prefix])
        else:
            self._evict_until_fit(bytes_)
            self.entries[prefix] = self._new(prefix, bytes_)
            self.current_bytes += bytes_
        self._refresh_queue(prefix)
        self.log.append(f"{event}:{prefix}")

    def schedule(self, requests):
        for request in requests:
            self.touch(*request)
        return self.log[:]

    def snapshot(self):
        rows = list(self.entries.values())
        rows.sort(key=lambda row: row.prefix)
        rows.sort(key=lambda row: row.last_used)
        rows.sort(key=lambda row: row.priority, reverse=True)
        return [(row.prefix, row.bytes, round(row.priority, 4), row.hits) for row in rows]
