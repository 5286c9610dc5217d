"""Training: one loop, and next to it distribution, checkpoints and the entry point of a rank."""
