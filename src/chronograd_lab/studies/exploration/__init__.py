"""Shares of random actions: fixed, falling, or a ladder."""
