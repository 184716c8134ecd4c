"""kvsched: what a language model's KV cache should keep, and what that is worth."""
