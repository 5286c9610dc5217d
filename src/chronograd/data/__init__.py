"""Data sets: their shape, size and classes (without loading anything), and their tensors."""
