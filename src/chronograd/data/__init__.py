"""Data sets: what they are (without loading anything), and their tensors."""
