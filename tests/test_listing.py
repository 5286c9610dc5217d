"""The runs that a RUN argument names, for every verb that takes one, and the list of all runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError
from chronograd.explain.explanation import explain
from chronograd.fit.speed import read_points
from chronograd.forecast.learning_curves import read_curve
from chronograd.record import Quantity, Record
from chronograd.rundir import RunDir, listing
from chronograd.rundir.steps import StepLine


def record(step_time_s: float, **cluster: object) -> Record:
    made = Record(kind="measured", title=f"of {step_time_s}", cluster=cluster)
    made.put("step_time_s", Quantity(value=step_time_s, unit="s", std=0.03 * step_time_s, n=30))
    return made


def make_run(path: str, step_time_s: float, **cluster: object) -> RunDir:
    run = RunDir.create(out=path)
    run.save_record(record(step_time_s, **cluster))
    with run.step_writer() as lines:
        for step in range(1, 6):
            lines.write(
                StepLine(
                    step=step, epoch=1, seconds=step * step_time_s, step_time_s=step_time_s, loss=1 / step, samples=8
                )
            )
    return run


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a sweep of three runs, a run over three seeds (one unfinished), one in `runs`, and a record file."""
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        make_run(f"sweep/{number}", number, count=number, servers=1)
    Path("sweep/notes.txt").write_text("of mine")
    Path("sweep/settings.json").write_text("{}")
    make_run("seeds", 99)
    make_run("seeds/seed-9", 4)
    make_run("seeds/seed-10", 5)
    RunDir.create(out="seeds/seed-11")
    make_run("runs/mine", 7)
    record(6).save("kept.json")
    record(8).save("a, b.json")
    Path("empty").mkdir()


def times(*texts: str, each_seed: bool = False) -> list[float]:
    return [found.value("step_time_s") for found in listing.records(*texts, each_seed=each_seed).values()]


def test_run_file_folder_or_several() -> None:
    assert times("sweep/2") == [2]
    assert times("sweep/2/record.json") == [2]
    assert times("sweep") == [1, 2, 3], "files that are no records are not of the sweep"
    assert times("sweep/1,kept.json", "sweep/3") == [1, 6, 3]
    assert times("a, b.json") == [8], "a path that is there may have a comma"
    assert times("mine") == [7], "of the folder runs"
    assert times("mine,kept.json") == [7, 6]
    record(9).save("sweep/kept.json")
    assert times("sweep") == [1, 2, 3, 9]


def test_run_over_seeds_is_one_or_its_finished_seeds() -> None:
    assert times("seeds") == [99]
    assert times("seeds", each_seed=True) == [4, 5]
    assert list(listing.records("seeds", each_seed=True)) == ["seeds/seed-9", "seeds/seed-10"]
    assert [path.name for path in listing.seeds_of(Path("seeds"))] == ["seed-9", "seed-10", "seed-11"]
    assert times("seeds/seed-9") == [4]


def test_names_are_short_and_unique() -> None:
    make_run("again/1", 10)
    names = [name for name, _ in listing.runs("sweep/1", "again/1", "sweep/1/record.json", "kept.json")]
    assert names == ["1", "1 (2)", "1 (3)", "kept"]


@pytest.mark.parametrize("nothing", ["empty", "nowhere", "nowhere,kept.json"])
def test_missing_run_is_reported(nothing: str) -> None:
    with pytest.raises(FileFormatError, match="no record at"):
        listing.records(nothing)
    with pytest.raises(InputError, match="',' names no run"):
        listing.records(",")


def test_ambiguous_run_lists_the_choices() -> None:
    assert listing.one_run("seeds") == Path("seeds")
    with pytest.raises(InputError, match="'sweep' names 3 runs, not one: 1, 2, 3"):
        listing.one_run("sweep")
    for number in range(4, 9):
        make_run(f"sweep/{number}", number)
    with pytest.raises(InputError, match="names 8 runs, not one: 1, 2, 3, 4, 5, 6 and 2 more"):
        listing.one_run("sweep")


# -- the verbs ------------------------------------------------------------------------------------------------


def test_compare_takes_a_folder_as_a_side_of_the_gate(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "sweep", "mine,kept.json", "--fail-if", "step_time > 5%", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out)
    assert [side["title"] for side in judged["a"]] == ["of 1", "of 2", "of 3"]
    assert [side["title"] for side in judged["b"]] == ["of 7", "of 6"]
    for sides in (["sweep", "mine"], ["mine", "sweep"]):
        assert main(["compare", *sides]) == 2
        printed = capsys.readouterr().err
        assert "'sweep' names 3 runs, not one: 1, 2, 3" in printed
        assert "--fail-if" in printed
    Path("one").mkdir()
    os.rename("sweep/2", "one/2")
    assert main(["compare", "one", "seeds", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["a"]["title"], compared["b"]["title"]) == ("of 2", "of 99")


def test_report_takes_a_list_and_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "sweep,kept.json", "mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == ["1", "2", "3", "kept", "mine"]


def test_records_shows_one_run_and_asks_if_ambiguous(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["records", "2", "--in", "sweep", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "of 2"
    assert main(["records", "sweep"]) == 2
    assert "names 3 runs" in capsys.readouterr().err
    assert main(["records", "mine", "--timeline", "steps.json"]) == 0
    assert Path("steps.json").exists()


def test_explain_and_fit_take_the_same_arguments() -> None:
    assert [one.run.name for one in explain([Path("sweep")]).runs] == ["1", "2", "3"]
    assert [one.run.name for one in explain([Path("sweep/1,mine")]).runs] == ["1", "mine"]
    with pytest.raises(InputError, match="twice"):
        explain([Path("sweep"), Path("sweep/2/record.json")])
    assert [point.workers for point in read_points(Path("sweep"))] == [1, 2, 3]
    assert [point.workers for point in read_points(Path("sweep/3,sweep/1"))] == [3, 1]
    assert read_curve(Path("mine")).values.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    with pytest.raises(InputError, match="names 3 runs"):
        read_curve(Path("sweep"))


# -- the list -------------------------------------------------------------------------------------------------


def test_list_counts_states_and_filters() -> None:
    RunDir.create(out="sweep/open")
    Path("sweep/torn").mkdir()
    Path("sweep/torn/record.json").write_text("{")
    answer = listing.listing("sweep")
    (section,) = answer.sections
    assert section.takeaway.startswith("5 records: 3 measured, 1 unfinished, 1 damaged; the newest is ")
    assert section.lines[0].startswith("torn is damaged: ")
    assert [row["state"] for row in answer.data] == ["measured", "measured", "measured", "unfinished", "damaged"]
    assert section.table is not None
    assert [row[:2] for row in section.table.rows][3:] == [["open", "unfinished"], ["torn", "damaged"]]
    assert [Path(row["path"]).name for row in listing.listing("sweep", kind="unfinished").data] == ["open"]
    assert [Path(row["path"]).name for row in listing.listing("sweep", job="OF 3").data] == ["3"]
    none = listing.listing("sweep", device="k80")
    assert (none.sections[0].takeaway, none.data) == ("There are no records that match in sweep.", [])
