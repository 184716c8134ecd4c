"""Prediction against measurement: step time fitted to a benchmark's run, and judged on the rest."""
