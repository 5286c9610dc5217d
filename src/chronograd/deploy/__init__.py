"""Deployment: networks as ONNX files, compared with PyTorch; a server for them, and load on it."""

SUPPRESSED = ("boxes", "labels", "scores")  # outputs of a detector whose graph includes the suppression
METADATA = "chronograd"  # the entry of a file in which export writes the server's settings
