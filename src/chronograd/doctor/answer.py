"""Answer of `doctor`: whether a run can start, the obstacles with their remedies, then all other checks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chronograd.answer import Answer, Section, Table, as_json
from chronograd.doctor import software
from chronograd.doctor.examine import can_start, examine
from chronograd.doctor.finding import Finding, State
from chronograd.units import percent

if TYPE_CHECKING:
    from chronograd.job import Job

TITLES: dict[State, str] = {
    "obstacle": "Obstacles",
    "warning": "Warnings",
    "fine": "Fine",
    "absent": "Not here",
}

# Findings that cost a share of the time, in words.
IN_WORDS = {"exchange": "waiting for gradients", "speed": "writing checkpoints"}


@dataclass(frozen=True)
class Examined:
    """The result of `doctor`: every finding, and the backends and launchers that are available here."""

    can_start: bool
    seconds: float
    findings: list[Finding]
    backends: list[software.Availability]
    launchers: list[software.Availability]


def doctor(job: Job | None = None, hosts: str = "", out: str = "runs", everything: bool = False) -> Answer[Examined]:
    """Check this machine, for a job or in general, with the arguments of `examine`. The exit status is 1 if a run cannot start."""
    started = time.monotonic()
    findings = examine(job, hosts, out, everything)
    took_s, is_ready = time.monotonic() - started, can_start(findings)
    result = Examined(is_ready, took_s, list(findings), software.backends(), software.launchers())
    sections = sections_of(findings, took_s)
    return Answer("Before a run", sections=sections, exit_status=0 if is_ready else 1, result=result)


def sections_of(findings: Sequence[Finding], took_s: float) -> list[Section]:
    """Return one section per state, obstacles first; the first one has the verdict."""
    verdict = "A run can start" if can_start(findings) else "A run cannot start as it is"
    worst = max((one for one in findings if one.state == "warning"), key=lambda one: one.share, default=None)
    if worst is not None and worst.share > 0:
        verdict += f", and {percent(worst.share, 0)} of its time goes into {IN_WORDS.get(worst.what, worst.what)}"
    takeaway = f"{verdict}. The checks took {took_s:.1f} s."
    sections = []
    for state, title in TITLES.items():
        chosen = [finding for finding in findings if finding.state == state]
        if chosen:
            things = f"This section lists {len(chosen)} of {len(findings)} checks."
            table = Table(("", title.lower() if state != "absent" else "not here"), _rows(chosen))
            sections.append(Section(title, f"{takeaway} {things}".strip(), table=table, data=as_json(chosen)))
            takeaway = ""
    return sections


def _rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Return rows of a group, named in its first row, and a finding, with its remedy on a separate line."""
    rows, group = [], ""
    for finding in findings:
        seen = finding.seen if finding.what == finding.group else f"{finding.what}: {finding.seen}"
        rows.append(
            [finding.group if finding.group != group else "", seen + (f"\n→ {finding.to_do}" if finding.to_do else "")]
        )
        group = finding.group
    return rows
