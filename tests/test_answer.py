"""Saved answers are read back, and a report shows them with runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import chronograd
from chronograd.answer import IF_KNOWN, Answer, Column, Section, Table, join
from chronograd.cli.main import main
from chronograd.errors import FileFormatError, InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.files import format_of
from chronograd.quantities import record_answer
from chronograd.record import Record
from chronograd.report.terminal import render_terminal

INPUTS = Path(__file__).parent / "golden" / "inputs"


def made(title: str = "Speeds", exit_status: int = 0) -> Answer:
    figure = Figure([Lines("workers", "steps/s", [Series("measured", "measured", [1, 2], [0.5, None])])])
    table = Table(("workers", "speed"), [("1", "0.5"), ("2", "–")], {1}, ("the second was not measured",))
    section = Section(title, "One worker makes half a step a second.", figure=figure, table=table, lines=["So far."])
    return Answer(title, sections=[section], data={"speed": 0.5}, notes=["from one run"], exit_status=exit_status)


def test_saved_answer_round_trips(tmp_path: Path) -> None:
    made(exit_status=1).save(str(tmp_path / "answer.json"))
    loaded = Answer.load(tmp_path / "answer.json")
    assert loaded.sections[0].rows() == made().sections[0].rows()
    assert (loaded.title, loaded.data, loaded.notes, loaded.exit_status) == (
        "Speeds",
        {"speed": 0.5},
        ["from one run"],
        1,
    )
    assert render_terminal(loaded) == render_terminal(made())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "chronograd-answer", "version": 1}', '{"format": "chronograd-answer", "version": 2}'],
)
def test_invalid_answer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "answer.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"is not a saved answer(.|\n)*--save FILE"):
        Answer.load(tmp_path / "answer.json")


@pytest.mark.parametrize("name", ["sections", "records", "highlights", "more"])
def test_damaged_answer_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "answer.json"
    made().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: [{"title": 5}]}))
    with pytest.raises(FileFormatError, match="is not a saved answer"):
        Answer.load(path)


def test_joined_answers_keep_order_and_worst_verdict() -> None:
    both = join("Both", [made("First"), made("Second", exit_status=1)])
    assert [section.title for section in both.sections] == ["First", "Second"]
    assert (both.exit_status, list(both.notes)) == (1, ["from one run"])
    assert both.as_data() == [{"speed": 0.5}] * 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("y", "high"), ("y", [0.5, "high"]), ("x", None), ("role", "guessed"), ("is_scatter", [1])],
)
def test_figure_of_wrong_types_is_refused(tmp_path: Path, field: str, value: Any) -> None:
    path = tmp_path / "answer.json"
    made().save(path)
    data = json.loads(path.read_text())
    data["sections"][0]["figure"]["panels"][0]["series"][0][field] = value
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match=rf"is not a saved answer: sections\.0\.figure\..*\.{field}"):
        Answer.load(path)


def test_section_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    made().save(path)
    data = json.loads(path.read_text())
    data["sections"][0]["tabel"] = None
    path.write_text(json.dumps(data))
    with pytest.raises(FileFormatError, match=r"is not a saved answer: sections\.0\.tabel"):
        Answer.load(path)


def test_joined_answers_keep_two_records_of_one_name() -> None:
    a, b = (Record(kind="measured", title=title) for title in ("first", "second"))
    both = join("Both", [replace(made(), records={"A": a}), replace(made(), records={"A": b})])
    assert dict(both.records) == {"A": a, "A (2)": b}
    assert dict(record_answer(a, b, a).records) == {"first": a, "second": b, "first (2)": a}


def test_file_kind_depends_on_its_format_only(tmp_path: Path) -> None:
    Record(kind="measured", title="chronograd-answer").save(tmp_path / "mine.json")
    made("chronograd-record").save(tmp_path / "answer.json")
    (tmp_path / "list.json").write_text("[]")
    kinds = [format_of(tmp_path / f"{name}.json") for name in ("mine", "answer", "list")]
    assert kinds == ["chronograd-record", "chronograd-answer", ""]
    page = chronograd.report(tmp_path / "mine.json", tmp_path / "answer.json", out=tmp_path / "page.html")
    assert page.sections[0].title == "chronograd-record"
    assert [record.title for record in page.records.values()] == ["chronograd-answer"]
    with pytest.raises(FileFormatError, match="cannot read"):
        format_of(tmp_path)


def test_sentence_comes_before_the_table() -> None:
    lines = render_terminal(made()).splitlines()
    assert lines[:3] == ["Speeds", "One worker makes half a step a second.", "So far."]
    assert any("workers" in line and "speed" in line for line in lines[3:])
    assert lines[-1] == "note: from one run"


def test_report_of_plan_forecast_gate_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job, trace, runs = INPUTS / "job.yaml", INPUTS / "net.json.gz", [INPUTS / "measured-1", INPUTS / "measured-2"]
    asked = {
        "plan.json": ["plan", job, "--trace", trace, "--on", "v100", "--counts", "1,2"],
        "forecast.json": ["fit", "loss", INPUTS / "accuracy.csv", "--metric", "accuracy", "--to", "0.9"],
        "gate.json": ["compare", *runs, "--fail-if", "step_time > 5%"],
        "why.json": ["explain", *runs],
    }
    for name, words in asked.items():
        assert main([*map(str, words), "--save", name]) == (1 if name == "gate.json" else 0)
    capsys.readouterr()
    assert main(["report", *asked, *map(str, runs), "--out", "page.html"]) == 0
    page = (tmp_path / "page.html").read_text()
    for name in asked:
        for section in Answer.load(Path(name)).sections:
            assert section.title.partition(":")[0] in page
    assert "Parts of a step" in page
    assert main(["report", *asked, "--out", "again.html", "--notebook"]) == 0
    assert (tmp_path / "again.ipynb").exists()


def test_python_joins_answers(tmp_path: Path) -> None:
    page = chronograd.report(made(), INPUTS / "measured-1", out=tmp_path / "page.html")
    assert page.sections[0].title == "Speeds"
    assert len(page.records) == 1
    with pytest.raises(InputError, match="nothing to report"):
        chronograd.report()


def test_answer_to_many_questions_has_a_paragraph_for_each():
    sentences = ["One.", "Two.", "Three.", "Four."]
    assert Answer("a", summary=sentences[:3]).opening_paragraphs() == [["One.", "Two.", "Three."]]
    assert Answer("a", summary=sentences).opening_paragraphs() == [["One."], ["Two."], ["Three."], ["Four."]]


@pytest.mark.parametrize(("key", "value"), [("version", 2), ("version", "1"), ("format", "chronograd-record")])
def test_answer_of_another_version_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "answer.json"
    made().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(FileFormatError, match="another format or version"):
        Answer.load(path)


def test_rows_of_an_answer_as_a_data_frame() -> None:
    job = str(INPUTS / "job.yaml")
    plan = chronograd.plan(job, trace=str(INPUTS / "net.json.gz"), on=["v100", "t4"], counts=[1, 2])
    frame = plan.to_pandas()
    rows = plan.data["settings"]
    assert list(frame["device"]) == [row["device"] for row in rows]
    assert frame["step_time_s"].sum() == pytest.approx(sum(row["step_time_s"] for row in rows))
    with pytest.raises(InputError, match="has no rows other"):
        plan.to_pandas("other")


def test_a_prediction_has_one_flat_row_for_each_device() -> None:
    """A row was the whole JSON of a record: 14 columns of nested objects."""
    answer = chronograd.predict(str(INPUTS / "job.yaml"), trace=str(INPUTS / "net.json.gz"), on=["v100", "2xt4"])
    (name, rows), *_ = answer.frames().items()
    records = list(answer.records.values())
    assert name == "rows"
    assert [(row["device"], row["count"], row["batch"]) for row in rows] == [
        (record.device, record.world, record.global_batch) for record in records
    ]
    for row, record in zip(rows, records, strict=True):
        assert not [key for key, value in row.items() if isinstance(value, dict | list)]
        for key in ("step_time_s", "memory_peak_bytes", "throughput_samples_per_s"):
            assert row[key] == record[key].value
        assert (row["step_time_s_low"], row["step_time_s_high"]) == (
            record["step_time_s"].low,
            record["step_time_s"].high,
        )


def test_a_notebook_shows_each_paragraph_once() -> None:
    """The first paragraph stood below the title, and again in the section that it came from."""
    sections = [Section("Cost", "It costs $5. It takes 1 h."), Section("Time", "It takes 1 h. It costs $5.")]
    for answer in (Answer("Plan", sections=sections[:1]), Answer("Plan", sections=sections)):
        texts = re.findall(r"<p>(.*?)</p>", answer._repr_html_())
        assert texts == [re.sub(r"\$", "<span>$</span>", section.takeaway) for section in answer.sections]
    page = Answer("Plan", sections=sections, summary=["Both fit."])
    assert re.findall(r"<p>(.*?)</p>", page._repr_html_())[0] == "Both fit."


@dataclass(frozen=True)
class Offered:
    """A result as a verb declares it."""

    device: str
    hours: float | None
    batch: int
    tokens: int | None = field(default=None, metadata=IF_KNOWN)


def test_declared_table_and_its_json_have_the_same_rows() -> None:
    rows = [Offered("v100", 0.02, 8192), Offered("t4", None, 64, tokens=3)]
    columns = (
        Column("device", "device"),
        Column("time", "hours", "s"),
        Column("share", lambda row: row.hours, format=lambda value: f"{100 * value:g} %", empty=""),
        Column("batch", "batch", format=","),
    )
    table = Table.of(rows, columns, ["one has no time"], drop=["batch", "time"], most=1)
    assert table.columns == ["device", "time", "share", "batch"]
    assert table.rows == [["v100", "20 ms", "2 %", "8,192"], ["t4", "–", "", "64"]]
    assert (table.right, table.drop, table.most, table.notes) == ({1, 2, 3}, [3, 1], 1, ["one has no time"])
    answer = Answer("Offers", sections=[replace(made().sections[0], table=table)], result={"offers": rows})
    assert answer.data == {
        "offers": [
            {"device": "v100", "hours": 0.02, "batch": 8192},
            {"device": "t4", "hours": None, "batch": 64, "tokens": 3},
        ]
    }
    assert answer.result["offers"][1].tokens == 3
    assert "1 more row<" in answer._repr_html_()
    assert "<script>" not in Answer("<script>", sections=[Section("a", "$1 & <b>")])._repr_html_()


def test_saved_answer_has_the_data_of_its_result(tmp_path: Path) -> None:
    Answer("Offers", result=[Offered("v100", 1.0, 8)]).save(tmp_path / "answer.json")
    loaded = Answer.load(tmp_path / "answer.json")
    assert loaded.data == [{"device": "v100", "hours": 1.0, "batch": 8}]
    assert loaded.result is None
