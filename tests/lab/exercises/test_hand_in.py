"""Hand-in archives: an executed notebook per problem with labelled parts, stored plots, and data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from chronograd import __version__
from chronograd.cli.main import main
from chronograd_lab.common.results import Results
from chronograd_lab.exercises import enclosed
from chronograd_lab.exercises.cells import CodeCell, cells
from chronograd_lab.exercises.hand_in import hand_in
from chronograd_lab.exercises.notebooks import NOT_YET, ProblemNotebook
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import Exercise, catalogue, label
from chronograd_lab.exercises.wheel import wheel_name, write_wheel

STUDIES = Path(__file__).parents[3] / "docs" / "studies"


def one_problem(number: str) -> Exercise:
    """Return an exercise reduced to its first problem."""
    exercise = catalogue().handed_in()[number]
    return replace(exercise, problems=exercise.problems[:1])


def opened(archive: Path, folder: Path) -> dict[str, nbformat.NotebookNode]:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    notebooks = {path.name: nbformat.read(path, as_version=4) for path in sorted(folder.glob("*.ipynb"))}
    for notebook in notebooks.values():
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
        assert not any(output.output_type == "error" for cell in code for output in cell.outputs)
    return notebooks


def text_of(notebook: nbformat.NotebookNode) -> str:
    return "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")


@pytest.mark.slow
def test_notebook_has_parts_answers_plots_and_data(tmp_path: Path) -> None:
    exercise, library = one_problem("3"), Library(STUDIES)
    written = hand_in(exercise, "ab1234", library, tmp_path / "mine.zip")
    assert written.notebooks == ["ab1234_hw7_p1.ipynb"]
    (note,) = written.notes
    assert note.startswith("fine-tuned.onnx, the detector of the reported precisions, is not in the archive")
    ((_, notebook),) = opened(tmp_path / "mine.zip", tmp_path / "out").items()
    text = text_of(notebook)
    for question in catalogue().of(exercise, 1):
        assert f"## {label(question)}. {question.asks}" in text
        assert f"**Answer.** {library.answer(question)}" in text
    drawn = [
        o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if "image/svg+xml" in o.get("data", {})
    ]
    assert len(drawn) == 2  # one of the study, one of the concept page
    assert not any("**Answer.**" in cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert Results.load(tmp_path / "out" / "data" / "staleness.json") == library.study("staleness").results
    assert "## Sources" in text
    assert "](../" not in text


@pytest.mark.slow
def test_missing_results_are_reported_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "studies").mkdir()
    written = hand_in(one_problem("2"), "ab", Library(tmp_path / "studies"), tmp_path / "mine.zip")
    assert any(note.startswith("Part 2.1.1 lacks something:") and "horovod-scaling" in note for note in written.notes)
    ((_, notebook),) = opened(tmp_path / "mine.zip", tmp_path / "out").items()
    text = text_of(notebook)
    assert text.count("Part 2.1.1 lacks something:") == 1
    assert "The computation of this part is left out: " in text
    assert "It is strong scaling if the effective batch stays" in text  # papers answer this part


@pytest.mark.slow
@pytest.mark.onnx
@pytest.mark.serve  # a package that a cell needs and that the marks hide leaves the cell out
def test_unanswered_problems_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.zip"
    assert (
        main(["hand-in", "--exercise", "3", "--id", "x.y-1", "--studies", str(STUDIES), "--out", str(out), "--json"])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert (printed["archive"], printed["notebooks"]) == (str(out), [f"x.y-1_hw7_p{n}.ipynb" for n in range(1, 6)])
    (note,) = printed["notes"]
    assert note.startswith("fine-tuned.onnx, the detector of the reported precisions, is not in the archive")
    notebooks = opened(out, tmp_path / "out")
    assert list(notebooks) == printed["notebooks"]
    unpacked = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"trained-here.onnx", "sagemaker.json", "vertex.json", "azureml.yaml", "platforms.json"} <= unpacked
    for number in (3, 4, 5):
        notebook = notebooks[f"x.y-1_hw7_p{number}.ipynb"]
        parts = [part for part in catalogue().of(catalogue().handed_in()["3"], number) if not part.answers]
        assert text_of(notebook).count("not answered yet") == len(parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exercise", "1", "--id", "../me"], "id '../me' stands in names of files"),
        (["--exercise", "1", "--id", "me", "--studies", "none"], "--studies none is no folder"),
        (["--exercise", "4", "--id", "me"], "'4' is not one of"),
    ],
)
def test_invalid_input_writes_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["hand-in", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unanswered_question_is_reported(tmp_path: Path) -> None:
    answered = next(one for one in catalogue().questions if one.answers)
    notebook = ProblemNotebook(tmp_path / "a.ipynb", Library(STUDIES), [CodeCell("", ""), CodeCell("0.0", "1 / 0")])
    (only,) = notebook._part(replace(answered, answers=()))
    assert NOT_YET in only.source


def test_cells_that_lack_something_are_left_out(tmp_path: Path) -> None:
    (question,) = catalogue().of(catalogue().handed_in()["3"], 1)
    sources = ["1 + 1", 'results("staleness")', "import no_such", 'results("alexnet")']
    code = [CodeCell("", ""), *(CodeCell("3.1", source) for source in sources)]
    shutil.copytree(STUDIES / "staleness", tmp_path / "staleness")
    notebook = ProblemNotebook(tmp_path / "a.ipynb", Library(tmp_path), code, incomplete={"staleness"})
    left_out = "The computation of this part is left out: "
    assert [cell.source for cell in notebook._computed(question)] == [
        "1 + 1",
        f"{left_out}the results of staleness lack a section.",
        f"{left_out}it needs no_such, not installed here.",
        f"{left_out}{tmp_path} has no results of study alexnet.",
    ]


@pytest.mark.slow
def test_failed_computation_is_reported(tmp_path: Path) -> None:
    code = [CodeCell("", "x = 1"), CodeCell("3.1", "x / 0")]
    notebook = ProblemNotebook(tmp_path / "a.ipynb", Library(STUDIES), code)
    notebook.write("Problem 1", "me", catalogue().of(catalogue().handed_in()["3"], 1))
    assert notebook.notes == ["A computation of Problem 1 failed: ZeroDivisionError: division by zero."]


def built(tmp_path: Path) -> list[tuple[str, list[nbformat.NotebookNode]]]:
    """Return the cells of every notebook, not executed, by exercise and problem."""
    library, notebooks = Library(STUDIES), []
    for exercise in catalogue().handed_in().values():
        for number, title in enumerate(exercise.problems, 1):
            code = cells(exercise.number, number)
            notebook = ProblemNotebook(tmp_path / "a.ipynb", library, code)
            built_cells = notebook.build(title, "me", catalogue().of(exercise, number))
            notebooks.append((f"{exercise.number}.{number}", built_cells))
    return notebooks


def test_notebooks_are_short_and_state_each_thing_once(tmp_path: Path) -> None:
    for name, notebook_cells in built(tmp_path):
        text = [cell.source for cell in notebook_cells if cell.cell_type == "markdown"]
        assert sum(len(source.split()) for source in text) <= 2500, name
        statements = [s for source in text for s in re.split(r"(?<=[.?!])\s+|\n{2,}", source) if len(s.split()) > 6]
        repeated = [s for s, count in Counter(statements).items() if count > 1 and "is left out" not in s]
        assert not [s for s in repeated if not s.startswith("- ")], name


def test_repeated_sentence_is_left_out(tmp_path: Path) -> None:
    notebook = ProblemNotebook(tmp_path / "a.ipynb", Library(STUDIES), [CodeCell("", "")])
    assert notebook._once("A ring passes every part on once per step. So it is fast.") != ""
    again = "In a ring, n steps follow each other. A ring passes every part on once per step. So it is fast."
    assert notebook._once(again) == "In a ring, n steps follow each other. So it is fast."


def test_archive_brings_code_wheel_and_logs(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "transfer" / "runs" / "all" / "seed-0"
    (run / "checkpoints").mkdir(parents=True)
    (run / "job.yaml").write_text(f"weights: {tmp_path}/runs/transfer/runs/pretraining")
    (run / "checkpoints" / "weights.safetensors").write_text("large")
    note = "fine-tuned.onnx is not in the archive"
    enclosed.after(
        tmp_path, catalogue().handed_in()["1"], ["me_hw4_p1.ipynb"], ["transfer", "depth-and-device"], [note]
    )
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    code = {"code/studies/transfer/study.py", "code/studies/depth_and_device/optimus_chain.py", "code/common/runner.py"}
    assert files >= {*code, "logs/transfer/all/seed-0/job.yaml", wheel_name(), "requirements.txt"}
    assert not [name for name in files if "checkpoints" in name or name.startswith("runs/")]
    job = (tmp_path / "logs/transfer/all/seed-0/job.yaml").read_text()
    assert job == "weights: runs/transfer/runs/pretraining"
    assert (tmp_path / "requirements.txt").read_text() == f"./{wheel_name()}[vision,report]\n"
    readme = (tmp_path / "README.md").read_text()
    assert note in readme
    assert "me_hw4_p1.ipynb" in readme


def test_missing_files_come_with_the_command_that_makes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOGRAD_MEASURED", raising=False)
    exercises, library = catalogue().handed_in(), Library(STUDIES)
    (logs,) = enclosed.before(tmp_path, exercises["1"], library)
    (detector,) = enclosed.before(tmp_path, exercises["3"], library)
    assert "The full logs of problem 4 are not in the archive" in logs
    assert "chronograd study run detection-transfer --size evening" in detector
    assert not list(tmp_path.iterdir())


def test_logs_and_fine_tuned_detector_are_enclosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies, measured, folder = tmp_path / "studies", tmp_path / "measured", tmp_path / "archive"
    shutil.copytree(STUDIES / "detection-transfer", studies / "detection-transfer")
    (studies / "detection-transfer" / "fine-tuned.onnx").write_bytes(b"weights")
    log = measured / "resnet_cifar10_k80_p100_v100" / "history18_K80.json"
    log.parent.mkdir(parents=True)
    log.write_text("{}")
    folder.mkdir()
    monkeypatch.setenv("CHRONOGRAD_MEASURED", str(measured))
    exercises = catalogue().handed_in()
    assert not [note for number in ("1", "3") for note in enclosed.before(folder, exercises[number], Library(studies))]
    assert (folder / "logs" / "published" / "history18_K80.json").read_text() == "{}"
    assert (folder / "fine-tuned.onnx").read_bytes() == b"weights"


def test_wheel_is_the_installed_package(tmp_path: Path) -> None:
    path = write_wheel(tmp_path)
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        record = wheel.read(f"chronograd-{__version__}.dist-info/RECORD").decode()
        metadata = wheel.read(f"chronograd-{__version__}.dist-info/METADATA").decode()
        for line in record.splitlines()[:-1]:
            name, digest, size = line.split(",")
            content = wheel.read(name)
            sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(content))
    assert "Requires-Dist: numpy" in metadata
    assert {"chronograd/__init__.py", "chronograd_lab/exercises/questions.toml"} <= set(names)
    assert "chronograd_lab/exercises/studies/transfer/results.json" in names
    assert "chronograd_lab/exercises/concepts/staleness.md" in names or any("/concepts/" in name for name in names)
    assert not [name for name in names if "__pycache__" in name or "direct_url" in name]


def test_published_results_fill_a_folder_of_studies(tmp_path: Path) -> None:
    shutil.copytree(STUDIES / "staleness", tmp_path / "staleness")
    library = Library(tmp_path, otherwise=STUDIES)
    assert library.study("staleness").file == tmp_path / "staleness" / "results.json"
    assert library.study("transfer").file == STUDIES / "transfer" / "results.json"
