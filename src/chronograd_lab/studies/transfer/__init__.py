"""Pretrained weights: fine-tuned, fixed under a new last layer, or not used."""
