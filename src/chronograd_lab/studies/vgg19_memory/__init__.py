"""VGG-19: activations, weights and FLOPs of every layer."""
