"""Stands in for vLLM's package: the tests' fake engine under its name."""
