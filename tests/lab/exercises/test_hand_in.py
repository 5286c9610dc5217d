"""Hand-in archives: an executed notebook per problem with labelled parts, stored plots, and data."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from chronograd.cli.main import main
from chronograd_lab.common.results import Results
from chronograd_lab.exercises.cells import CodeCell
from chronograd_lab.exercises.hand_in import _NOT_YET, _Problem, hand_in
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import Exercise, catalogue, label

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
    assert (written.notebooks, written.notes) == (["ab1234_hw7_p1.ipynb"], [])
    ((_, notebook),) = opened(tmp_path / "mine.zip", tmp_path / "out").items()
    text = text_of(notebook)
    for question in catalogue().of(exercise, 1):
        assert f"## {label(question)}. {question.asks}" in text
        assert f"**Answer.** {library.answer(question)}" in text
    assert "| 2.5 | 1 of learner 2 | 0 | 2 | 2 |" in text
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
def test_unanswered_problems_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.zip"
    assert (
        main(["hand-in", "--exercise", "3", "--id", "x.y-1", "--studies", str(STUDIES), "--out", str(out), "--json"])
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"archive": str(out), "notebooks": [f"x.y-1_hw7_p{n}.ipynb" for n in range(1, 6)], "notes": []}
    notebooks = opened(out, tmp_path / "out")
    assert list(notebooks) == printed["notebooks"]
    unpacked = {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert {"ssd-mobilenet-v1.onnx", "sagemaker.json", "vertex.json", "azureml.yaml", "platforms.json"} <= unpacked
    for number in (3, 4, 5):
        notebook = notebooks[f"x.y-1_hw7_p{number}.ipynb"]
        parts = [part for part in catalogue().of(catalogue().handed_in()["3"], number) if not part.answers]
        assert text_of(notebook).count("not answered yet") == len(parts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exercise", "1", "--id", "../me"], "id '../me' stands in names of files"),
        (["--exercise", "1", "--id", "me"], "change into a checkout of Chronograd, name its docs/studies"),
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
    notebook = _Problem(tmp_path / "a.ipynb", Library(STUDIES), [CodeCell("", ""), CodeCell("0.0", "1 / 0")])
    (only,) = notebook._part(replace(answered, answers=()))
    assert _NOT_YET in only.source


def test_cells_that_lack_something_are_left_out(tmp_path: Path) -> None:
    (question,) = catalogue().of(catalogue().handed_in()["3"], 1)
    sources = ["1 + 1", 'results("staleness")', "import no_such", 'results("alexnet")']
    code = [CodeCell("", ""), *(CodeCell("3.1", source) for source in sources)]
    shutil.copytree(STUDIES / "staleness", tmp_path / "staleness")
    notebook = _Problem(tmp_path / "a.ipynb", Library(tmp_path), code, incomplete={"staleness"})
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
    notebook = _Problem(tmp_path / "a.ipynb", Library(STUDIES), code)
    notebook.write("Problem 1", "me", catalogue().of(catalogue().handed_in()["3"], 1))
    assert notebook.notes == ["A computation of Problem 1 failed: ZeroDivisionError: division by zero."]
