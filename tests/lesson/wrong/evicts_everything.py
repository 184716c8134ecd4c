from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def _evict_until_fit(self, needed):
        if self.capacity_bytes - self.current_bytes < needed:
            for prefix in sorted(self.entries, key=lambda each: self.entries[each].priority):
                self._leave(prefix)
            self.queue.clear()
