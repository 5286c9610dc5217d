"""The fastest layout of a large model, the worth of each choice, and the regret of rules."""
