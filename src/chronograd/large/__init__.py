"""Training of large models: memory of each rank, and step time, from their sizes and the layout of the ranks."""
