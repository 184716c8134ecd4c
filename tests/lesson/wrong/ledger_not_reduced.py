from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _leave(self, prefix):
        self.entries.pop(prefix)
        self.log.append(f"evict:{prefix}")
