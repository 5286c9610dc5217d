"""Benchmarks behind our claims about speed and accuracy, compared with other tools. Run as `python -m benchmarks.NAME`."""
