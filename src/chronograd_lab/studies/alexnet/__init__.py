"""AlexNet layer by layer, and the three totals that are quoted for it."""
