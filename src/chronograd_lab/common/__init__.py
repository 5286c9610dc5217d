"""Shared code of the studies, which are in `studies`."""
