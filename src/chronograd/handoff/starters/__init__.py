"""Ways to start a training library on all nodes, one per file: its STARTER."""
