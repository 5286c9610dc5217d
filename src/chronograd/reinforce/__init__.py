"""Reinforcement learning as a systems problem: who acts, who learns, and what passes between them."""
