"""Further measurements of `measure`: layers, scaling, growing batches."""
