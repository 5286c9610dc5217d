"""What `measure` does beyond timing steps: layers, scaling, growing batches."""
