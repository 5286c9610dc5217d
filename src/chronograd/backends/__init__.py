"""Backends: how ranks work together. One file each; each says what a rank runs, and in which environment."""
