"""Deployment: networks as ONNX files, compared with PyTorch; a server for them, and load on it."""

METADATA = "chronograd"  # the entry of a file in which export writes the server's settings
