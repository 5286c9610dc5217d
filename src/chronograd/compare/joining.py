"""The prediction that belongs to a measurement: one of the same job, or of the same work if the measurement states no job."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from chronograd.errors import ChronogradError
from chronograd.files import format_of
from chronograd.hardware import catalog
from chronograd.record import FORMAT, Record
from chronograd.rundir import is_run_dir

MAX_READ = 50  # newest files read from a folder
SAME_WORK = 1e-3  # relative, of the FLOPs of a step: different losses and last batches change them by less
HOW_TO_JOIN = "`chronograd.record(..., job=FILE)` and `chronograd predict FILE` with the same job file match"


def job_key(record: Record) -> str:
    """Return a key of the job of a record without its hardware; equal for records of one job, and for all loops without a job."""
    return json.dumps(record.job.model_dump(exclude={"cluster", "backend"}), sort_keys=True, default=str)


def is_same_work(predicted: Record, measured: Record) -> bool:
    """Return whether a measurement has the job of a prediction; without a job, whether FLOPs per step, samples and ranks agree."""
    if measured.job:
        return job_key(predicted) == job_key(measured)
    ours, theirs = (one.provenance.flops_per_step_per_rank for one in (measured, predicted))
    if not ours or not theirs or measured.world != predicted.world:
        return False
    return measured.cluster.batch_per_rank == predicted.cluster.batch_per_rank and math.isclose(
        ours, theirs, rel_tol=SAME_WORK
    )


def devices_of(record: Record) -> set[str]:
    """Return the device names of a record: the requested device, and the catalogue name of the GPU on which it ran."""
    gpu = catalog.of_driver_name(record.cluster.ran_on) if record.cluster.ran_on else None
    return {record.device} | ({gpu.name} if gpu is not None else set())


def prediction_near(measured: Record, *folders: Path) -> tuple[Path, Record] | None:
    """Return the newest prediction for the same work, ranks and device, among the records directly in some folders."""
    fitting = [
        (path, record)
        for path, record in _predictions(folders)
        if record.device in devices_of(measured) and record.world == measured.world and is_same_work(record, measured)
    ]
    return max(fitting, key=lambda one: one[1].created, default=None)


def runs_beside(paths: Iterable[Path], records: Sequence[Record]) -> list[list[Record]]:
    """Return other measured runs of the same jobs from the folders of some runs, in groups of one job on one machine, newest
    first.
    """
    own = {Path(os.path.realpath(path)) for path in paths}
    groups: dict[tuple[object, ...], list[Record]] = {_place(record): [] for record in records if record.job}
    beside = [
        one
        for folder in {path.parent for path in own}
        for one in folder.iterdir()
        if Path(os.path.realpath(one)) not in own
    ]
    for path in sorted((one for one in beside if is_run_dir(one)), key=lambda one: one.stat().st_mtime)[-MAX_READ:]:
        with contextlib.suppress(ChronogradError):
            record = Record.load(path)
            if record.kind == "measured" and _place(record) in groups:
                groups[_place(record)].append(record)
    return [group for group in groups.values() if len(group) > 1]


def _place(record: Record) -> tuple[object, ...]:
    cluster = record.cluster
    return job_key(record), cluster.ran_on, cluster.count, cluster.threads, record.backend


def _predictions(folders: Iterable[Path]) -> Iterator[tuple[Path, Record]]:
    for folder in dict.fromkeys(Path(os.path.realpath(one)) for one in folders if one.is_dir()):
        files = [path for path in folder.glob("*.json") if path.is_file()]
        files += [one / "record.json" for one in folder.iterdir() if is_run_dir(one) and (one / "record.json").exists()]
        for path in sorted(files, key=lambda one: one.stat().st_mtime, reverse=True)[:MAX_READ]:
            try:
                if format_of(path) != FORMAT:
                    continue
                record = Record.load(path)
            except ChronogradError:
                continue
            if record.kind == "predicted":
                yield path, record
