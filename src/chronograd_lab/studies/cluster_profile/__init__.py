"""Real, user and system time of training on the nodes of a CPU cluster."""
