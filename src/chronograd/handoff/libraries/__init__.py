"""Training libraries, one per file: its LIBRARY."""
