"""Detection of objects by a served model: a picture in, boxes with labels and scores out. numpy and Pillow, no torch.

The metadata of a file by `chronograd export` state the normalisation of pixels, the names of the classes and the suppression of
boxes. Scores (P, K + 1) have the background in column 0; boxes (P, 4) are corners in units of the picture. A file whose graph
includes the suppression returns objects instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.deploy import SUPPRESSED, pictures
from chronograd.deploy.model import OnnxModel
from chronograd.deploy.protocol import Array, ProtocolError
from chronograd.detect.formats import turn_of, upright
from chronograd.words import listed

OUTPUTS = ("scores", "boxes")
BILINEAR = 2  # Pillow's Image.Resampling.BILINEAR; Pillow is imported only to read pictures
MIN_ANSWERED_SCORE = 0.3  # default minimum score of an answered object


@dataclass(frozen=True)
class DetectorFormat:
    """The input format of a model, and the reading of its answer.

    Attributes:
        scale, shift: its input is `pixel * scale - shift`, per channel; None if it takes pixels.
        overlap: a box with a larger intersection over union with a better box of its class is left out.
        candidates: number of the best boxes of each class.
        outputs: of the model that `objects` reads.
    """

    input: str
    height: int
    width: int
    scale: Array | None
    shift: Array | None
    classes: list[str]
    overlap: float
    candidates: int
    outputs: tuple[str, ...] = OUTPUTS

    @classmethod
    def of(cls, model: OnnxModel) -> DetectorFormat:
        """Return the format of a model. Raises ProtocolError for a model that is not a detector, or whose file lacks the
        metadata.
        """
        about = model.about
        pixels, suppression = about.get("preprocessing"), about.get("suppression")
        shape = model.inputs[0].shape if len(model.inputs) == 1 else ()
        is_of_pictures = len(shape) == 4 and shape[1] == 3 and min(shape[2:]) > 0
        is_inside = isinstance(suppression, Mapping) and suppression.get("place") == "inside"
        outputs = SUPPRESSED if is_inside else OUTPUTS
        if not is_of_pictures or not set(outputs) <= set(model.output_names):
            raise ProtocolError(
                f"{model.path.stem} is not a detection model: it has no outputs {listed(outputs)} of a picture"
            )
        try:
            assert pixels is not None
            assert suppression is not None
            both = [np.array(pixels[name], np.float32)[:, None, None] for name in ("scale", "shift")]
            scale, shift = (None, None) if pixels["place"] == "inside" else both
            classes, overlap, candidates = (
                list(about["classes"]),
                float(suppression["overlap"]),
                int(suppression["candidates"]),
            )
        except (AssertionError, KeyError, TypeError, ValueError):
            raise ProtocolError(
                f"{model.path.stem} has no metadata on the normalisation of pixels and the suppression of boxes; `chronograd export` writes it into a file"
            ) from None
        return cls(model.inputs[0].name, shape[2], shape[3], scale, shift, classes, overlap, candidates, outputs)

    def read(self, content: bytes, hold: Callable[[int], None] = lambda count: None) -> tuple[Array, int, int]:
        """Return a picture file as input of the model, upright, with one row; its width and height. Raises ProtocolError.

        Args:
            hold: called with the bytes of its pixels before they are decoded, and with minus these when they are freed.
        """

        def make(picture: Any) -> tuple[Any, tuple[int, int]]:
            turned = upright(picture.convert("RGB"), turn_of(picture))
            return turned.resize((self.width, self.height), BILINEAR), turned.size

        small, (width, height) = pictures.read(content, make, hold)
        pixels_CHW = np.asarray(small).transpose(2, 0, 1)
        if self.scale is None or self.shift is None:
            return np.ascontiguousarray(pixels_CHW)[None], width, height
        return np.ascontiguousarray(pixels_CHW * self.scale - self.shift, np.float32)[None], width, height

    def objects(self, found: Sequence[Array], width: int, height: int, least: float = MIN_ANSWERED_SCORE) -> list[dict[str, Any]]:  # fmt: skip
        """Return the objects in a picture of this size, highest score first; boxes are left, top, right, bottom in its pixels.

        Args:
            found: the `outputs` of the model for this picture.
        """
        if self.outputs == SUPPRESSED:
            boxes_D4, labels_D, scores_D = found
            likely = np.flatnonzero(scores_D > least)
            rows = [(float(scores_D[i]), int(labels_D[i]), boxes_D4[i]) for i in likely]
        else:
            scores_PC, boxes_P4 = found
            rows = []
            for label in range(1, scores_PC.shape[1]):
                scores_P = scores_PC[:, label]
                likely = np.flatnonzero(scores_P > least)
                best = likely[np.argsort(-scores_P[likely], kind="stable")][: self.candidates]
                chosen = suppressed(boxes_P4, best, self.overlap)
                rows += [(float(scores_P[prior]), label, boxes_P4[prior]) for prior in chosen]
        names = dict(enumerate(self.classes, 1))
        size = np.array([width, height, width, height])
        return [
            {"label": names.get(label, str(label)), "score": round(score, 4), "box": (np.clip(box, 0, 1) * size).round(1).tolist()}
            for score, label, box in sorted(rows, key=lambda one: -one[0])
        ]  # fmt: skip


def suppressed(boxes_P4: Array, best: Array, most_overlap: float) -> list[int]:
    """Return the boxes, best first, that overlap no better box by more than `most_overlap`."""
    areas = np.clip(boxes_P4[:, 2:] - boxes_P4[:, :2], 0, None).prod(axis=1)
    chosen: list[int] = []
    while len(best):
        first, best = best[0], best[1:]
        chosen.append(int(first))
        low, high = (
            np.maximum(boxes_P4[first, :2], boxes_P4[best, :2]),
            np.minimum(boxes_P4[first, 2:], boxes_P4[best, 2:]),
        )
        shared = np.clip(high - low, 0, None).prod(axis=1)
        union = areas[first] + areas[best] - shared
        best = best[np.where(union > 0, shared / np.maximum(union, 1e-12), 0.0) <= most_overlap]
    return chosen
