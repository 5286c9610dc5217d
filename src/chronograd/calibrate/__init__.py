"""This machine and its links measured, and tables of throughputs read."""
