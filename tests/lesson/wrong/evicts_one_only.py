import heapq

from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _evict_until_fit(self, needed):
        if self.capacity_bytes - self.current_bytes < needed:
            while not self._alive(self.queue[0]):
                heapq.heappop(self.queue)
            self._leave(heapq.heappop(self.queue)[2])
