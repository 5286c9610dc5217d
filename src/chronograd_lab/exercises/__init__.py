"""The exercises that the studies answer: the page for each question, and notebooks to hand in."""
