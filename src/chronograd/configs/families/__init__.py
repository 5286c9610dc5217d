"""Families of transformers: each file reads the keys of one family, or of near-equal ones, into a description."""
