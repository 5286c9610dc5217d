"""Comparison of two records, scaling over numbers of ranks, and a regression gate."""
