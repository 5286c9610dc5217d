"""Cutout over crop and flip, beside as many single pixels."""
