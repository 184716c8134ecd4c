import heapq

from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _evict_until_fit(self, needed):
        while self.capacity_bytes - self.current_bytes < needed:
            record = heapq.heappop(self.queue)
            entry = self.entries.get(record[2])
            # The priority is compared with the wrong field: never the same.
            if entry is None or record[0] != entry.last_used + 1000:
                continue
            self._leave(record[2])
