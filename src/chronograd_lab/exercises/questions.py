"""The questions of the exercises, and the sections that answer them, as `questions.toml` lists them."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

Rests = Literal["measured", "published", "predicted", "arithmetic", "papers"]


@dataclass(frozen=True)
class AnsweringSection:
    """A section that answers a question: of a study's page, where `*` matches anything, or of a concept page.

    Attributes:
        sentences: number of its sentences in docs/exercises.md; at least one for a question's first source.
        is_linked_only: whether docs/exercises.md links to it and a notebook leaves it out, since it has the same content.
    """

    section: str
    rests: tuple[Rests, ...]
    study: str = ""
    concept: str = ""
    sentences: int = 0
    is_linked_only: bool = False

    def __post_init__(self) -> None:
        if bool(self.study) == bool(self.concept):
            raise ValueError(f"section {self.section!r} is of a study or of a concept page: name one of them")


@dataclass(frozen=True)
class Question:
    """One part of a problem, in our words. A part without sources is not answered yet.

    Attributes:
        missing: the gap between the question and its answer; empty if the answer is complete.
    """

    id: str
    asks: str
    answers: tuple[AnsweringSection, ...] = ()
    missing: str = ""

    @property
    def exercise(self) -> str:
        return self.id.split(".")[0]

    @property
    def problem(self) -> int:
        return int(self.id.split(".")[1])

    @property
    def part(self) -> str:
        """Return the part of a question.

        >>> Question("1.1.2b", "").part, Question("3.1", "").part
        ('2b', '')
        """
        return ".".join(self.id.split(".")[2:])


@dataclass(frozen=True)
class Exercise:
    """A set of problems. `assignment` is part of the names of files to hand in; empty if nothing is handed in."""

    number: str
    assignment: str
    title: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    """All exercises and questions, in order."""

    exercises: tuple[Exercise, ...]
    questions: tuple[Question, ...] = field(default=())

    def of(self, exercise: Exercise, problem: int | None = None) -> list[Question]:
        """Return the questions of an exercise, or of one of its problems."""
        return [q for q in self.questions if q.exercise == exercise.number and problem in (None, q.problem)]

    def handed_in(self) -> dict[str, Exercise]:
        """Return the exercises to hand in, by number."""
        return {exercise.number: exercise for exercise in self.exercises if exercise.assignment}


@cache
def catalogue() -> Catalogue:
    """Read `questions.toml`."""
    data = tomllib.loads(Path(__file__).with_name("questions.toml").read_text(encoding="utf-8"))
    return TypeAdapter(Catalogue).validate_python(data)


def label(question: Question) -> str:
    """Return the name of a part in a heading.

    >>> label(Question("1.1.2b", "")), label(Question("3.1", "")), label(Question("2.2.4", ""))
    ('Part 2 (b)', 'Problem 1', 'Part 4')
    """
    if not question.part:
        return f"Problem {question.problem}"
    number, letter = re.fullmatch(r"(\d+)([a-z]?)", question.part).groups()  # type: ignore[union-attr]
    return f"Part {number} ({letter})" if letter else f"Part {number}"
