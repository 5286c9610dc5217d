"""An exported network compared with the original."""
