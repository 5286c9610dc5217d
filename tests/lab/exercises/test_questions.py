"""Every question has sections, docs/exercises.md is current, and its links lead to existing headings."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.exercises import exercises_page

from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd_lab.exercises.pages import Concept, Library, anchor
from chronograd_lab.exercises.questions import AnsweringSection, Question, catalogue

DOCS = Path(__file__).parents[3] / "docs"
# The parts of the exercises, by problem.
PARTS = {
    "1.1": ["1a", "1b", "1c", "2a", "2b"], "1.2": ["1", "2a", "2b", "3a", "3b", "3c", "3d"], "1.3": ["1", "2", "3", "4"],
    "1.4": ["1", "2", "3"], "2.1": ["1", "2", "3", "4"], "2.2": ["1", "2", "3", "4", "5", "6"],
    "2.3": ["1", "2", "3", "4a", "4b", "4c", "4d"], "2.4": ["1", "2", "3"], "3.1": [""], "3.2": ["1", "2", "3", "4"],
    "3.3": [*"12345678"], "3.4": [*"1234567"], "3.5": [*"123456"], "R.1": [""], "R.2": [""], "R.3": [""], "R.4": [""], "R.5": [""],
}  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(DOCS / "studies", DOCS / "concepts")


def sources() -> list[tuple[str, AnsweringSection]]:
    return [(question.id, source) for question in catalogue().questions for source in question.answers]


def test_every_part_is_asked_once() -> None:
    wanted = [".".join(filter(None, (problem, part))) for problem, parts in PARTS.items() for part in parts]
    assert [question.id for question in catalogue().questions] == wanted
    for exercise in catalogue().handed_in().values():
        asked = {question.problem for question in catalogue().of(exercise)}
        assert asked == set(range(1, len(exercise.problems) + 1))
    assert {n: e.assignment for n, e in catalogue().handed_in().items()} == {"1": "hw4", "2": "hw3", "3": "hw7"}


def test_every_question_has_an_answer() -> None:
    assert [question.id for question in catalogue().questions if not question.answers] == []


def test_page_is_current(library: Library) -> None:
    made = exercises_page(catalogue(), library)
    assert (DOCS / "exercises.md").read_text() == made, "run `python -m benchmarks.exercises`"


def test_unanswered_problems_and_parts_are_listed(library: Library) -> None:
    whole = catalogue()
    less = {"1.1.1a", "1.1.2b", *(question.id for question in whole.questions if question.id.startswith("1.2."))}
    questions = tuple(replace(one, answers=()) if one.id in less else one for one in whole.questions)
    lines = exercises_page(replace(whole, questions=questions), library).splitlines()
    titles = whole.exercises[0].problems
    wanted = f"Not answered yet: parts 1a, 2b of problem 1 ({titles[0]}); problems 2 ({titles[1]})."
    assert wanted in lines


def test_last_column_is_the_verdict(library: Library) -> None:
    page = exercises_page(catalogue(), library)
    verdicts = {
        row.split(" | ")[0].removeprefix("| "): row.removesuffix(" |").split(" | ")[-1] for row in page.splitlines()
    }
    for question in catalogue().questions:
        assert verdicts[question.id] == (question.missing or "complete")
        # An answer that points out its own gap is not complete.
        assert question.missing or not any(s.section.startswith("What is missing") for s in question.answers)


def test_sizes_called_not_run_were_not_run(library: Library) -> None:
    for question in catalogue().questions:
        if named := re.search(r"[Ss]izes? (.+) (was|were) not run", question.missing):
            run = {library.study(source.study).results.size for source in question.answers if source.study}
            assert run.isdisjoint(named[1].split(" and ")), f"{question.id}: a page has this size now"


def test_links_lead_to_existing_sections() -> None:
    links = re.findall(r"\]\((studies|concepts)/([^)#]+)#([^)]+)\)", (DOCS / "exercises.md").read_text())
    assert len(links) == len(sources())
    for folder, page, place in links:
        text = (DOCS / folder / page).read_text()
        headings = {anchor(re.sub(r"\\(.)", r"\1", title)) for title in re.findall(r"^## (.+)$", text, re.M)}
        assert place in headings, f"{folder}/{page} has no section {place}"


def test_predictions_show_no_measurement(library: Library) -> None:
    """Measured, published or predicted numbers are in a table or a figure."""
    assert not any(library.declines(source) for _, source in sources())
    assert "no valid numbers yet" not in exercises_page(catalogue(), library)
    for identity, source in sources():
        if not source.study:
            continue
        section = library.study(source.study).section(source.section)
        if source.rests == ("predicted",):
            assert "here" not in section.title.split(), f"{identity}: {section.title} is measured"


def test_unknown_section_lists_existing_ones(library: Library) -> None:
    with pytest.raises(NotFoundError, match="unknown section of study transfer 'Nowhere'") as refused:
        library.answer(Question("1.1", "", (AnsweringSection("Nowhere", ("measured",), study="transfer"),)))
    assert "Why" in refused.value.hint
    with pytest.raises(NotFoundError, match="section of concept page inception 'What sizes'") as refused:
        library.answer(Question("1.1", "", (AnsweringSection("What sizes", ("papers",), concept="inception"),)))
    assert "What sizes come out?" in refused.value.hint
    with pytest.raises(NotFoundError, match="unknown concept page 'incepton'"):
        library.concept("incepton")
    with pytest.raises(NotFoundError, match="unknown study 'transfr'"):
        library.study("transfr")


def test_first_existing_section_is_used(library: Library) -> None:
    study = library.study("staleness")
    titles = [section.title for section in study.page.sections]
    assert study.place("Nowhere | One slow* | n-softsync") == titles.index("One slow learner")
    assert study.place("n-softsync | One slow*") == titles.index("n-softsync")


def test_all_missing_answers_are_listed_together(library: Library) -> None:
    wrong = (
        AnsweringSection("Nowhere", ("measured",), study="transfer"),
        AnsweringSection("Nothing", ("papers",), concept="inception"),
    )
    first, *others = catalogue().questions
    with pytest.raises(InputError, match="2 answers are not there") as refused:
        exercises_page(replace(catalogue(), questions=(replace(first, answers=wrong), *others)), library)
    assert "1.1.1a: unknown section of study transfer 'Nowhere' (known: " in refused.value.message
    assert "1.1.1a: unknown section of concept page inception 'Nothing' (known: " in refused.value.message


def test_missing_study_results_show_the_command(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results of study cutout") as refused:
        Library(tmp_path).study("cutout")
    assert f"chronograd study run cutout --out {tmp_path / 'cutout'}" in refused.value.hint


def test_largest_size_of_a_study_is_used(tmp_path: Path) -> None:
    results = (DOCS / "studies" / "data-parallel" / "results.json").read_text()
    for name in ("data-parallel-smoke", "data-parallel-evening", "data-parallel-laptop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(results)
    assert Library(tmp_path).study("data-parallel").file == tmp_path / "data-parallel-evening" / "results.json"


def test_answer_length_in_sentences(tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text(
        "# One\n\nIt is.\n\n## Why?\n\nAs of 0.5 s, see\n[two](two.md) by Li et al. 2019. Then more. And more.\n\nNo.\n\n## Sources\n\n- None.\n"
    )
    library = Library(tmp_path, tmp_path)
    once = AnsweringSection("Why?", ("papers",), concept="one")
    twice = AnsweringSection("Why?", ("papers",), concept="one", sentences=2)
    assert library.answer(Question("1.1", "", (once, once))) == "As of 0.5 s, see two by Li et al. 2019."
    assert library.answer(Question("1.1", "", (once, twice))).endswith(
        "2019. As of 0.5 s, see two by Li et al. 2019. Then more."
    )
    assert library.answer(Question("1.1", "")) == ""


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("One.\n\n## Sources\n\n- None.\n", "a title"),
        ("# One\n\n## Why?\n\n## Sources\n\n- None.\n", "text under 'Why\\?'"),
        ("# One\n\nIt is.\n", "a section 'Sources'"),
    ],
)
def test_invalid_concept_page(text: str, lacks: str, tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text(text)
    with pytest.raises(FileFormatError, match=f"lacks {lacks}"):
        Concept.read(tmp_path / "one.md")


def test_no_repeated_answer_within_a_question() -> None:
    for question in catalogue().questions:
        most = Counter((source.study or source.concept, source.section) for source in question.answers).most_common(1)
        assert not most or most[0][1] == 1, question.id


def test_bars_in_an_answer_do_not_split_its_row() -> None:
    rows = [line for line in (DOCS / "exercises.md").read_text().splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {7}
