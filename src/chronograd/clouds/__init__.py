"""Clouds and clusters for which Chronograd can write and read job files."""
