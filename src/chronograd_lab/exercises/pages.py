"""The pages with the answers: studies, made from their results, and concept pages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from chronograd.answer import Answer, Section
from chronograd.errors import FileFormatError, InputError, NotFoundError
from chronograd.report.markdown import markdown
from chronograd_lab.common.results import Results
from chronograd_lab.common.study import SIZES
from chronograd_lab.exercises.questions import AnsweringSection, Question, Rests
from chronograd_lab.studies import find

# In an installed package the pages and results lie next to this file, in a checkout in docs.
_DOCS = (Path(__file__).parent, Path(__file__).parents[3] / "docs")
RESTS: dict[Rests, str] = {
    "measured": "measured here",
    "published": "published figures",
    "predicted": "prediction",
    "arithmetic": "arithmetic",
    "papers": "papers",
}
_NO_NUMBERS = "no valid numbers yet"
SOURCES = "Sources"  # the last section of a concept page
_SENTENCE_END = re.compile(r"(?<=[\w%)`²])(?<!et al)[.?] (?=[A-Z0-9`])")


@dataclass(frozen=True)
class StudyPage:
    """A study's results, and the page made from them."""

    name: str
    file: Path
    results: Results
    page: Answer

    def place(self, pattern: str) -> int:
        """Return the place of the section whose title matches a pattern; for several, `A | B`, the first that exists.

        Raises NotFoundError.
        """
        titles = [section.title for section in self.page.sections]
        patterns = pattern.replace("[", "[[]").split(" | ")
        matching = [i for one in patterns for i, title in enumerate(titles) if fnmatchcase(title, one)]
        if not matching:
            raise NotFoundError(f"section of study {self.name}", pattern, titles)
        return matching[0]

    def section(self, pattern: str) -> Section:
        return self.page.sections[self.place(pattern)]


@dataclass(frozen=True)
class Concept:
    """A concept page.

    Attributes:
        opening: the text before the picture. `caption`: the text between the picture and the first section.
        sections: Markdown by heading.
    """

    name: str
    title: str
    opening: str
    figure: Path | None
    caption: str
    sections: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Concept:
        """Read a page. Raises FileFormatError for a page without a title or with an empty section."""
        head, *parts = re.split(r"^## +", path.read_text(encoding="utf-8"), flags=re.M)
        sections = {title.strip(): body.strip() for title, _, body in (part.partition("\n") for part in parts)}
        title = re.match(r"# +(.+)", head)
        missing = [] if title else ["a title"]
        missing += [f"text under {heading!r}" for heading, body in sections.items() if not body]
        missing += [] if SOURCES in sections else [f"a section {SOURCES!r}"]
        if title is None or missing:
            raise FileFormatError(f"concept page {path} lacks {', '.join(missing)}")
        opening, picture, caption = (*re.split(r"!\[[^\]]*\]\(([^)]+)\)", head[title.end() :], maxsplit=1), "", "")[:3]
        figure = path.parent / picture if picture else None
        return cls(path.stem, title[1].strip(), opening.strip(), figure, caption.strip(), sections)

    @property
    def sources(self) -> str:
        """Return the list of papers, without the text below it."""
        return self.sections[SOURCES].partition("\n\n")[0]

    def section(self, heading: str) -> str:
        """Return a section. Raises NotFoundError."""
        if heading not in self.sections:
            raise NotFoundError(f"section of concept page {self.name}", heading, self.sections)
        return self.sections[heading]


def shipped(name: str) -> Path:
    """Return the folder `studies` or `concepts` of this package, or of its checkout."""
    folders = [folder / name for folder in _DOCS]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


class Library:
    """Studies in a folder, `NAME/results.json` or `NAME-SIZE/results.json`, and the concept pages. Each is read once.

    The largest of several sizes of a study is used. A study that the folder lacks may have results in a second folder.
    """

    def __init__(self, studies: Path, concepts: Path | None = None, otherwise: Path | None = None) -> None:
        self.folder, self.otherwise = studies, otherwise
        self.concepts = concepts or shipped("concepts")
        self._studies: dict[str, StudyPage] = {}
        self._pages: dict[str, Concept] = {}

    def study(self, name: str) -> StudyPage:
        """Return a study's page. Raises NotFoundError for an unknown study, InputError if the folder has no results of it."""
        if name not in self._studies:
            study = find(name)
            names = [name, *(f"{name}-{size}" for size in reversed(SIZES))]
            places = [folder / one for folder in (self.folder, self.otherwise) if folder for one in names]
            file = next((place / "results.json" for place in places if (place / "results.json").exists()), None)
            if file is None:
                raise InputError(
                    f"{self.folder} has no results of study {name}",
                    f"`chronograd study run {name} --out {self.folder / name}` makes them",
                )
            results = Results.load(file)
            self._studies[name] = StudyPage(name, file, results, study.page_or_plain(results))
        return self._studies[name]

    def concept(self, name: str) -> Concept:
        """Return a concept page. Raises NotFoundError."""
        if name not in self._pages:
            path = self.concepts / f"{name}.md"
            if not path.exists():
                raise NotFoundError("concept page", name, [p.stem for p in self.concepts.glob("*.md")])
            self._pages[name] = Concept.read(path)
        return self._pages[name]

    def declines(self, source: AnsweringSection) -> bool:
        """Return whether a study's section has neither table nor figure, although its answer needs numbers."""
        if not source.study or not {"measured", "published", "predicted"} & set(source.rests):
            return False
        section = self.study(source.study).section(source.section)
        return not section.rows() and not (section.table and section.table.rows)

    def answer(self, question: Question) -> str:
        """Return the sentences that answer a question, as Markdown without links; none if it is not answered yet."""
        counts = [max(source.sentences, number == 0) for number, source in enumerate(question.answers)]
        said = [self._said(s, count) for s, count in zip(question.answers, counts, strict=True) if count]
        return " ".join(said)

    def _said(self, source: AnsweringSection, count: int) -> str:
        if source.study:
            return markdown(first_sentences(self.study(source.study).section(source.section).takeaway, count))
        text = without_links(self.concept(source.concept).section(source.section))
        return first_sentences(" ".join(text.partition("\n\n")[0].split()), count)

    def support(self, source: AnsweringSection, count: int) -> str:
        """Return the text of a section after its first `count` sentences, which the answer has, as Markdown without links."""
        if source.study:
            section = self.study(source.study).section(source.section)
            rest = section.takeaway.removeprefix(first_sentences(section.takeaway, count) if count else "")
            return "\n\n".join(filter(None, map(markdown, (rest.strip().lstrip("."), *section.lines))))
        text = without_links(self.concept(source.concept).section(source.section))
        opening, _, others = text.partition("\n\n")
        opening = " ".join(opening.split())
        rest = opening.removeprefix(first_sentences(opening, count) if count else "").strip()
        return "\n\n".join(filter(None, (rest, others.strip())))


def rests_on(answers: Iterable[AnsweringSection], library: Library) -> str:
    """Return the kinds of evidence behind answers, in words. A section of a study that declines to show numbers rests on none."""
    return ", ".join(
        dict.fromkeys(
            _NO_NUMBERS if library.declines(source) else RESTS[kind] for source in answers for kind in source.rests
        )
    )


def first_sentences(text: str, count: int = 1) -> str:
    """Return the first sentences of a text.

    >>> first_sentences("It takes 0.5 s; why? Nobody knows. So be it")
    'It takes 0.5 s; why?'
    >>> first_sentences("It takes 0.5 s; why? Nobody knows. So be it", 3)
    'It takes 0.5 s; why? Nobody knows. So be it.'
    """
    ends = [match.start() + 1 for match in _SENTENCE_END.finditer(text)]
    first = text[: ends[count - 1]] if count <= len(ends) else text
    return first if first[-1:] in ".!?" else f"{first}."


def without_links(text: str) -> str:
    """Replace links by their text, for places without their targets.

    >>> without_links("See [all-reduce](all-reduce.md) and ![a](b.svg)f(x)[0](c).")
    'See all-reduce and f(x)0.'
    """
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text))


def anchor(title: str) -> str:
    """Return GitHub's anchor of a section.

    >>> anchor("One machine, here: tf_mirrored"), anchor("What is left? 80 %")
    ('one-machine-here-tf_mirrored', 'what-is-left-80-')
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
