"""A detector as an ONNX file: its outputs and objects compared with PyTorch's, and the objects that a server answers."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from chronograd.deploy import export_source
from chronograd.deploy import parity as parities
from chronograd.deploy.export_answer import export, score_of
from chronograd.deploy.parity import Samples, Tolerance
from chronograd.deploy.timing import serving
from chronograd.detect.annotating import MIN_DRAWN_SCORE
from chronograd.detect.boxes import Detections
from chronograd.detect.suppression import detections
from chronograd.rundir import RunDir
from chronograd_lab.common.results import Row

# Objects of one class whose corners differ by less than this, in sides of the picture, are the same. The server reads the picture
# file with Pillow, which scales it a little differently.
SAME_CORNERS, SAME_IN_SERVER = 1e-3, 2e-2
BATCHES = (1, 8)
ALL_PICTURES = "all test pictures"


def in_onnx_runtime(run: RunDir, chosen: Mapping[str, tuple[int, Path]], names: Sequence[str]) -> dict[str, Any]:
    """Export a run's detector without and with suppression, and compare both files with PyTorch.

    Args:
        chosen: the number and the file of test pictures, by name. names: of the classes.

    Returns: `file`: figures of the files. `outputs`: rows of differences. `objects`: rows of equal objects, in all test pictures and
        in each chosen one, there also as served. `found`: by name, boxes, scores and labels from ONNX Runtime.
    """
    with TemporaryDirectory() as folder:
        path, inside = (Path(folder) / f"{name}.onnx" for name in ("detector", "detector-with-suppression"))
        source = export_source.of_run(run)
        seen = source.test_input()
        pictures = [seen.prepare(seen.gather(np.array([number]))) for number in range(len(seen))]
        # This writes the files whatever the error: its size is the question here.
        asked: dict[str, Any] = {"num_samples": len(seen), "tolerance": Tolerance(atol=math.inf)}
        file = export(source, path, **asked).data
        export(source, inside, inside=["suppression"], **asked)
        fed = {ALL_PICTURES: torch.cat(pictures), **{name: pictures[number] for name, (number, _) in chosen.items()}}
        samples = [Samples(kind, images, images) for kind, images in fed.items()]
        parity = parities.compare(path, source.network, samples, batches=BATCHES)
        running, pairs = parities.session(path), list[tuple[Detections, Detections]]()
        for picture in pictures:
            outputs = map(torch.from_numpy, running.run(None, {running.get_inputs()[0].name: picture.numpy()}))
            ours, theirs = (detections(*(one[0] for one in both)) for both in (source.network(picture), outputs))
            pairs.append((ours, theirs))
        objects, found = [{"where": ALL_PICTURES, **_compared(pairs, SAME_CORNERS)}], {}
        with serving(inside) as url:
            for name, (number, picture_file) in chosen.items():
                ours, runtime = map(_drawn, pairs[number])
                served = _answer(f"{url}/v2/models/{inside.stem}", picture_file, names)
                in_server = _compared([(runtime, served)], SAME_IN_SERVER)
                objects.append({"where": name, **_compared([(ours, runtime)], SAME_CORNERS), "served": in_server})
                found[name] = [part.tolist() for part in runtime]
        return {
            "file": {"bytes": file["bytes"], "opset": file["opset"], "map": score_of(source, path).accuracy},
            "outputs": parities.data_of(parity)["outputs"], "objects": objects, "found": found,
        }  # fmt: skip


def _drawn(found: Detections) -> Detections:
    """Return the objects with scores that are drawn."""
    return Detections(*(part[found.scores_D >= MIN_DRAWN_SCORE] for part in found))


def _answer(model_url: str, picture: Path, names: Sequence[str]) -> Detections:
    """Return the objects that a server detects in a picture file, with corners in sides of the picture."""
    open_ = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # the server is on this machine
    with open_(f"{model_url}/detect?least={MIN_DRAWN_SCORE}", picture.read_bytes()) as answer:
        content = json.load(answer)
    size = torch.tensor([content["width"], content["height"]] * 2)
    boxes, scores, labels = ([one[key] for one in content["objects"]] for key in ("box", "score", "label"))
    numbers = [1 + names.index(label) for label in labels]
    return Detections(torch.tensor(boxes).reshape(-1, 4) / size, torch.tensor(scores), torch.tensor(numbers))


def _compared(pairs: Sequence[tuple[Detections, Detections]], within: float) -> Row:
    """Return the number of objects, of those that are the same in both, and the largest differences of corners and scores."""
    objects, same, corners, scores = 0, 0, 0.0, 0.0
    for one, other in pairs:
        objects += max(len(one.labels_D), len(other.labels_D))
        if len(one.labels_D) and len(other.labels_D):
            corners_DE = (one.boxes_D4[:, None] - other.boxes_D4[None]).abs().amax(2)
            corners_DE[one.labels_D[:, None] != other.labels_D[None]] = math.inf
            apart_D, nearest_D = corners_DE.min(1)
            kept_D = torch.nonzero(apart_D < within)[:, 0]
            same += len(kept_D)
            corners = max([corners, *apart_D[kept_D].tolist()])
            scores = max([scores, *(one.scores_D - other.scores_D[nearest_D]).abs()[kept_D].tolist()])
    return {"pictures": len(pairs), "objects": objects, "same": same, "corners": corners, "scores": scores}
