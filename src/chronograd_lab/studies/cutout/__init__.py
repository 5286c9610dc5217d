"""Cutout over crop and flip, compared with the same number of single pixels."""
