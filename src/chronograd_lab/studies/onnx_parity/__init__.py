"""An exported network beside the one it was exported from."""
