"""`python -m heedful`: the command line."""

from heedful.cli import main

main()
