from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def snapshot(self):
        for row in self.entries.values():
            row.priority = self._score(row.hits, row.bytes, row.last_used)
        return super().snapshot()
