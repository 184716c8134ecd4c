"""Which replica a request goes to: one file a routing."""
