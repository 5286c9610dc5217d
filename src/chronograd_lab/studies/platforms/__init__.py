"""What platforms offer, and one job as a file of each."""
