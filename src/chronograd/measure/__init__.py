"""Measurement: clocks, memory, the environment, the steps of a job and of a custom loop."""
