"""The platforms, one file each: the table of its fields, and its limits. `chronograd.clouds.registry` lists this folder."""
