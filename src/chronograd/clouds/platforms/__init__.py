"""One file per platform: the table of its fields, and what it takes. `chronograd.clouds.registry` finds them by listing."""
