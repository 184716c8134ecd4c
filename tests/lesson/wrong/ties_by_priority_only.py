from right import KVCacheSchedulerSim as Right


class KVCacheSchedulerSim(Right):
    def snapshot(self):
        rows = sorted(self.entries.values(), key=lambda row: row.priority)[::-1]
        return [(row.prefix, row.bytes, round(row.priority, 4), row.hits) for row in rows]
