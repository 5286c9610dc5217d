"""The cells of each problem run by themselves on the data of the archive, and compute the numbers of the studies' pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.exercises.cells import CodeCell, cells
from chronograd_lab.exercises.questions import catalogue

STUDIES = Path(__file__).parents[3] / "docs" / "studies"
PROBLEMS = [(e.number, p) for e in catalogue().handed_in().values() for p in range(1, len(e.problems) + 1)]
SLOW = {("3", 3): (pytest.mark.slow, pytest.mark.onnx), ("3", 4): (pytest.mark.slow,)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    (folder / "data").mkdir()
    for file in STUDIES.glob("*/results.json"):
        shutil.copyfile(file, folder / "data" / f"{file.parent.name}.json")
    return folder


@pytest.fixture(autouse=True)
def unpacked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)


@cache
def output(exercise: str, problem: int) -> dict[str, str]:
    """Run each cell of a problem after the first one alone. Return the printed text by question."""
    first, *others = cells(exercise, problem)
    return {cell.question: _printed(first, cell) for cell in others}


def _printed(*run: CodeCell) -> str:
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as text:
        for cell in run:
            exec(compile(cell.source, cell.question or "first cell", "exec"), names)
    drawn = plt.get_fignums()
    plt.close("all")
    return text.getvalue() or f"{len(drawn)} figures" * bool(drawn)


@pytest.mark.parametrize(
    ("exercise", "problem"), [pytest.param(*one, marks=SLOW.get(one, ()), id=f"{one[0]}.{one[1]}") for one in PROBLEMS]
)
@pytest.mark.filterwarnings("default")
def test_each_cell_runs_after_the_first_one_alone(exercise: str, problem: int) -> None:
    assert all(output(exercise, problem).values())


def test_every_question_has_a_cell_and_every_cell_one_question() -> None:
    for exercise, problem in PROBLEMS:
        first, *others = cells(exercise, problem)
        asked = [question.id for question in catalogue().of(catalogue().handed_in()[exercise], problem)]
        answered = [next(one for one in asked if f"{cell.question}.".startswith(f"{one}.")) for cell in others]
        assert (first.question, list(dict.fromkeys(answered))) == ("", asked)


def of(study: str) -> Results:
    return Results.load(STUDIES / study / "results.json")


def row(study: str, table: str, **wanted: Any) -> Row:
    return matching(of(study).rows[table], **wanted)[0]


def convolutions(study: str, **wanted: Any) -> tuple[int, int]:
    """Return the MACs of convolutions and of all layers."""
    layers = matching(of(study).rows["layers"], **wanted)
    return sum(one["macs"] for one in matching(layers, kind="convolution")), sum(one["macs"] for one in layers)


def saved() -> float:
    naive, reduced = (convolutions("inception", module=module, side=32)[1] for module in ("naive", "reduced"))
    return 100 * (1 - reduced / naive)


def gb_per_s() -> float:
    points = {"kind": "predicted", "scaling": "weak", "batch_asked": 32, "place": "rtx8000", "of": "data_parallel"}
    part = row("data-parallel", "parts", batch_asked=32, world=2)
    return float(
        part["bytes"] / row("data-parallel", "points", world=2, **points)["communication_by_difference_s"] / 1e9
    )


OPTIMUS = {"rule": "Optimus' coefficients on depth and device", "target": "accuracy 92 %"}
HEADLINES: list[tuple[str, str, Callable[[], float], float]] = [  # question, its printed number, that of the study, tolerance
    ("1.3.2", r"convolutions: ([\d.]+)%", lambda: 100 * np.divide(*convolutions("vgg19-memory")), 0.005),
    ("1.3.4", r"resnet50-v1 .* ([\d,]+) images/s", lambda: 1 / row("inference-ceiling", "ceilings", network="ResNet-50", what="board", clock="boost", per_mac=2)["seconds"], 0.5),
    ("1.4.1", r"ResNet-56 on V100 +b0 ([\d.]+)", lambda: row("depth-and-device", "triples", network="resnet56", run="V100")["plain"][0], 0.003),
    ("1.4.2", r"K80: b0 ([\d.]+)", lambda: row("depth-and-device", "regression", coefficient="b0")["predicted"][0], 0.003),
    ("1.4.2", r"K80: .* ([\d.]+) epochs to 92 %", lambda: row("depth-and-device", "ahead", **OPTIMUS)["epochs"], 0.4),
    ("1.4.3", r"2 servers: .* with (\d+) workers", lambda: row("time-to-accuracy", "optimus_best", batch=128, series="2 servers")["best"], 0),
    ("2.1.1", r"k80-gk210; .*; 8 GPUs: ([\d,]+) images/s", lambda: row("horovod-scaling", "points", series="k80-gk210", world=8)["throughput_samples_per_s"], 0.5),
    ("2.2.3", r"v100, weak .* 16: ([\d.]+)", lambda: row("strong-and-weak", "points", series="v100", scaling="weak", world=16)["cost_usd"], 5e-5),
    ("2.3.2", r"([\d,]+) activations, ", lambda: sum(one["activations"] for one in of("vgg19-memory").rows["layers"]), 0),
    ("2.3.2", r"([\d,]+) weights$", lambda: sum(one["weights"] for one in of("vgg19-memory").rows["layers"]), 0),
    ("2.3.4d", r"([\d.]+)% saved", saved, 0.05),
    ("2.4.3", r"M=1 +([\d.]+)%", lambda: 100 * (1 - np.mean([one["accuracy"] for one in matching(of("batch-augmentation").rows["runs"], arm="M=1")])), 0.005),
    ("3.1", r"mean ([\d.]+)", lambda: np.mean(np.array(of("staleness").curves["exercise"]["staleness"], float)), 0.005),
    ("3.2.4", r"batch +32, 2 GPUs: .* ([\d.]+) GB/s", gb_per_s, 0.005),
]  # fmt: skip


@pytest.mark.parametrize(("question", "pattern", "expected", "tolerance"), HEADLINES, ids=[one[0] for one in HEADLINES])
@pytest.mark.filterwarnings("default")
def test_cells_compute_the_numbers_of_the_pages(
    question: str, pattern: str, expected: Callable[[], float], tolerance: float
) -> None:
    exercise, problem, *_ = question.split(".")
    found = re.search(pattern, output(exercise, int(problem))[question].rstrip())
    assert found is not None
    assert float(found[1].replace(",", "")) == pytest.approx(float(expected()), abs=tolerance)


def test_missing_packages_are_listed() -> None:
    assert CodeCell("", "import numpy\nimport no_such.part as x").missing_packages == ["no_such"]
