"""Questions put to a trace: ceiling, comparison, anatomy of misses, worth, plan."""
