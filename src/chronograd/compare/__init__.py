"""Two records side by side, runs on growing numbers of ranks, and a regression gate."""
