"""The field of stacked filters: by algebra, by the graph and by the gradient."""
