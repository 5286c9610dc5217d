"""`explain`: evidence of one or several runs, the split of their steps, and the causes of lost time, largest cost first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from chronograd.errors import InputError
from chronograd.explain import profiler
from chronograd.explain import ranks as across
from chronograd.explain.causes import CAUSES, Diagnosis
from chronograd.explain.evidence import Evidence, of_record, read
from chronograd.explain.split import Split, split
from chronograd.files import format_of
from chronograd.record import FORMAT, Record
from chronograd.rundir import is_run_dir
from chronograd.rundir.listing import runs as runs_of
from chronograd.units import percent
from chronograd.words import listed

# Characters for the name of one run, and of one of several, in a line or table of text.
LONGEST_NAME, LONGEST_OF_SEVERAL = 56, 20


@dataclass(frozen=True)
class Explained:
    """One run: the split of its time, and the result for each cause; found causes first, largest cost first."""

    run: Evidence
    split: Split
    findings: list[Diagnosis]

    @property
    def causes(self) -> list[Diagnosis]:
        return [finding for finding in self.findings if finding.is_found]

    def as_data(self) -> dict[str, Any]:
        ranks = self.run.ranks.items()
        devices = {str(number): rank.device for number, rank in ranks if rank.device is not None}
        return {
            "run": self.run.name,
            "kind": self.run.kind,
            "world": self.run.world,
            "step": {
                name: quantity.model_dump(mode="json") | {"share": share}
                for name, quantity, share in [("step", self.split.step_s, 1.0), *self.split.rows()]
            },
            **({"devices": devices} if devices else {}),
            "start_up": self.split.startup_s,
            "causes": self.causes,
            "others": [finding for finding in self.findings if not finding.is_found],
            "notes": self.run.notes,
        }


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`: all runs, in order of ranks; for several runs, `compared` has the time by number of ranks."""

    runs: list[Explained]
    compared: list[across.Compared]

    @property
    def void(self) -> str:
        """Return why a comparison is unreliable, in words: other programs used the host, or must have; empty if it is reliable."""
        busy = [
            f"other processes used {percent(finding.cost or 0.0, 0)} of the host during {one.run.title}"
            for one in self.runs
            for finding in one.causes
            if finding.cause == "busy_host"
        ]
        if self.compared and not busy:
            last = self.compared[-1]
            if self.compared[0].world == 1 < last.world and (last.efficiency or 0.0) > across.MAX_EFFICIENCY:
                busy = [
                    f"{last.world} ranks cannot process {last.throughput or 0.0:.2f} times the samples of one. Something slowed "
                    f"{self.runs[0].run.title}, or it ran on a slower machine"
                ]
        if not busy or not self.compared:
            return ""
        return f"the comparison is unreliable: {listed(busy)}. Run {'them' if len(busy) > 1 else 'it'} again while nothing else runs"

    @property
    def causes(self) -> list[Diagnosis]:
        """Return the causes in the run with the most ranks, because users want that one faster."""
        return self.runs[-1].causes

    def as_data(self) -> dict[str, Any]:
        return {
            "causes": self.causes,
            "runs": self.runs,
            "compared": [self._row(row) for row in self.compared],
            "void": self.void,
        }

    def _row(self, row: across.Compared) -> dict[str, Any]:
        """Return the comparison of one run with the others; without ratios if they are unreliable."""
        data = asdict(row) | {"efficiency": row.efficiency}
        return data | dict.fromkeys(("speedup", "throughput", "efficiency")) if self.void else data


def explain(paths: Sequence[Path]) -> Explanation:
    """Explain why runs are not faster, from run directories, records, or traces of torch.profiler. Traces of one run are
    combined.

    A folder of traces, as written by torch's tensorboard_trace_handler, stands for these traces.

    Raises: InputError for no path or the same run twice; FileFormatError, RunError as reading does.
    """
    paths = [trace for _, path in runs_of(*paths) for trace in _traces_in(path)]
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise InputError("the same run is given twice", "name each run once")
    records = {path: Record.load(path) for path in paths if path.is_file() and format_of(path) == FORMAT}
    traces = [path for path in paths if path.is_file() and path not in records]
    runs = [read(path) for path in paths if not path.is_file()]
    runs += [of_record(record, path.name) for path, record in records.items()]
    runs += profiler.read(traces) if traces else []
    runs = _labelled(sorted(runs, key=lambda run: run.world))
    explained = [explain_one(run) for run in runs]
    if len(runs) > 1:
        explained = [explained[0], *(_with_fewer_ranks(runs[0], one) for one in explained[1:])]
    return Explanation(explained, across.compare(runs) if len(runs) > 1 else [])


def _traces_in(path: Path) -> list[Path]:
    """Return the traces of a folder that is not a run; else the path itself."""
    if not path.is_dir() or is_run_dir(path):
        return [path]
    return sorted(path.glob("*.pt.trace.json*")) or [path]


def _labelled(runs: Sequence[Evidence]) -> list[Evidence]:
    """Return the runs with short names for text: run 1, run 2 … if one of several is long; a single long name loses its middle."""
    if len(runs) == 1:
        return [replace(run, label=shortened(run.name, LONGEST_NAME)) for run in runs]
    if all(len(run.name) <= LONGEST_OF_SEVERAL for run in runs):
        return list(runs)
    return [replace(run, label=f"run {number}") for number, run in enumerate(runs, start=1)]


def shortened(name: str, most: int) -> str:
    """Return a name without its middle if it is too long.

    >>> shortened("resnet50_worker0.1623143089861.json", 20)
    'resnet50_w…9861.json'
    """
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - (most - 1 - most // 2) :]}"


def explain_one(run: Evidence) -> Explained:
    """Explain one run alone."""
    parts = split(run)
    return Explained(
        run,
        parts,
        _ranked([cause.judge(name, run, parts) for name, cause in CAUSES.items() if cause.applies(run)], run),
    )


def _with_fewer_ranks(first: Evidence, one: Explained) -> Explained:
    """Return the explanation with the facts that need a run on fewer ranks."""
    if one.run.world == first.world:
        return one
    found = across.work_scaled(first, one.run)
    return replace(one, findings=_ranked([found, *one.findings], one.run))


def _ranked(findings: Sequence[Diagnosis], run: Evidence) -> list[Diagnosis]:
    """Return the findings with found causes first; within each verdict the largest displayed cost comes first.

    A busy host comes before its symptoms, which then get no remedies: rank, disk and link are in order.
    """
    stalls = run.stalls_in_training.found
    is_known = bool(stalls) and max(stalls, key=lambda stall: stall.seconds).reason in ("stopped", "link")
    symptoms = {"slow_link", "slow_worker"} | (set() if is_known else {"stall"})
    is_busy = any(finding.cause == "busy_host" and finding.is_found for finding in findings)
    if is_busy:
        findings = [replace(finding, remedies=()) if finding.cause in symptoms else finding for finding in findings]
    costs = [finding.cost or 0.0 for finding in findings if finding.cause in symptoms and finding.is_found]
    most = max(costs, default=0.0) if is_busy else 0.0

    def cost(finding: Diagnosis) -> float:
        return max(finding.cost or 0.0, most if finding.cause == "busy_host" else 0.0)

    verdicts = ("found", "not found", "not measured")
    return sorted(
        findings,
        key=lambda finding: (verdicts.index(finding.verdict), -cost(finding), is_busy and finding.cause != "busy_host"),
    )
