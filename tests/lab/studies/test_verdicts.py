"""Studies, their list, and the answers of the exercises call one thing better than another only with a test."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from chronograd.report.markdown import markdown
from chronograd_lab.common.results import Results
from chronograd_lab.common.written import CLAIM, VERDICT, ClaimError
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import catalogue
from chronograd_lab.studies import find

DOCS = Path(__file__).parents[3] / "docs"
STUDIES = sorted(path.parent.name for path in (DOCS / "studies").glob("*/results.json"))
# Sections that do not come from a written page: nothing tests their sentences.
UNCHECKED = {"What is missing", "What fell short", "Settings"}
# Kinds of evidence whose sentences need no test of our runs.
WITHOUT_CHANCE = {"papers", "arithmetic", "published", "predicted"}


def page_text(name: str) -> str:
    return Path(inspect.getfile(find(name).conduct)).with_name("page.md").read_text()


@cache
def checked(name: str) -> str:
    """Return the opening, highlights and takeaways of a study's written page, which its claims test."""
    page = find(name).page(Results.load(DOCS / "studies" / name / "results.json"))
    takeaways = [section.takeaway for section in page.sections if section.title not in UNCHECKED]
    highlights = [f"{one.label} {one.detail}" for one in page.highlights]
    return markdown(" ".join([*page.opening(), *highlights, *takeaways]))


def verdicts(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.?!]) (?=[A-Z0-9])", text) if VERDICT.search(sentence)]


@pytest.mark.parametrize("name", STUDIES)
def test_verdicts_of_a_page_are_checked(name: str) -> None:
    """The page in docs has no verdict in its opening or a takeaway that its claims do not cover."""
    text = (DOCS / "studies" / name / "README.md").read_text()
    opening = text.partition("\n## ")[0].split("\n\n", 2)[2]  # below the title and the question
    takeaways = re.findall(r"^\*\*Takeaway\.\*\* (.+)$", text, flags=re.M)
    quoted = [re.sub(r"^- \*\*.+?\*\* ", "", line) for line in opening.splitlines() if line] + takeaways
    unchecked = [
        s
        for line in quoted
        for s in verdicts(line.replace(" (", " "))
        if s.rstrip(")") not in checked(name).replace(" (", " ")
    ]
    assert unchecked == []


@pytest.mark.parametrize("name", [name for name in STUDIES if VERDICT.search(checked(name))])
def test_page_without_its_claims_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        "\n".join(line for line in page_text(name).splitlines() if not CLAIM.fullmatch(line))
    )
    with pytest.raises(ClaimError, match="no claim tests"):
        replace(find(name), text=tmp_path / "page.md").page(Results.load(DOCS / "studies" / name / "results.json"))


def test_list_of_studies_has_no_other_verdicts() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\].+ \| (.+) \|$", (DOCS / "studies" / "README.md").read_text(), flags=re.M)
    results = [(name, sentence) for name, result in rows if name in STUDIES for sentence in verdicts(result)]
    assert len(results) > 5
    not_run = {find(name).not_run[0].lacks for name in STUDIES if find(name).not_run}
    assert not any(VERDICT.search(lacks) for lacks in not_run)
    assert [f"{name}: {sentence}" for name, sentence in results if sentence not in checked(name)] == []


def test_answers_of_exercises_have_no_other_verdicts() -> None:
    library = Library(DOCS / "studies", DOCS / "concepts")
    unchecked, seen = [], 0
    for question in catalogue().questions:
        answer = library.answer(question)  # test_questions.py compares it with docs/exercises.md
        tested = " ".join(checked(source.study) for source in question.answers if source.study)
        cited = " ".join(
            " ".join(library.concept(source.concept).section(source.section).split())
            for source in question.answers
            if source.concept and set(source.rests) <= WITHOUT_CHANCE
        )
        for sentence in verdicts(answer):
            seen += 1
            if sentence not in tested and sentence not in cited:
                unchecked.append(f"{question.id}: {sentence}")
    assert seen > 15
    assert unchecked == []


def test_pages_that_readers_found_wrong() -> None:
    """The tables of these pages did not support their earlier headlines."""
    transfer, exploration = checked("transfer"), checked("exploration")
    assert "neither way is significantly more accurate" in transfer
    assert "p = 0.13; not significant with 2 seeds" in transfer
    assert "p = 0.072; not significant with 2 seeds" in transfer
    # Seeds 0 to 12 decided whether to go on; the number of the later ones was fixed before.
    runs = Results.load(DOCS / "studies" / "exploration" / "results.json").rows["runs"]
    assert {run["seed"] for run in runs} == set(range(13, 26))
    assert "6 times its p is 0.034" in exploration
