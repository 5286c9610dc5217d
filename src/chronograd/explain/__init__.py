"""Why a run is not faster: evidence, the split of its steps, and causes."""
