"""The result of one check of `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

State = Literal["obstacle", "warning", "fine", "absent"]
Number = float | int | str | bool | None
# Key in a finding's numbers: its cost as a share of the job's predicted step or epoch.
SHARE = "share_of_time"


@dataclass(frozen=True)
class Finding:
    """The subject of a check, its observation, and the remedy.

    Attributes:
        group: heading of the finding.
        state: `obstacle`: a run cannot start, or not as requested; `warning`: it would be slower, or may end early; `absent`:
            it cannot be used here, which matters to jobs that need it.
        numbers: the observation for programs; names contain units.
    """

    group: str
    what: str
    seen: str
    state: State = "fine"
    to_do: str = ""
    numbers: Mapping[str, Number] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Return the share of the job's time that it costs; 0 if unknown."""
        return float(self.numbers.get(SHARE) or 0.0)


# A rule: whether it applies, its state, and the remedy.
Rule = tuple[bool, State, str]


def judged(group: str, what: str, seen: str, numbers: Mapping[str, Number], *rules: Rule) -> Finding:
    """Return a finding with the state and remedy of the first rule that applies; fine if none does."""
    state, to_do = next(((state, to_do) for applies, state, to_do in rules if applies), ("fine", ""))
    return Finding(group, what, seen, state, to_do, numbers)


def late(group: str, what: str, seconds: float, to_do: str, state: State = "warning") -> Finding:
    """Return the finding of a check that did not end in time."""
    return Finding(group, what, f"no answer in {seconds:.0f} s", state, to_do)
