"""Stale gradients, and learners that do not wait for each other."""
