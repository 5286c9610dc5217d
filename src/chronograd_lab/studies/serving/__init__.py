"""Latency and throughput of a server: measured, and predicted by a queue."""
