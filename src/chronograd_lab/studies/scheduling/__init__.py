"""Six schedulers on three workloads, and what wrong forecasts cost them."""
