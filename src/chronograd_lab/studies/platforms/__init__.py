"""Offers of platforms, and one job as a file of each."""
