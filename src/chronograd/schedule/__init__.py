"""Many jobs on one cluster: their order, their sizes, and when each is done."""
