"""One engine a module: how it is started, and what its metrics are called."""
