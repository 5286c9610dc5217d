"""Non-maximum suppression inside an exported detector: its graph then answers with boxes, labels and scores.

Its standard operators do the same as `detect.suppression.detections`. ONNX's NonMaxSuppression has no limit of candidates, so each
class of each picture is an entry of its batch, with its best candidates only. If the pictures of a batch have different numbers of
objects, rows of zeros follow the objects; label 0 is the background. `suppression.onnxtxt` is the graph in ONNX's own syntax, for
P priors, L labels, T candidates of each class and M of a picture.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import torch

from chronograd.deploy import SUPPRESSED
from chronograd.deploy.export import check_onnx
from chronograd.deploy.parity import Samples, session
from chronograd.detect.suppression import CANDIDATES, MAX_OVERLAP, MIN_CANDIDATE_SCORE, detections
from chronograd.errors import ExportError

RAW = ("all_scores", "all_boxes")


def suppress_inside(path: Path, samples: Sequence[Samples], batch: int) -> int:
    """Append the suppression to a detector's file. Return the number of samples in which its objects equal `detections`.

    Raises: ExportError if they differ in any.
    """
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    graph = model.graph
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = map(_renamed, names)
    for one in (*graph.initializer, *graph.value_info, *graph.output):
        one.name = _renamed(one.name)
    _, num_priors, num_labels = (d.dim_value for d in graph.output[0].type.tensor_type.shape.dim)
    of_class = min(CANDIDATES, num_priors)
    sizes = {"P": num_priors, "L": num_labels, "T": of_class, "M": of_class * (num_labels - 1)}
    text = (resources.files("chronograd.deploy") / "suppression.onnxtxt").read_text(encoding="utf-8")
    added = onnx.parser.parse_graph(Template(text).substitute(sizes, score=MIN_CANDIDATE_SCORE, overlap=MAX_OVERLAP))
    outside = {*RAW, *SUPPRESSED}
    for node in added.node:
        for names in (node.input, node.output):
            names[:] = [name if name in outside else f"suppression/{name}" for name in names]
    graph.node.extend(added.node)
    graph.output.extend(added.output)
    onnx.save(model, str(path))
    same, total = _compared(path, samples, batch)
    if same < total:
        raise ExportError(
            f"in {total - same} of {total} samples, ONNX Runtime's suppression gives other objects than Chronograd's",
            "export without --with-suppression",
        )
    del graph.output[: len(RAW)]
    onnx.save(model, str(path))
    check_onnx(path)
    return total


def _renamed(name: str) -> str:
    """Return a new name for a value whose name the suppression needs."""
    return f"all_{name}" if name in SUPPRESSED else name


def _compared(path: Path, samples: Sequence[Samples], batch: int) -> tuple[int, int]:
    """Return the number of samples with the same objects, and of all samples."""
    running, same, total = session(path), 0, 0
    port = running.get_inputs()[0].name
    for fed in (part for one in samples for part in one.fed.split(batch)):
        outputs = running.run([*RAW, *SUPPRESSED], {port: fed.numpy()})
        for raw_scores, raw_boxes, boxes, labels, scores in zip(*map(torch.from_numpy, outputs), strict=True):
            own, count = detections(raw_scores, raw_boxes), int((labels > 0).sum())
            pairs = ((own.boxes_D4, boxes), (own.labels_D, labels), (own.scores_D, scores))
            same += all(torch.equal(ours, theirs[:count]) for ours, theirs in pairs)
            total += 1
    return same, total
