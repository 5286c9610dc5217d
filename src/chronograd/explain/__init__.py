"""Why a run is not faster, and what a machine can do before one: causes, evidence, doctor."""
