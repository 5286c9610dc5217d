"""Training: one readable loop, with distribution, checkpoints and the rank's entry point beside it."""
