"""Live engines: launch, requests over HTTP, metrics."""
