"""Inception modules: their output sizes, their operations, and the saving of 1 × 1 reductions."""
