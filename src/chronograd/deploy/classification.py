"""Classification of pictures by a served model: a picture file in, class names with probabilities out. No torch.

The metadata of a file by `chronograd export` hold the scale and shift of pixels and the names of the classes. A picture is
decoded like `chronograd.data.folders` decodes those of a data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.deploy import pictures
from chronograd.deploy.model import OnnxModel
from chronograd.deploy.protocol import Array, ProtocolError

OUTPUT = "logits"
MAX_CLASSES = 5  # in an answer


@dataclass(frozen=True)
class Classifier:
    """The picture format of a model, and the names of its classes.

    Attributes:
        side: of its square input. channels: 3 for RGB, 1 for grey.
        top: the largest value of a pixel in its training data.
        scale, shift: its input is `pixel * scale - shift`, per channel; None if it takes pixels (uint8).
    """

    input: str
    channels: int
    side: int
    top: int
    scale: Array | None
    shift: Array | None
    classes: list[str]

    @classmethod
    def of(cls, model: OnnxModel) -> Classifier:
        """Return the classifier of a model. Raises ProtocolError for a model that does not classify pictures, or without
        preprocessing in its file.
        """
        name, about = model.path.stem, model.about
        shape = model.inputs[0].shape if len(model.inputs) == 1 else ()
        outputs = {spec.name: spec.shape for spec in model.outputs}
        is_of_pictures = len(shape) == 4 and shape[1] in (1, 3) and shape[2] == shape[3] > 0
        if not is_of_pictures or len(outputs.get(OUTPUT, ())) != 2:
            raise ProtocolError(
                f"{name} does not take pictures: it is not a classifier of square pictures with an output {OUTPUT}; send tensors"
            )
        pixels = about.get("preprocessing")
        try:
            if not isinstance(pixels, dict):
                raise TypeError
            both = [np.array(pixels[key], np.float32).reshape(shape[1], 1, 1) for key in ("scale", "shift")]
            scale, shift = (None, None) if pixels["place"] == "inside" else both
            return cls(model.inputs[0].name, shape[1], shape[2], int(pixels["top"]), scale, shift,
                       [str(one) for one in about["classes"]])  # fmt: skip
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(
                f"{name} has no preprocessing or classes in its metadata, so it does not take pictures; "
                "export it again with `chronograd export`, or send tensors"
            ) from None

    def read(self, content: bytes, hold: Callable[[int], None] = lambda count: None) -> Array:
        """Return a picture file as input of the model, with one row. Raises ProtocolError; `hold` is as for `pictures.read`."""

        def make(picture: Any) -> Array:
            from chronograd.data import folders  # imports Pillow

            longer, shorter = max(picture.size), min(picture.size)
            if self.side * self.side * longer > pictures.MAX_PIXELS * shorter:
                raise ProtocolError(
                    f"a picture of {' x '.join(map(str, picture.size))} pixels is too narrow to resize", 413
                )
            return folders.pixels_of(picture, self.side, self.channels)

        pixels_CHW = pictures.read(content, make, hold)
        if self.top != 255:
            pixels_CHW = np.rint(pixels_CHW * (self.top / 255)).astype(np.uint8)
        if self.scale is None or self.shift is None:
            return pixels_CHW[None]
        return np.ascontiguousarray(pixels_CHW * self.scale - self.shift, np.float32)[None]

    def labels(self, logits_K: Array) -> list[dict[str, Any]]:
        """Return the classes with their probabilities, at most `MAX_CLASSES`, the most likely first."""
        exponents_K = np.exp(logits_K.astype(np.float64) - logits_K.max())
        probabilities_K = exponents_K / exponents_K.sum()
        best = np.argsort(-probabilities_K, kind="stable")[:MAX_CLASSES]
        names = self.classes if len(self.classes) == len(logits_K) else [str(k) for k in range(len(logits_K))]
        return [{"label": names[k], "probability": round(float(probabilities_K[k]), 6)} for k in best]
