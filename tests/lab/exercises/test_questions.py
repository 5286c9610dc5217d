"""Every question has its sections, docs/exercises.md is made of them, and links lead to headings that are there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd_lab.exercises.index import exercises_page
from chronograd_lab.exercises.pages import Concept, Library, anchor
from chronograd_lab.exercises.questions import AnsweringSection, Question, catalogue

DOCS = Path(__file__).parents[3] / "docs"
# The parts of the exercises, by problem.
PARTS = {
    "1.1": ["1a", "1b", "1c", "2a", "2b"], "1.2": ["1", "2a", "2b", "3a", "3b", "3c", "3d"], "1.3": ["1", "2", "3", "4"],
    "1.4": ["1", "2", "3"], "2.1": ["1", "2", "3", "4"], "2.2": ["1", "2", "3", "4", "5", "6"],
    "2.3": ["1", "2", "3", "4a", "4b", "4c", "4d"], "2.4": ["1", "2", "3"], "3.1": [""], "3.2": ["1", "2", "3", "4"],
    "3.3": [*"12345678"], "3.4": [*"1234567"], "3.5": [""], "R.1": [""], "R.2": [""], "R.3": [""], "R.4": [""], "R.5": [""],
}  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(DOCS / "studies", DOCS / "concepts")


def sources() -> list[tuple[str, AnsweringSection]]:
    return [(question.id, source) for question in catalogue().questions for source in question.answers]


def test_every_part_of_every_problem_is_asked_once() -> None:
    wanted = [".".join(filter(None, (problem, part))) for problem, parts in PARTS.items() for part in parts]
    assert [question.id for question in catalogue().questions] == wanted
    for exercise in catalogue().handed_in().values():
        asked = {question.problem for question in catalogue().of(exercise)}
        assert asked == set(range(1, len(exercise.problems) + 1))
    assert {n: e.assignment for n, e in catalogue().handed_in().items()} == {"1": "hw4", "2": "hw3", "3": "hw7"}


def test_every_question_has_an_answer() -> None:
    assert [question.id for question in catalogue().questions if not question.answers] == []


def test_the_page_is_what_the_pages_say_now(library: Library) -> None:
    made = exercises_page(catalogue(), library)
    assert (DOCS / "exercises.md").read_text() == made, "run `python -m benchmarks.exercises`"


def test_problems_without_any_answer_and_parts_of_others_are_named(library: Library) -> None:
    whole = catalogue()
    less = {"1.1.1a", "1.1.2b", *(question.id for question in whole.questions if question.id.startswith("1.2."))}
    questions = tuple(replace(one, answers=()) if one.id in less else one for one in whole.questions)
    lines = exercises_page(replace(whole, questions=questions), library).splitlines()
    titles = whole.exercises[0].problems
    wanted = f"Not answered yet: parts 1a, 2b of problem 1 ({titles[0]}); problems 2 ({titles[1]})."
    assert wanted in lines


def test_links_lead_to_sections_that_are_there() -> None:
    links = re.findall(r"\]\((studies|concepts)/([^)#]+)#([^)]+)\)", (DOCS / "exercises.md").read_text())
    assert len(links) == len(sources())
    for folder, page, place in links:
        text = (DOCS / folder / page).read_text()
        headings = {anchor(re.sub(r"\\(.)", r"\1", title)) for title in re.findall(r"^## (.+)$", text, re.M)}
        assert place in headings, f"{folder}/{page} has no section {place}"


def test_what_rests_on_prediction_alone_shows_no_measurement(library: Library) -> None:
    """And numbers that are measured, published or predicted stand in a table or a figure."""
    assert not any(library.declines(source) for _, source in sources())
    assert "no valid numbers yet" not in exercises_page(catalogue(), library)
    for identity, source in sources():
        if not source.study:
            continue
        section = library.study(source.study).section(source.section)
        if source.rests == ("predicted",):
            assert "here" not in section.title.split(), f"{identity}: {section.title} is measured"


def test_a_section_that_is_not_there_is_named_beside_those_that_are(library: Library) -> None:
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


def test_of_two_sections_the_first_that_is_there_is_taken(library: Library) -> None:
    study = library.study("staleness")
    titles = [section.title for section in study.page.sections]
    assert study.place("Nowhere | One slow* | n-softsync") == titles.index("One slow learner")
    assert study.place("n-softsync | One slow*") == titles.index("n-softsync")


def test_all_answers_that_are_not_there_are_named_at_once(library: Library) -> None:
    wrong = (
        AnsweringSection("Nowhere", ("measured",), study="transfer"),
        AnsweringSection("Nothing", ("papers",), concept="inception"),
    )
    first, *others = catalogue().questions
    with pytest.raises(InputError, match="2 answers are not there") as refused:
        exercises_page(replace(catalogue(), questions=(replace(first, answers=wrong), *others)), library)
    assert "1.1.1a: unknown section of study transfer 'Nowhere' (known: " in refused.value.message
    assert "1.1.1a: unknown section of concept page inception 'Nothing' (known: " in refused.value.message


def test_a_study_without_results_is_told_how_to_be_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results of study cutout") as refused:
        Library(tmp_path).study("cutout")
    assert f"chronograd study run cutout --out {tmp_path / 'cutout'}" in refused.value.hint


def test_the_largest_size_of_a_study_is_taken(tmp_path: Path) -> None:
    results = (DOCS / "studies" / "data-parallel" / "results.json").read_text()
    for name in ("data-parallel-smoke", "data-parallel-evening", "data-parallel-laptop"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(results)
    assert Library(tmp_path).study("data-parallel").file == tmp_path / "data-parallel-evening" / "results.json"


def test_an_answer_has_as_many_sentences_as_are_asked_for(tmp_path: Path) -> None:
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
def test_a_concept_page_of_another_form_is_refused(text: str, lacks: str, tmp_path: Path) -> None:
    (tmp_path / "one.md").write_text(text)
    with pytest.raises(FileFormatError, match=f"lacks {lacks}"):
        Concept.read(tmp_path / "one.md")


def test_no_answer_is_given_twice_within_a_question() -> None:
    for question in catalogue().questions:
        most = Counter((source.study or source.concept, source.section) for source in question.answers).most_common(1)
        assert not most or most[0][1] == 1, question.id


def test_bars_of_an_answer_do_not_divide_its_row() -> None:
    rows = [line for line in (DOCS / "exercises.md").read_text().splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
