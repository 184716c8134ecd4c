"""The command line: one module a command, loading what it needs when it is called."""
