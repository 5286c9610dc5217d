"""Dollars and accuracy of fine-tuning a large model, by method."""
