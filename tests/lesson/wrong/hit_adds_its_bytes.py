from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def touch(self, prefix, bytes_):
        if prefix in self.entries:
            self.current_bytes += bytes_
        super().touch(prefix, bytes_)
