"""A list of runs, and the runs that a RUN argument names. All commands read RUN in the same way.

runs/mine, result.json     a run directory, a record file
mine                       a run in `runs`, if no file has that name
runs/sweep                 a folder: all its runs
runs/one,runs/two          several runs
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.answer import Answer, Section, Table
from chronograd.errors import ChronogradError, FileFormatError, InputError
from chronograd.files import format_of
from chronograd.record import FORMAT, JobHeader, Record
from chronograd.rundir.directory import DEFAULT_PARENT, RunDir, is_run_dir
from chronograd.units import quantity
from chronograd.words import how_many, named

PathLike = str | os.PathLike[str]
HEADLINES = ("step_time_s", "throughput_samples_per_s", "test_accuracy", "training_time_s")
AGENT_HEADLINES = ("throughput_frames_per_s", "mean_return")
COLUMNS = (
    *("record", "state", "network", "data", "backend", "on"),
    *("step time", "throughput", "accuracy", "trained in"),
)


def runs(*texts: PathLike, parent: PathLike = DEFAULT_PARENT, each_seed: bool = False) -> list[tuple[str, Path]]:
    """Return the runs that RUN arguments name, each with a unique short name.

    Paths that are not runs, such as a profiler trace or a missing file, are returned unchanged; their reader reports the error.

    Args:
        parent: the folder to search for a name that is not a path.
        each_seed: return the finished seeds of a run over several seeds, instead of the run.
    """
    paths = [path for text in texts for word in _words(text, parent) for path in _expanded(word)]
    pairs: list[tuple[str, Path]] = []
    for path in paths:
        seeds = [seed for seed in seeds_of(path) if (seed / "record.json").exists()] if each_seed else []
        for one in seeds or [path]:
            full = Path(os.path.realpath(one))  # Path.resolve raises on a loop of links
            whole = os.path.basename(os.path.realpath(path))
            stem = full.stem if full.is_file() else f"{whole}/{full.name}" if seeds else full.name
            pairs.append((stem, one))
    return list(named(pairs).items())


def one_run(text: PathLike, parent: PathLike = DEFAULT_PARENT, hint: str = "name one of them") -> Path:
    """Return the single run that an argument names. Raises InputError if it names several."""
    pairs = runs(text, parent=parent)
    if len(pairs) != 1:
        names = [name for name, _ in pairs]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        raise InputError(
            f"{os.fspath(text)!r} names {how_many(len(names), 'runs')}, not one{': ' * bool(names)}{shown}", hint
        )
    return pairs[0][1]


def records(*texts: PathLike, each_seed: bool = False) -> dict[str, Record]:
    """Return the records of the runs that arguments name. Raises FileFormatError if a run has none."""
    return {name: load(path) for name, path in runs(*texts, each_seed=each_seed)}


def load(path: Path) -> Record:
    """Return the record of a run. Raises FileFormatError if there is none, also for a folder without runs."""
    if path.is_dir() and not is_run_dir(path):
        raise FileFormatError(f"no record at {path}: it is no run and holds none", "`chronograd records` lists runs")
    return Record.load(path)


def seeds_of(path: Path) -> list[Path]:
    """Return the runs of a run over several seeds, in order of seeds; none for a single run."""
    found = [one for one in path.glob("seed-*") if one.name[5:].isdecimal()] if is_run_dir(path) else []
    return sorted(found, key=lambda one: int(one.name[5:]))


def _words(text: PathLike, parent: PathLike) -> list[Path]:
    """Return the paths of one argument. An existing path may contain a comma. Raises InputError if no path is given."""
    whole = os.fspath(text)
    words = [whole] if os.path.exists(whole) else [word for word in whole.split(",") if word]
    if not words:
        raise InputError(f"{whole!r} names no run", "`chronograd records` lists what there is")
    inside = [os.path.join(parent, word) for word in words]
    return [
        Path(there if os.path.exists(there) and not os.path.exists(word) else word)
        for word, there in zip(words, inside, strict=True)
    ]


def _expanded(path: Path) -> list[Path]:
    """Return the runs of a folder. A single run, or a path that is not a run, is returned unchanged."""
    if path.name == "record.json" and is_run_dir(path.parent):
        return [path.parent]
    if not path.is_dir() or is_run_dir(path):
        return [path]
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    return [
        one
        for one in inside
        if is_run_dir(one) or (one.suffix == ".json" and one.is_file() and format_of(one) == FORMAT)
    ] or [path]


# -- the list -----------------------------------------------------------------------------------------------


_NO_RECORD = {"title": "", "created": "", "job": {}, "cluster": {}, "backend": "", "quantities": {}}


@dataclass(frozen=True)
class RunSummary:
    """One row of a listing: a run directory or a record file. `problem` states why it could not be read."""

    path: Path
    record: Record | None = None
    job: JobHeader = field(default_factory=JobHeader)
    problem: str = ""

    def as_data(self) -> dict[str, Any]:
        entry = {"path": str(self.path), "state": self.state, "problem": self.problem, **_NO_RECORD}
        if self.record is not None:
            entry |= self.record.model_dump(mode="json", include=set(_NO_RECORD))
        return {**entry, "job": self.job}

    @property
    def state(self) -> str:
        return "damaged" if self.problem else "unfinished" if self.record is None else self.record.kind


def list_runs(parent: PathLike = DEFAULT_PARENT) -> list[RunSummary]:
    """Return the run directories and record files directly in a folder, by name. A damaged one does not hide the others."""
    parent = Path(parent)
    if not parent.is_dir():
        return []
    candidates = sorted(p for p in parent.iterdir() if not p.name.startswith("."))
    return [s for s in map(_summary, candidates) if s is not None]


def _summary(path: Path) -> RunSummary | None:
    try:
        if path.suffix == ".json" and path.is_file():
            record = Record.load(path)
            return RunSummary(path, record, record.job)
        if not is_run_dir(path):
            return None
        run = RunDir(path)
        if run.is_finished:
            record = run.record()
            return RunSummary(path, record, record.job)
        job = jobs.resolved(run.job()) if (path / "job.yaml").exists() else {}
        return RunSummary(path, None, JobHeader.model_validate(job))
    except ChronogradError as error:
        return None if path.suffix == ".json" else RunSummary(path, problem=error.message)


def listing(
    parent: PathLike = DEFAULT_PARENT, *, job: str | None = None, kind: str | None = None, device: str | None = None
) -> Answer:
    """Return the predicted and measured runs directly in a folder: run directories and record files.

    Args:
        job: only runs whose network, data, backend or title contains this text; case is ignored.
        kind: only runs that are predicted, measured, unfinished or damaged.
        device: only runs whose device, or the hardware they ran on, contains this text.
    """
    rows = [
        summary
        for summary in list_runs(parent)
        if (kind is None or summary.state == kind)
        and _has(_job_words(summary), job)
        and _has(_device_words(summary), device)
    ]
    wanted = " that match" if job or kind or device else ""
    section = Section(
        title=f"Records in {os.fspath(parent)}",
        takeaway=_counted(rows) if rows else f"There are no records{wanted} in {os.fspath(parent)}.",
        table=Table(COLUMNS, [_row(summary) for summary in rows], {6, 7, 8, 9}, drop=(4, 5, 3, 7)),
        lines=[f"{summary.path.name} is damaged: {summary.problem}" for summary in rows if summary.problem],
    )
    return Answer("Records", sections=[section], result=rows)


def _counted(rows: Sequence[RunSummary]) -> str:
    """Return the number of runs in each state, and the newest run."""
    states = [summary.state for summary in rows]
    counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    finished = [summary for summary in rows if summary.record is not None]
    newest = max(finished, key=lambda summary: summary.record.created if summary.record else "", default=None)
    newest_text = f"; the newest is {newest.path.name}" if newest is not None and len(rows) > 1 else ""
    return f"{how_many(len(rows), 'records')}: {', '.join(counts)}{newest_text}."


def _row(summary: RunSummary) -> list[str]:
    record = summary.record
    figures = ["–"] * len(HEADLINES)
    if record is not None:
        figures = [quantity(record[name].value, record[name].unit) for name in HEADLINES]
        if (
            "mean_return" in record.quantities
        ):  # an agent's run has returns and frames instead of accuracies and samples
            figures[1], figures[2] = (quantity(record[name].value, record[name].unit) for name in AGENT_HEADLINES)
    job = [part or "–" for part in (summary.job.network.name, summary.job.data.name, summary.job.backend)]
    return [summary.path.name, summary.state, *job, _ran_on(summary), *figures]


def _ran_on(summary: RunSummary) -> str:
    """Return the devices, such as 8x v100; for a measured run the hardware it ran on."""
    asked = summary.job.cluster
    cluster = asked if summary.record is None else summary.record.cluster
    where = cluster.ran_on or cluster.device or asked.device
    return f"{cluster.count or asked.count or 1}x {where}" if where else "–"


def _device_words(summary: RunSummary) -> str:
    return f"{_ran_on(summary)} {summary.job.cluster.device}"


def _job_words(summary: RunSummary) -> str:
    job = summary.job
    title = summary.record.title if summary.record is not None else ""
    return " ".join(filter(None, (job.network.name, job.data.name, job.backend, title, summary.path.name)))


def _has(text: str, wanted: str | None) -> bool:
    return wanted is None or wanted.lower() in text.lower()
