"""The cells of each problem run by themselves on the data of the archive, and compute the numbers of the studies' pages."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import matching
from chronograd_lab.exercises import enclosed, problems
from chronograd_lab.exercises.cells import TRAINED_WITH, CodeCell, cells
from chronograd_lab.exercises.problems import SMALL, data_names
from chronograd_lab.exercises.questions import catalogue
from chronograd_lab.studies import find

STUDIES = Path(__file__).parents[3] / "docs" / "studies"
# Cells that train do so for a moment here, and for longer in a notebook.
SHORT: dict[str, dict[str, Any]] = {
    **{study: {"epochs": 1} for study in ("exploration", "dqn-ablation", "prioritised-replay")},
    "detection-transfer": {"half": 16, "first": {"epochs": 2, "learning_rate": 0.004}, "second": {"epochs": 1, "learning_rate": 0.002}},
}  # fmt: skip
PROBLEMS = [(e.number, p) for e in catalogue().handed_in().values() for p in range(1, len(e.problems) + 1)]
# Problems whose cells train.
SLOW = {
    ("1", 1): [pytest.mark.slow],
    ("1", 2): [pytest.mark.slow],
    ("2", 4): [pytest.mark.slow],
    ("3", 3): [pytest.mark.slow, pytest.mark.onnx, pytest.mark.serve],
    ("3", 4): [pytest.mark.slow, pytest.mark.gymnasium, pytest.mark.ray],
}


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
def output(question: str) -> str:
    """Run the cell of a question after the first one of its problem alone. Return the printed text."""
    first, *others = cells(*_problem(question))
    return next(_printed(first, cell) for cell in others if cell.question == question)


def _problem(question: str) -> tuple[str, int]:
    exercise, problem, *_ = question.split(".")
    return exercise, int(problem)


def _printed(*run: CodeCell) -> str:
    names: dict[str, Any] = {}
    trained = problems.trained
    with redirect_stdout(StringIO()) as text, pytest.MonkeyPatch.context() as patch:
        patch.setattr(problems, "trained", lambda study, **changes: trained(study, **changes | SHORT.get(study, {})))
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
    assert all(output(cell.question) for cell in cells(exercise, problem)[1:])


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


@pytest.mark.parametrize(
    ("question", "pattern", "expected", "tolerance"),
    [pytest.param(*row, marks=SLOW.get(_problem(row[0]), ()), id=row[0]) for row in HEADLINES],
)
@pytest.mark.filterwarnings("default")
def test_cells_compute_the_numbers_of_the_pages(
    question: str, pattern: str, expected: Callable[[], float], tolerance: float
) -> None:
    *_, number = re.findall(pattern, output(question).rstrip())  # a cell that trains shows the full results last
    assert float(number.replace(",", "")) == pytest.approx(float(expected()), abs=tolerance)


def test_missing_packages_are_listed() -> None:
    assert CodeCell("", "import numpy\nimport no_such.part as x").missing_packages == ["no_such"]


def test_agents_on_ray_need_it() -> None:
    assert TRAINED_WITH["gorila-and-apex"] == ("gymnasium", "ray")
    assert "ray" in enclosed.EXTRAS["3"].split(",")


def test_packages_of_a_trained_study_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAINED_WITH, "cutout", ("numpy", "no_such"))
    assert CodeCell("2.4.1", 'for study in (trained("cutout"), results("cutout")):').missing_packages == ["no_such"]


# The parts that train, and their study.
TRAINED = {
    "transfer": ["1.1.1b", "1.1.1c", "1.1.2a", "1.1.2b"],
    "teacher-student": ["1.2.1", "1.2.3a", "1.2.3b", "1.2.3d"],
    "weak-labels": ["1.2.2a", "1.2.2b"],
    "cutout": ["2.4.1"],
    "batch-augmentation": ["2.4.2", "2.4.3"],
    "detection-transfer": ["3.3.1", "3.3.2", "3.3.3", "3.3.6", "3.3.8"],
    "exploration": ["3.4.2"],
    "dqn-ablation": ["3.4.4", "3.4.5"],
    "prioritised-replay": ["3.4.6"],
    "gorila-and-apex": ["3.4.7"],
}


def test_parts_that_train_name_the_command_of_the_full_size() -> None:
    of_problems = [cell for exercise, problem in PROBLEMS for cell in cells(exercise, problem)]
    for study, questions in TRAINED.items():
        training = [cell for cell in of_problems if cell.question and study in cell.trained_studies]
        assert [cell.question for cell in training] == questions
        size = of(study).size
        for cell in training:
            source = cell.with_commands({name: of(name).size for name in cell.trained_studies}).source
            assert f"# Full size: chronograd study run {study} --size {size}\n" in source


def test_small_sizes_need_no_data_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_DATA", raising=False)
    for study in TRAINED:
        small = find(study).sizes[SMALL]
        assert all(name in ("digits", "discs") or _is_generated(name) for name in data_names(small)), study


def _is_generated(name: str) -> bool:
    return name.startswith(("gymnasium:", "synthetic"))


def test_missing_data_of_the_full_size_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = find("detection-transfer")
    monkeypatch.setattr(problems, "find", lambda _: replace(study, conduct=lambda runner, settings: None))
    monkeypatch.setattr(problems, "_REPORTED", set())
    monkeypatch.delenv("CHRONOGRAD_DATA", raising=False)
    problems.trained("detection-transfer")
    assert capsys.readouterr().out.startswith("Size evening needs voc:bccd, not available here.")
    problems.trained("detection-transfer")
    assert capsys.readouterr().out == ""
