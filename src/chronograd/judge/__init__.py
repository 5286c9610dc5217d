"""Is a throughput good? Held against what a device could do at most, what is predicted, and what others published."""
