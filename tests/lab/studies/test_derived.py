"""Every number in the prose of a published study follows from its results, or is listed in cited.toml with its source."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
from tests.lab.studies.derived import Claim, Pages, follows

from chronograd_lab.common.results import Results
from chronograd_lab.studies import find

FOLDER = Path(__file__).parents[3] / "docs" / "studies"
# Counts follow from shapes, which must not vary. test_counted_studies.py derives these pages from the layers of the papers.
# test_platforms.py counts rendered files and cells again.
COUNTED = {"alexnet", "inception", "platforms", "receptive-field", "vgg19-memory"}
STUDIES = sorted(path.parent.name for path in FOLDER.glob("*/results.json") if path.parent.name not in COUNTED)
CITED = tomllib.loads((Path(__file__).parent / "cited.toml").read_text())


@cache
def pages(name: str) -> Pages:
    return Pages(Results.load(FOLDER / name / "results.json"), partial(find(name).page, is_checked=False))


@cache
def claims(name: str) -> list[Claim]:
    return pages(name).claims()


def is_cited(claim: Claim, words: str) -> bool:
    """Return whether words with a source surround the number."""
    start = claim.sentence.find(words)
    while start >= 0:
        if start <= claim.span.start and claim.span.stop <= start + len(words):
            return True
        start = claim.sentence.find(words, start + 1)
    return False


@pytest.mark.parametrize("name", STUDIES)
def test_every_number_is_derived_or_cited(name: str) -> None:
    cited = CITED.get(name, {})
    neither = [c.place for c in claims(name) if not c.follows and not any(is_cited(c, words) for words in cited)]
    assert neither == []
    needed = [c for c in claims(name) if not c.follows]
    assert [words for words in cited if not any(is_cited(c, words) for c in needed)] == [], "need no source"


@pytest.mark.slow
def test_typed_number_is_detected() -> None:
    """Increase numbers by 10 %: nearly all with three digits and half of those with two are detected."""
    seen: dict[bool, list[bool]] = {True: [], False: []}
    for name in STUDIES:
        for claim in claims(name):
            own = claim.printed[0]
            digits = sum(c.isdigit() for c in own.text.lstrip("+−-0."))
            if claim.follows and len(claim.printed) > 1 and digits > 1 and own.value != 0:
                typed = [replace(own, value=1.1 * own.value)] * len(claim.printed)
                seen[digits > 2].append(not follows(typed, pages(name).known[: len(typed)]))
    caught = {key: sum(values) / len(values) for key, values in seen.items()}
    assert len(seen[True]) > 400
    assert caught[True] > 0.9
    assert caught[False] > 0.4
