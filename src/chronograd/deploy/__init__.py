"""From trained to served: networks as ONNX files, held against PyTorch; a server of them, load on it."""

METADATA = "chronograd"  # the entry of a file in which export writes what a server has to know
