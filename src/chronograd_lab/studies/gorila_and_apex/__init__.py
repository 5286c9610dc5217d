"""Gorila beside Ape-X, and both beside one process."""
