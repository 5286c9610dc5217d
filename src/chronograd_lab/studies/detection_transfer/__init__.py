"""A detector of all classes, fine-tuned on two related ones."""
