"""Where requests come from: readers, the generator, and the `Trace` they all become."""
