"""Predictions of large models against published measurements."""
