"""Time to an accuracy against the number of workers, on parameter servers and by all-reduce."""
