"""Files with which a training library starts a chosen layout: one file per library, and one per way to start it."""
