"""Gorila and Ape-X, each compared with one process."""
