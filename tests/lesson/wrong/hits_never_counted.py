from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _hit(self, entry):
        entry.last_used = self.time
