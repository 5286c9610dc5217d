"""`python -m chronograd` is the command `chronograd`."""

from chronograd.cli.main import entry

entry()
