"""Blocks of KV, allocated for real: what they take beside what the formula says."""
