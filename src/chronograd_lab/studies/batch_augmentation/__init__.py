"""Batches of M augmented copies of each sample."""
