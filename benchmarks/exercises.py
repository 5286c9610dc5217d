"""Writer of docs/exercises.md: questions and their pages, from questions.toml, the studies' results and the concept pages.

python -m benchmarks.exercises
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chronograd.errors import InputError
from chronograd.files import write_aside
from chronograd.report.markdown import heading
from chronograd_lab.exercises.pages import Library, anchor, rests_on
from chronograd_lab.exercises.questions import AnsweringSection, Catalogue, Exercise, Question, catalogue

DOCS = Path(__file__).parent.parent / "docs"


_HEAD = """\
# By exercise

Which page answers which question of three exercises and a report, asked in our words. An answer is the takeaway of the first
page that is named, looked up when this page is made: `python -m benchmarks.exercises`. *Measured here* is on the machine that
the study's page names; *published figures* are others'; *arithmetic* is counted or proved; *papers* is what they say. The last
column is our own verdict: complete, or exactly what is missing.

```sh
chronograd hand-in --exercise 1 --id ab1234 --out ab1234_hw4.zip
```

makes an archive of executed notebooks, one for each problem. It also works where Chronograd is installed without a checkout. A
part that trains does so for about half a minute, by the code of the reported results, and names the command of the full size.
The archive brings the package as a wheel, the code of the studies, data and logs. Its README states how to run it again."""


def exercises_page(catalogue: Catalogue, library: Library) -> str:
    """Return the page as Markdown. Raises InputError that names every missing answer."""
    lacking = [
        f"{question.id}: {problem}" for question in catalogue.questions for problem in _lacking(question, library)
    ]
    if lacking:
        raise InputError(
            f"{len(lacking)} answers are not there:\n  " + "\n  ".join(lacking),
            "name sections that are, in questions.toml",
        )
    blocks = [_HEAD]
    for exercise in catalogue.exercises:
        questions = catalogue.of(exercise)
        name = f"Exercise {exercise.number}" if exercise.assignment else "The report"
        blocks.append(f"## {name}: {exercise.title[0].lower()}{exercise.title[1:]}")
        blocks.append("\n".join(_lines([q for q in questions if q.answers], library)))
        blocks += _not_answered(exercise, questions)
    return "\n\n".join(blocks) + "\n"


def _not_answered(exercise: Exercise, questions: Sequence[Question]) -> list[str]:
    """Return a sentence on problems without any answer, and parts of others; none if all have one."""
    parts: list[str] = []
    problems: list[str] = []
    for number, title in enumerate(exercise.problems, 1):
        own = [q for q in questions if q.problem == number]
        lacking = [q.part for q in own if not q.answers]
        if lacking and len(lacking) < len(own):
            parts.append(f"parts {', '.join(lacking)} of problem {number} ({title})")
        elif lacking:
            problems.append(f"{number} ({title})")
    all_ = [*parts, *([f"problems {', '.join(problems)}"] if problems else [])]
    return [f"Not answered yet: {'; '.join(all_)}."] if all_ else []


def _lacking(question: Question, library: Library) -> Iterator[str]:
    for source in question.answers:
        try:
            link(source, library)
        except InputError as error:
            yield f"{error.message} ({error.hint})"


def _lines(questions: Iterable[Question], library: Library) -> list[str]:
    columns = ["", "question", "answer", "where", "rests on", "complete / what is missing"]
    lines = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns))]
    for question in questions:
        cells = [question.id, question.asks, library.answer(question).replace("|", r"\|")]
        cells.append("<br>".join(link(source, library) for source in question.answers))
        cells += [rests_on(question.answers, library), question.missing or "complete"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def link(source: AnsweringSection, library: Library) -> str:
    """Return a link to a section, as it stands in docs."""
    if source.study:
        title = library.study(source.study).section(source.section).title
        return f"[{source.study}: {heading(title)}](studies/{source.study}/README.md#{anchor(title)})"
    page = library.concept(source.concept)
    page.section(source.section)
    return f"[{source.section}](concepts/{source.concept}.md#{anchor(source.section)})"


def main() -> None:
    path = DOCS / "exercises.md"
    write_aside(path, exercises_page(catalogue(), Library(DOCS / "studies", DOCS / "concepts")))
    print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
