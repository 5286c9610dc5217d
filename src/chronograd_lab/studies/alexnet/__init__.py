"""AlexNet layer by layer, and the three totals quoted for it."""
