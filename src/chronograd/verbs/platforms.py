"""`platforms`: the platforms that a job can be rendered for, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronograd.errors import InputError
from chronograd.verbs.request import Request

if TYPE_CHECKING:
    from chronograd.answer import Answer


@dataclass(frozen=True, kw_only=True)
class Platforms(Request):
    """List platforms that `chronograd launch PLATFORM JOB` writes files for.

    Each is shown with its file, the known instance types with their devices, and its required options.
    """

    verb = "platforms"
    examples = (
        "chronograd platforms --compare",
        "chronograd platforms --compare --full",
        "chronograd platforms --fields --json",
    )

    compare: bool = False
    """Compare what the platforms offer, criterion by criterion; sources with --full."""
    fields: bool = False
    """Show corresponding fields in the files of the platforms."""

    def answer(self) -> Answer:
        from chronograd.clouds import comparing, field_map, rendering

        if self.compare and self.fields:
            raise InputError("--compare and --fields are two questions", "give one of them")
        return comparing.compared() if self.compare else field_map.mapped() if self.fields else rendering.platforms()


REQUESTS = (Platforms,)
