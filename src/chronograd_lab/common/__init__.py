"""What studies share; the studies themselves are in `studies`."""
