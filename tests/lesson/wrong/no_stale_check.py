import heapq

from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _evict_until_fit(self, needed):
        while self.capacity_bytes - self.current_bytes < needed:
            prefix = heapq.heappop(self.queue)[2]
            if prefix in self.entries:
                self._leave(prefix)
