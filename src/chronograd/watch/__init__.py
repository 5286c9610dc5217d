"""Runs under way: figures, terminal, TensorBoard."""
