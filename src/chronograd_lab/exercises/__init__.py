"""The exercises that the studies answer: which page answers which question, and notebooks to hand in."""
