"""One thing that `doctor` looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["obstacle", "warning", "fine", "absent"]
Number = float | int | str | bool | None
# Among a finding's numbers: the share of the job's predicted step, or of its epoch, that it costs.
SHARE = "share_of_time"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was seen, and what to do.

    Attributes:
        group: the heading it belongs under.
        state: `obstacle`: a run cannot start, or not as asked; `warning`: it would be slower, or may end early; `absent`: it
            cannot be used here, which matters to jobs that ask for it.
        numbers: what was seen, for programs; units stand in names.
    """

    group: str
    what: str
    seen: str
    state: State = "fine"
    to_do: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of the job's time that it costs; 0 where that is not known."""
        return float(self.numbers.get(SHARE) or 0.0)


# A check: whether it applies, how bad that is, and what to do.
Rule = tuple[bool, State, str]


def judged(group: str, what: str, seen: str, numbers: Mapping[str, Number], *rules: Rule) -> Finding:
    """What the first rule that applies makes of what was seen; fine where none does."""
    state, to_do = next(((state, to_do) for applies, state, to_do in rules if applies), ("fine", ""))
    return Finding(group, what, seen, state, to_do, numbers)


def late(group: str, what: str, seconds: float, to_do: str, state: State = "warning") -> Finding:
    """For a check that did not end in time."""
    return Finding(group, what, f"no answer in {seconds:.0f} s", state, to_do)
