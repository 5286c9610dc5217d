"""Annotation: the objects that a detection model in ONNX detects in pictures."""

from __future__ import annotations

from pathlib import Path

from chronograd import files
from chronograd.deploy import model as models
from chronograd.deploy.detection import DetectorFormat
from chronograd.deploy.protocol import ProtocolError
from chronograd.detect.annotating import MIN_DRAWN_SCORE, DetectedObject, Find
from chronograd.errors import FileFormatError, InputError, require


def finder(path: Path, least_score: float = MIN_DRAWN_SCORE) -> Find:
    """Return a function that detects the objects in a picture file, like the server of the model.

    Raises: InputError for a model that is not a detector; FileFormatError as `model.load`. The function raises FileFormatError
    for a file that is not a picture.
    """
    for package in ("onnxruntime", "onnx"):
        require(package, "serve", "running an ONNX file")
    model = models.load(path, most_rows=1)
    try:
        detector = DetectorFormat.of(model)
    except ProtocolError as error:
        raise InputError(str(error), "name the ONNX file of a detector, or a run of task=detection") from None

    def find_in(image: Path) -> list[DetectedObject]:
        try:
            pixels, width, height = detector.read(files.read_bytes(image))
        except (ProtocolError, OSError) as error:
            raise FileFormatError(f"{image} cannot be read: {error}") from None
        outputs = [output[0] for output in model.run({detector.input: pixels}, detector.outputs)]
        rows = detector.objects(outputs, width, height, least_score)
        return [
            DetectedObject(row["label"], row["score"], (left, top, right, bottom))
            for row in rows
            for left, top, right, bottom in [row["box"]]
        ]

    return find_in
