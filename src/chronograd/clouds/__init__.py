"""Clouds and clusters that a job file can be written for, and read back from."""
