"""Wrong labels and a long tail of labels in pretraining."""
