"""What we claim about speed and exactness, measured beside others. Run as `python -m benchmarks.NAME`."""
