"""A study: an experiment as data. One file of `chronograd.studies` each, with a `STUDY`.

`conduct` runs jobs and returns `Results`; `page` makes the report from results alone, so that a report can be made again
without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from chronograd.answer import Answer
from chronograd.errors import NotFoundError
from chronograd.study.results import Results, Settings
from chronograd.study.runner import StudyRunner

SIZES = ("smoke", "laptop", "paper")


@dataclass(frozen=True)
class Study:
    """One question, answered from numbers.

    Attributes:
        hypothesis: what the sources let one expect.
        sizes: settings by size: `smoke` takes seconds and runs in the tests, `laptop` minutes on two cores with real
            data, `paper` has the published setting.
        conduct: runs a size in a runner. `page`: the report of results.
        truth: what files the runner's `truth` may name, which predictions are then scored on; empty: none.
    """

    name: str
    question: str
    hypothesis: str
    sizes: Mapping[str, Settings]
    conduct: Callable[[StudyRunner, Settings], Results]
    page: Callable[[Results], Answer]
    truth: str = ""


def settings_of(study: Study, size: str) -> Settings:
    """Raises NotFoundError for a size that the study does not have."""
    if size not in study.sizes:
        raise NotFoundError(f"size of study {study.name}", size, study.sizes)
    return study.sizes[size]
