"""Writer of docs/exercises.md: questions and their pages, from questions.toml, the studies' results and the concept pages.

python -m benchmarks.exercises
"""

from __future__ import annotations

from pathlib import Path

from chronograd.files import write_aside
from chronograd_lab.exercises.index import exercises_page
from chronograd_lab.exercises.pages import Library
from chronograd_lab.exercises.questions import catalogue

DOCS = Path(__file__).parent.parent / "docs"


def main() -> None:
    path = DOCS / "exercises.md"
    write_aside(path, exercises_page(catalogue(), Library(DOCS / "studies", DOCS / "concepts")))
    print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
