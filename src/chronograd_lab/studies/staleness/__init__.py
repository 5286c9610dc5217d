"""Staleness of gradients in asynchronous SGD, simulated and counted on parameter servers."""
