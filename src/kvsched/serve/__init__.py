"""When work runs, and what latency comes of it: the timed simulation."""
