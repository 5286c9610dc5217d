"""Replay drawn alike, by the error, by its rank, and without weights."""
