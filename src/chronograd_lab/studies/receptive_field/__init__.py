"""What stacked filters see: by algebra, by the graph and by the gradient."""
