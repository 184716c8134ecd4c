from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _new(self, prefix, bytes_):
        entry = super()._new(prefix, bytes_)
        entry.hits = 0
        return entry
