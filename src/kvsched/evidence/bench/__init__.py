"""Benchmarks of an engine that serves an OpenAI-compatible API."""
