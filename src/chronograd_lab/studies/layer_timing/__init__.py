"""Times of single layers beside that of the whole pass."""
