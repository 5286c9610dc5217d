"""Measuring: clocks, memory, the environment, the steps of a job and of a loop of the user's own."""
