"""Launchers: how ranks are started. One file each. `jobs` trains and measures a job through them."""
