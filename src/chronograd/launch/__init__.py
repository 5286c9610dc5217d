"""Launchers, which start the ranks. Each has one file. `jobs` trains and measures a job through them."""
