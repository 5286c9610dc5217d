"""Learning curves: read from runs and logs, fitted, and continued to a target."""
