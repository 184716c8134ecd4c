from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _score(self, hits, size, last_used):
        gap = self.time - last_used
        return hits - 1 / (2 * gap + 2) - size / (4 * self.capacity_bytes)
