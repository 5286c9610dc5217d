"""Discrete simulation: queues of a server, and asynchronous workers."""
