"""Causes of slow runs: evidence, the split of their steps, and causes."""
