import heapq

from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _refresh_queue(self, prefix):
        entry = self.entries[prefix]
        entry.priority = self._score(entry.hits, entry.bytes, entry.last_used)
        heapq.heappush(self.queue, (0 - entry.priority, entry.last_used, prefix))
