"""Which setting: the largest batch that fits, devices, prices, goals."""
