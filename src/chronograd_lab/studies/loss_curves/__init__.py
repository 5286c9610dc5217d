"""Loss curves: forecasts of convergence and of a target from the first part of a run."""
