"""Average precision by hand, and compared with an independent evaluator."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.detect.test_boxes import boxes

from chronograd.detect.boxes import Detections, Objects
from chronograd.detect.metrics import Metric, average_precisions, mean_average_precision

# The public SSD on MobileNet v1 on VOC 2007 test, 11-point: the README and log of github.com/qfgaohao/pytorch-ssd.
PUBLISHED = [
    *(0.6742, 0.7914, 0.6121, 0.5616, 0.3471, 0.7742, 0.7284, 0.8361, 0.5142, 0.6244),
    *(0.7060, 0.7849, 0.8202, 0.7936, 0.7043, 0.4026, 0.6071, 0.7549, 0.8271, 0.6460),
]  # fmt: skip
METRICS: tuple[Metric, ...] = ("11-point", "area")


def square(number: int, shift: float = 0.0) -> list[float]:
    """Return squares of a tenth that do not touch."""
    x, y = number % 5 / 5, number // 5 / 5
    return [x + shift, y, x + shift + 0.1, y + 0.1]


def objects(numbers: list[int], labels: list[int] | None = None, difficult: tuple[int, ...] = ()) -> Objects:
    return Objects(
        torch.tensor([square(n) for n in numbers]).view(-1, 4),
        torch.tensor(labels or [1] * len(numbers), dtype=torch.int64),
        torch.tensor([n in difficult for n in numbers], dtype=torch.bool),
    )


def detections(rows: list[tuple[list[float], float]], label: int = 1) -> Detections:
    return Detections(
        torch.tensor([box for box, _ in rows]).view(-1, 4),
        torch.tensor([score for _, score in rows]),
        torch.full((len(rows),), label),
    )


@pytest.mark.parametrize(("share", "precision"), [(0.5, 0.0), (0.5625, 1.0)])
def test_half_an_overlap_is_no_hit(share: float, precision: float) -> None:
    """VOC counts a detection as right if the overlap exceeds 0.5. These shares of the unit square are exact."""
    truth = Objects(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([1]), torch.tensor([False]))
    for metric in METRICS:
        part = detections([([0.0, 0.0, 1.0, share], 0.9)])
        assert average_precisions([part], [truth], 1, metric) == pytest.approx([precision])


def test_mean_of_the_published_classes() -> None:
    assert mean_average_precision(PUBLISHED) == pytest.approx(0.6755, abs=5e-5)


@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=50)
@given(some=boxes(least=1, most=5), scores=st.lists(st.floats(0.125, 1, width=32), min_size=5, max_size=5))
def test_perfect_detector(metric: Metric, some: torch.Tensor, scores: list[float]) -> None:
    labels = torch.arange(len(some)) % 2 + 1
    truth = Objects(some, labels, torch.zeros(len(some), dtype=torch.bool))
    # Each class has a separate image, so that no object hides another.
    truths = [Objects(*(t[i : i + 1] for t in truth)) for i in range(len(some))]
    seen = [Detections(t.boxes_G4, torch.tensor(scores[i : i + 1]), t.labels_G) for i, t in enumerate(truths)]
    assert average_precisions(seen, truths, 2, metric) == [1.0, 1.0 if len(some) > 1 else None]


def test_half_of_the_objects_without_errors() -> None:
    """Precision is 1 up to a recall of 1/2 and 0 after: six of eleven points, and half of the area."""
    truths = [objects([0, 1, 2, 3])]
    seen = [detections([(square(0), 0.9), (square(1), 0.8)])]
    assert average_precisions(seen, truths, 1, "11-point") == [pytest.approx(6 / 11)]
    assert average_precisions(seen, truths, 1, "area") == [pytest.approx(0.5)]


def test_recall_threshold_is_free_of_rounding() -> None:
    """Rounding makes 3 · 0.1 larger than 0.3, which would lose one point of eleven."""
    seen = [detections([(square(n), 0.9) for n in range(3)])]
    assert average_precisions(seen, [objects(list(range(10)))], 1, "11-point") == [pytest.approx(4 / 11)]


def test_error_between_two_hits() -> None:
    # right, wrong, right: precision 1 at recall 1/2, 2/3 at recall 1
    seen = [detections([(square(0), 0.9), (square(7), 0.8), (square(1), 0.7)])]
    truths = [objects([0, 1])]
    assert average_precisions(seen, truths, 1, "area") == [pytest.approx(0.5 * 1 + 0.5 * 2 / 3)]
    assert average_precisions(seen, truths, 1, "11-point") == [pytest.approx((6 * 1 + 5 * 2 / 3) / 11)]


def test_second_hit_is_wrong_and_difficult_objects_are_ignored() -> None:
    twice = [detections([(square(0), 0.9), (square(0, 0.01), 0.8), (square(1), 0.7)])]
    assert average_precisions(twice, [objects([0, 1])], 1, "area") == [pytest.approx(0.5 + 0.5 * 2 / 3)]
    # the second object is difficult: its detections are ignored, and it does not count as missed
    seen = [detections([(square(1), 0.95), (square(1, 0.01), 0.94), (square(0), 0.9)])]
    assert average_precisions(seen, [objects([0, 1], difficult=(1,))], 1, "area") == [1.0]
    assert average_precisions([detections([(square(0), 0.9)])], [objects([0, 1], difficult=(1,))], 1, "area") == [1.0]


def test_overlap_must_exceed_one_half() -> None:
    truth = [Objects(torch.tensor([[0.0, 0.0, 0.5, 0.5]]), torch.tensor([1]), torch.tensor([False]))]
    for height, expected in ((0.25, 0.0), (0.26, 1.0)):  # overlaps of 0.5 and 0.52
        seen = [detections([([0.0, 0.0, 0.5, height], 0.9)])]
        assert average_precisions(seen, truth, 1, "area") == [expected]


def test_class_without_objects_has_no_precision() -> None:
    seen = [detections([(square(0), 0.9)], label=2)]
    assert average_precisions(seen, [objects([0])], 2, "area") == [0.0, None]
    assert mean_average_precision([None]) is None


def drawn_detections(seed: int) -> tuple[list[Detections], list[Objects]]:
    """Return images of objects that do not touch, some difficult, with correct and wrong detections."""
    random = np.random.RandomState(seed)
    seen, truths = [], []
    for _ in range(12):
        numbers = random.permutation(25)[: random.randint(0, 8)].tolist()
        difficult = tuple(n for n in numbers if random.random_sample() < 0.15)
        truths.append(objects(numbers, random.randint(1, 4, len(numbers)).tolist(), difficult))
        label_of = dict(zip(numbers, truths[-1].labels_G.tolist(), strict=True))
        # A second hit on a difficult object is an error to pycocotools, and counts as neither in VOC.
        again = [n for n in numbers if n not in difficult][:3]
        beside = [n for n in random.randint(0, 25, 4).tolist() if n not in difficult]
        places = [*numbers, *again, *beside]
        rows = [square(n, random.uniform(-0.05, 0.05)) for n in places]
        labels = [*(label_of[n] for n in [*numbers, *again]), *random.randint(1, 4, len(beside)).tolist()]
        seen.append(
            Detections(
                torch.tensor(rows).view(-1, 4),
                torch.tensor(random.random_sample(len(rows)), dtype=torch.float32),
                torch.tensor(labels, dtype=torch.int64),
            )
        )
    return seen, truths


@pytest.mark.parametrize("metric", METRICS)
def test_order_of_images_and_detections_is_irrelevant(metric: Metric) -> None:
    seen, truths = drawn_detections(0)
    expected = average_precisions(seen, truths, 3, metric)
    turned = [Detections(*(t.flip(0) for t in one)) for one in reversed(seen)]
    assert average_precisions(turned, truths[::-1], 3, metric) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_area_matches_pycocotools(seed: int) -> None:
    """The area equals its mean precision at ten thousand recall points instead of 101, within one step."""
    coco = pytest.importorskip("pycocotools.coco", exc_type=ImportError)
    from pycocotools.cocoeval import COCOeval

    seen, truths = drawn_detections(seed)
    annotations, results = [], []
    for image, (mine, there) in enumerate(zip(seen, truths, strict=True), 1):
        for box, label, is_difficult in zip(*(t.tolist() for t in there), strict=True):
            # Objects outside the size range are ignored.
            area = 1e11 if is_difficult else 1e4
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": label, "area": area}
                | {"bbox": _coco(box), "iscrowd": 0}
            )
        for box, score, label in zip(*(t.tolist() for t in mine), strict=True):
            results.append({"image_id": image, "category_id": label, "bbox": _coco(box), "score": score})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": i + 1, "width": 1000, "height": 1000} for i in range(len(seen))],
            "annotations": annotations,
            "categories": [{"id": k, "name": str(k)} for k in (1, 2, 3)],
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.recThrs = np.linspace(0, 1, 10_001)
        evaluation.params.maxDets = [1, 10, 1000]
        evaluation.evaluate()
        evaluation.accumulate()
    theirs = evaluation.eval["precision"][0, :, :, 0, 2].mean(axis=0)
    assert average_precisions(seen, truths, 3, "area") == pytest.approx(theirs.tolist(), abs=2e-3)


def _coco(box: list[float]) -> list[float]:
    left, top, right, bottom = (1000 * side for side in box)
    return [left, top, right - left, bottom - top]


def test_more_errors_never_raise_the_precision() -> None:
    truths = [objects([0, 1, 2])]
    rows = [(square(0), 0.9), (square(1), 0.8), (square(2), 0.7)]
    wrong = [(square(10 + n), 0.85) for n in range(4)]
    for metric in METRICS:
        precisions = [average_precisions([detections(rows + wrong[:n])], truths, 1, metric)[0] for n in range(5)]
        assert all(a is not None and b is not None and a > b for a, b in pairwise(precisions))
