"""When work runs: batching, preemption and step time on a simulated clock."""
