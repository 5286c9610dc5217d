"""Throughput at peak, and the losses below it."""
