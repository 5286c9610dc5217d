"""`explain RUN...`: the causes of slow steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from chronograd.verbs.request import Request, Spelling

if TYPE_CHECKING:
    from chronograd.answer import Answer
    from chronograd.explain.explanation import Explanation
    from chronograd.explain.wall_times import Account


@dataclass(frozen=True, kw_only=True)
class Explain(Request):
    """Explain why a run is not faster: where each step goes, and the causes of lost time with their evidence.

    RUN is a run directory (also one recorded from your loop) or a CSV file of wall times. It may also be a trace of
    torch.profiler: one file per rank, or a folder of them. Runs of one job on different numbers of ranks are shown next to each other.
    """

    verb = "explain"
    examples = (
        "chronograd explain runs/one runs/two",
        "chronograd explain trace.rank0.json trace.rank1.json",
        "chronograd explain profiles/",
        "chronograd explain walls.csv",
    )

    runs: Annotated[tuple[Path, ...], click.Path(path_type=Path), Spelling(metavar="RUN...", is_argument=True)]

    def answer(self) -> Answer[Explanation | list[Account]]:
        from chronograd.explain.answer import explain

        return explain(self.runs)


REQUESTS = (Explain,)
