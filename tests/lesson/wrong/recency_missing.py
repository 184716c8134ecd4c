from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _score(self, hits, size, last_used):
        return hits - size / (4 * self.capacity_bytes)
