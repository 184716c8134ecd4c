"""What was measured on real things: preflight, block probe, benchmarks, calibration, records."""
