"""`python -m kvsched`: the command line."""

from kvsched.cli.main import main

main()
