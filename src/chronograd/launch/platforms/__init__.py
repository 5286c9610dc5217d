"""One file per platform: the table of its fields, and what it takes. `chronograd.launch.registry` finds them by listing."""
