"""Times of single layers compared with the time of the whole pass."""
