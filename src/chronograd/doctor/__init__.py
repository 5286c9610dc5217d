"""Checks before a run: one file per group."""
