"""`platforms`: what a job can be rendered for, and how the platforms compare."""

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

    Each with its file, the instance types that are known here with their devices, and the options it cannot do without.
    """

    verb = "platforms"
    examples = (
        "chronograd platforms --compare",
        "chronograd platforms --compare --full",
        "chronograd platforms --fields --json",
    )

    compare: bool = False
    """What each offers, criterion by criterion; sources with --full."""
    fields: bool = False
    """Which field of each platform's file says the same thing."""

    def answer(self) -> Answer:
        from chronograd.clouds import comparing, field_map, rendering

        if self.compare and self.fields:
            raise InputError("--compare and --fields are two questions", "ask one at a time")
        return comparing.compared() if self.compare else field_map.mapped() if self.fields else rendering.platforms()


REQUESTS = (Platforms,)
