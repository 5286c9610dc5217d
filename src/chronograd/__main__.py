"""The module behind `python -m chronograd`, the command `chronograd`."""

from chronograd.cli.main import entry

entry()
