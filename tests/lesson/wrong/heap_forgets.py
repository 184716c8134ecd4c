from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _refresh_queue(self, prefix):
        self.queue.clear()
        super()._refresh_queue(prefix)
