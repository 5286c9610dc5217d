"""Measurement of this machine and its links, and calibration from tables of throughputs."""
