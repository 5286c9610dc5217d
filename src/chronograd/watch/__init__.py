"""Watching runs while they train: figures, terminal, TensorBoard."""
