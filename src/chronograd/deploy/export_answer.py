"""The work and the answer of `export`: an ONNX file of a network, compared with PyTorch, and optionally one with eight-bit
weights.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy import stats

from chronograd.answer import Answer, Section, Table
from chronograd.deploy import parity as parities
from chronograd.deploy import quantise
from chronograd.deploy.export import EXAMPLES, OPSET, OPSETS, Graph, read_graph, require_onnx, write_onnx
from chronograd.deploy.export_source import ExportSource, Preprocessed, Preprocessing
from chronograd.deploy.parity import OutputDifference, Parity, Samples, Tolerance
from chronograd.deploy.quantise import How, ModelScore, Speed
from chronograd.deploy.suppression import suppress_inside
from chronograd.detect.suppression import CANDIDATES, MAX_OVERLAP, MIN_CANDIDATE_SCORE
from chronograd.errors import InputError
from chronograd.files import as_asked
from chronograd.train.order import CHUNK
from chronograd.units import memory, percent, seconds, upwards
from chronograd.words import how_many, listed

# Numbers for the comparison of PyTorch and ONNX Runtime: images, and rows of tokens, which take a thousand times as long.
NUM_IMAGES, NUM_ROWS = 64, 4
# Steps that the user of a detector's file has to do, unless the graph includes them.
SUPPRESSION = {"score": MIN_CANDIDATE_SCORE, "overlap": MAX_OVERLAP, "candidates": CANDIDATES}


@dataclass(frozen=True)
class Quantised:
    """The file with eight-bit weights. `before` and `after` are None if the test split is not available."""

    path: Path
    how: How
    graph: Graph
    num_operators: int
    before: ModelScore | None
    after: ModelScore | None
    speed: Speed

    @property
    def changed(self) -> dict[str, float] | None:
        """Return the answers that became wrong (`lost`) and right (`won`); None if answers are not classes.

        `p`: the probability of such an uneven split by chance (McNemar's exact test).
        """
        if self.before is None or self.after is None or self.before.loss is None:
            return None
        before, after = self.before.is_right_N, self.after.is_right_N
        lost, won = int((before & ~after).sum()), int((after & ~before).sum())
        return {"lost": lost, "won": won, "p": float(stats.binomtest(lost, lost + won).pvalue) if lost + won else 1.0}


def export(
    source: ExportSource,
    path: Path,
    *,
    opset: int = OPSET,
    inside: Collection[str] = (),
    batches: Sequence[int] = parities.BATCHES,
    num_samples: int | None = None,
    tolerance: Tolerance = parities.USUAL_TOLERANCE,
    int8: How | None = None,
) -> Answer:
    """Export a network and compare it with PyTorch on random samples and, if available, on those of its test split.

    The file is written only if every value is within the tolerance; otherwise the exit status is 1.

    Args:
        inside: parts of the graph: `preprocessing` (it takes pixels as whole numbers), `suppression` (a detector returns objects).
        num_samples: of each kind; `NUM_IMAGES` or `NUM_ROWS` by default.
        int8: also write FILE-int8.onnx, and report its cost and gain.

    Raises: InputError, ExportError; MissingExtraError.
    """
    require_onnx()
    _check(path, opset, batches, num_samples, tolerance)
    _check_parts(source, inside, int8)
    preprocessing = source.preprocessing() if "preprocessing" in inside else None
    network = source.network if preprocessing is None else Preprocessed(preprocessing, source.network)
    count = num_samples or (NUM_ROWS if source.is_text else NUM_IMAGES)
    random, real = source.random(count, preprocessing), source.real(count, preprocessing)
    samples = [random] if real is None else [random, real]
    with as_asked(path):
        temporary = TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.")
    with temporary as folder:
        aside = Path(folder) / path.name
        graph = write_onnx(network, source.random(EXAMPLES, preprocessing).fed, aside, input_name=_input_name(source, preprocessing),
                           opset=opset, about=_about(source, inside))  # fmt: skip
        parity = parities.compare(aside, source.network, samples, batches=batches, tolerance=tolerance)
        if not parity.failure:
            parity.unsteady = parities.unsteady(source.network, random, max(batches), tolerance)
        quantised, num_suppressed = None, 0
        if parity.holds:
            if int8 is not None:
                quantised = _quantised(source, aside, path, int8, preprocessing, samples[-1], max(batches))
            if "suppression" in inside:
                for one in [aside, *([] if quantised is None else [Path(folder) / quantised.path.name])]:
                    num_suppressed = suppress_inside(one, samples, max(batches))
                graph = read_graph(aside)
            for one in sorted(Path(folder).iterdir(), reverse=True):  # external data before the file that names it
                os.replace(one, path.parent / one.name)
    return _answer(source, path, graph, parity, quantised, preprocessing, num_suppressed)


def _check_parts(source: ExportSource, inside: Collection[str], int8: How | None) -> None:
    """Raise InputError for parts that this network has not, and for eight bits that it cannot have."""
    if int8 == "static" and source.dataset is None:
        raise InputError(
            f"static quantisation needs samples of the training data: {source.why_no_data}",
            "name a data set that is on disk, or write --int8 dynamic",
        )
    if int8 is not None and source.own_inputs is not None:
        raise InputError(
            f"--int8 needs images or text, and {source.name} has its own inputs", "export it without --int8"
        )
    if "suppression" in inside and not source.is_detector:
        raise InputError(f"{source.name} is not a detector, and has no suppression", "export it without it")


def _check(path: Path, opset: int, batches: Sequence[int], num_samples: int | None, tolerance: Tolerance) -> None:
    """Raise InputError for invalid arguments, before anything is built."""
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise InputError(f"cannot write {path}: its folder does not exist", "name a file in a folder that exists")
    if not OPSETS[0] <= opset <= OPSETS[1]:
        raise InputError(f"opset is {opset}", f"PyTorch exports to {OPSETS[0]} … {OPSETS[1]}")
    if not batches or min(batches) < 1 or (num_samples is not None and num_samples < 1):
        raise InputError(
            f"batches of {listed([str(one) for one in batches]) or 'no size'}", "write sizes of at least 1"
        )
    if not (tolerance.rtol >= 0 and tolerance.atol >= 0):
        raise InputError(
            f"the tolerance is rtol {tolerance.rtol}, atol {tolerance.atol}", "write numbers of at least 0"
        )


def _input_name(source: ExportSource, preprocessing: Preprocessing | None) -> str:
    return "tokens" if source.is_text else "images" if preprocessing is None else "pixels"


def _about(source: ExportSource, inside: Collection[str]) -> dict[str, Any]:
    """Return the metadata for the server of the file: its source, and the normalisation of pixels."""
    both = None if source.is_text else source.scale_shift()
    pixels_at, boxes_at = ("inside" if part in inside else "outside" for part in ("preprocessing", "suppression"))
    pixels = None if both is None else {"place": pixels_at, "scale": both[0], "shift": both[1], "top": source.top}
    classes = list(source.class_names) if not source.is_text else []
    return {
        "network": _without_folders(source.job.network.name),
        "weights": source.weights,
        "data": _without_folders(source.card.name),
        "preprocessing": pixels,
        "classes": classes,
        **({"suppression": {"place": boxes_at, **SUPPRESSION}} if source.is_detector else {}),
    }


def _without_folders(name: str) -> str:
    """Remove local folders of a network's file or a set's pictures, which do not concern others.

    >>> _without_folders("/home/me/nets.py:Small"), _without_folders("voc:~/VOC2007"), _without_folders("torchvision:resnet18")
    ('nets.py:Small', 'voc:VOC2007', 'torchvision:resnet18')
    """
    return re.sub(r"(?<![^:])[^:]*/", "", name)


def _quantised(
    source: ExportSource,
    aside: Path,
    path: Path,
    how: How,
    preprocessing: Preprocessing | None,
    samples: Samples,
    batch: int,
) -> Quantised:
    """Write the file with eight-bit weights next to the other, and measure both."""
    out = aside.with_name(f"{path.stem}-int8{path.suffix or '.onnx'}")
    is_raw = preprocessing is not None
    calibration = source.train_input() if how == "static" else None
    num_operators = quantise.quantise(aside, out, how, calibration, is_raw)
    before = after = None
    if source.dataset is not None:
        before, after = (score_of(source, one, is_raw) for one in (aside, out))
    repeated = np.resize(samples.fed.numpy(), (batch, *samples.fed.shape[1:]))
    graph = read_graph(out)
    return Quantised(
        path.with_name(out.name), how, graph, num_operators, before, after, quantise.race(aside, out, repeated)
    )


def score_of(source: ExportSource, path: Path, is_raw: bool = False) -> ModelScore:
    """Return the accuracy of a file on the test split, which is on disk."""
    assert source.dataset is not None
    test = source.test_input()
    if source.is_detector:
        return quantise.precision(path, test, source.dataset, is_raw)
    labels = source.dataset.test_labels_N.numpy()
    return quantise.score(path, test, labels, is_raw, NUM_ROWS if source.is_text else CHUNK)


# -- the answer --------------------------------------------------------------------------------------------


def _answer(
    source: ExportSource,
    path: Path,
    graph: Graph,
    parity: Parity,
    quantised: Quantised | None,
    preprocessing: Preprocessing | None,
    num_suppressed: int,
) -> Answer:
    sections = [_parity_section(parity), _file_section(source, path, graph, parity, preprocessing, num_suppressed)]
    if quantised is not None:
        sections.insert(1, _int8_section(quantised, graph))
    tolerance = parity.tolerance
    notes = [] if source.dataset is not None else [f"compared on random inputs only: {source.why_no_data}"]
    if source.weights.startswith("initial"):
        notes.append(
            "the weights are initial ones: their outputs are near 0, so the comparison shows less than with a trained network"
        )
    return Answer(
        title=f"{source.name} as ONNX",
        asked=[("weights", source.weights), ("tolerance", f"rtol {tolerance.rtol:g}, atol {tolerance.atol:g}")],
        sections=sections,
        data={
            "file": str(path) if parity.holds else None,
            "bytes": graph.num_bytes,
            "opset": graph.opset,
            "inputs": [asdict(port) for port in graph.inputs],
            "outputs": [asdict(port) for port in graph.outputs],
            "operators": dict(graph.operators),
            "preprocessing": preprocessing is not None,
            **({"suppression": True} if num_suppressed else {}),
            "weights": source.weights,
            "parity": parities.data_of(parity),
            "int8": None if quantised is None else _int8_data(quantised),
        },
        notes=notes,
        exit_status=0 if parity.holds else 1,
    )


def _parity_section(parity: Parity) -> Section:
    asked = f"rtol {parity.tolerance.rtol:g} and atol {parity.tolerance.atol:g}"
    if parity.failure:
        takeaway = f"ONNX Runtime fails on a graph that was exported and checked: {parity.failure}."
    elif parity.holds:
        takeaway = f"ONNX Runtime agrees with PyTorch within {asked}; the tightest tolerance that holds is {_tightest(parity)}."
    else:
        beyond = sum(one.num_beyond for one in parity.differences)
        values = sum(one.num_values for one in parity.differences)
        takeaway = (
            f"ONNX Runtime does not agree with PyTorch: {beyond:,} of {values:,} values are beyond {asked}; what would "
            f"hold is {_tightest(parity)}."
        )
    rows = [
        (
            one.output,
            one.kind,
            f"{parity.num_samples[one.kind]:,}",
            f"{one.largest_absolute:.2g}",
            f"{one.largest_relative:.2g}",
            f"{one.largest_ulp:,}",
            "–" if one.tightest is None else f"{one.tightest:.2g}",
            f"{one.num_same:,} of {one.num_rows:,}" if one.num_rows else "",
            "yes" if one.holds else f"no: {one.num_beyond:,}",
        )
        for one in parity.differences
        if one.num_values
    ]
    columns = ("output", "inputs", "samples", "absolute", "relative", "ULP", "of tolerance", "same class", "holds")
    notes = [
        "absolute, relative, ULP: the largest of each; ULP counts steps from one float32 to the next, many near 0",
        "of tolerance: share of the allowed tolerance used",
    ]
    lines = [f"All samples in batches of {listed([str(one) for one in parity.batches])}."]
    lines += [f"{parity.unsteady}."] if parity.unsteady else []
    lines += [_as_rounding(one) for one in parity.differences if not one.holds and one.largest_output]
    return Section(
        "ONNX Runtime and PyTorch",
        takeaway,
        table=Table(columns, rows, {2, 3, 4, 5, 6, 7}, notes, drop=(7, 2)).without_empty_columns() if rows else None,
        lines=list(filter(None, lines)),
        data=[dict(row) for row in parities.data_of(parity)["outputs"]],
    )


def _as_rounding(one: OutputDifference) -> str:
    """Return a sentence if an output exceeds a tolerance only because it is large; else an empty text."""
    share = one.largest_absolute / one.largest_output
    if one.tightest is None or share > parities.OF_ROUNDING:
        return ""
    return (
        f"The errors of {one.output} on {one.kind} inputs are at most {share:.1g} of its largest value, {one.largest_output:.3g}, "
        f"as float32 rounds sums of that size: --atol {upwards(one.needed_atol)} would hold."
    )


def _tightest(parity: Parity) -> str:
    factor = parity.tightest
    if factor is None:
        return "none"
    if factor == 0:
        return "zero: they are equal"
    return f"rtol {upwards(factor * parity.tolerance.rtol)}, atol {upwards(factor * parity.tolerance.atol)}"


def _file_section(source: ExportSource, path: Path, graph: Graph, parity: Parity, preprocessing: Preprocessing | None,
                  num_suppressed: int) -> Section:  # fmt: skip
    written = f"{path} has" if parity.holds else f"{path} was not written; it would have"
    rows = [
        ("opset", str(graph.opset)),
        ("takes", "; ".join(map(str, graph.inputs))),
        ("gives", "; ".join(map(str, graph.outputs))),
        ("operators", f"{sum(graph.operators.values()):,} of {len(graph.operators)} kinds"),
        ("weights", source.weights),
    ]
    if not source.is_text and source.own_inputs is None:
        rows.append(("preprocessing", "inside: pixels as whole numbers" if preprocessing else "outside"))
    if source.is_detector:
        same = (
            f"inside: the objects equal those of Chronograd's suppression in all {how_many(num_suppressed, 'samples')}"
        )
        rows.append(("suppression", same if num_suppressed else "outside"))
    return Section(
        str(path),
        f"{written} {memory(graph.num_bytes)}, passes the checker of ONNX, and takes a batch of any size.",
        table=Table(("graph", ""), rows),
    )


def _int8_section(one: Quantised, graph: Graph) -> Section:
    speed, lines = one.speed, []
    takeaway = (
        f"With eight-bit weights a batch of {speed.batch} takes {percent(speed.ratio, 0)} of the time and the file "
        f"{percent(one.graph.num_bytes / graph.num_bytes, 0)} of the bytes"
    )
    rows: list[tuple[str, ...]] = [
        ("file", memory(graph.num_bytes), memory(one.graph.num_bytes)),
        ("time of a batch", seconds(speed.first_s), seconds(speed.second_s)),
    ]
    if one.before is not None and one.after is not None:
        both = (one.before, one.after)
        points = 100 * (one.after.accuracy - one.before.accuracy)
        name = "mAP" if one.before.loss is None else "accuracy"
        accuracies = [percent(score.accuracy, 2) for score in both]
        takeaway += f"; {name} goes from {' to '.join(accuracies)} ({points:+.2f} percentage points)"
        rows.append((f"{name} on {one.before.num_samples:,}", *accuracies))
        losses = [f"{score.loss:.4f}" for score in both if score.loss is not None]
        if one.changed is not None:
            rows.append(("loss", *losses))
            lines.append(
                "{lost:,} right answers became wrong and {won:,} wrong ones right; chance alone would be as uneven in {p:.0%} of cases.".format(
                    **one.changed
                )
            )
    return Section(
        f"{one.path.name}, {one.how}",
        f"{takeaway}.",
        table=Table(("", "float32", "int8"), rows, {1, 2}),
        lines=[
            *lines,
            f"Ratio of {speed.num_pairs} pairs of passes in turn, {speed.threads} threads: {speed.ratio:.2f}, 80 % "
            f"interval {speed.ratio_low:.2f} … {speed.ratio_high:.2f}.",
        ],
    )


def _int8_data(one: Quantised) -> dict[str, Any]:
    return {
        "file": str(one.path),
        "how": one.how,
        "bytes": one.graph.num_bytes,
        "quantised": one.num_operators,
        "before": _score_data(one.before),
        "after": _score_data(one.after),
        "changed": one.changed,
        "speed": asdict(one.speed),
    }


def _score_data(one: ModelScore | None) -> dict[str, Any] | None:
    return None if one is None else {name: value for name, value in vars(one).items() if name != "is_right_N"}
