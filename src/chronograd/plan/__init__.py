"""The choice of a setting: the largest batch that fits, devices, prices and goals."""
