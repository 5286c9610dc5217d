"""Replay drawn uniformly, by the error, by its rank, and without weights."""
