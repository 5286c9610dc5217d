"""Deep Q-learning without replay, without a target network, and without both."""
