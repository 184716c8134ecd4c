"""The mechanism under every policy: node table, list, indexed heap, and the hook contract."""
