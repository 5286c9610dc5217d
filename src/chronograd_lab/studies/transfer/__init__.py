"""Pretrained weights: fine-tuned, kept under a new last layer, or not used."""
