"""Finished runs of a study as small files, one for each, which can be committed.

    finished/SIZE/ARM/seed-0.json     the job, the record, and the values that were computed from the weights

A study continues from these files on another machine: their runs are restored without their weights, and not trained again.
Nothing in a file names a folder of the machine: an absolute path is reduced to its last part.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronograd import files
from chronograd.errors import FileFormatError, JobError
from chronograd.job import Job, resolved, with_new_names
from chronograd.record import Record
from chronograd.rundir import RunDir
from chronograd.rundir.steps import End
from chronograd.train.checkpoint_folder import list_checkpoints

FORMAT = "chronograd-finished-run"
VERSION = 1
DERIVED = "derived.json"
PROCESSOR = "processor time"  # a derived value
_MANY_PROCESSES = ("apex",)  # backends with processes whose time no line states
RESTORED = "restored_from"  # a key of the run's environment
_FOLDERS = re.compile(r"(?<![\w.~-])/(?:[^\s:/]+/)+")


def store(run: RunDir, path: Path) -> None:
    """Write a finished run to a file, without the loss of each step, which is most of a record."""
    record = run.record().model_dump(mode="json")
    record["curves"].pop("loss", None)
    processor_time(run)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "job": _of_work(run.job()),
        "record": record,
        "derived": _read(run.path / DERIVED) if (run.path / DERIVED).exists() else {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, portable(content))


def restore(stored: Path, job: Job, path: Path) -> RunDir:
    """Create the directory of a finished run from its file, without weights.

    Raises: JobError if the file belongs to another job; the cluster may differ. FileFormatError if it is damaged.
    """
    content = _read(stored)
    try:
        if (content["format"], content["version"]) != (FORMAT, VERSION):
            raise ValueError("another format or version")
        own, record, derived = (
            _renamed(content["job"]),
            Record.model_validate(content["record"]),
            dict(content["derived"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"{stored} holds no finished run: {error}") from None
    asked = portable(_of_work(job))
    if own != asked:
        different = ", ".join(key for key in sorted({*own, *asked}) if own.get(key) != asked.get(key))
        raise JobError(
            f"{stored} is of another job; these sections differ: {different}",
            "remove the file to train this run again, or ask for the job that it states",
        )
    run = RunDir.create(job, {**record.provenance.environment, RESTORED: stored.name}, path)
    files.write_json(path / DERIVED, derived)
    run.save_record(record)
    return run


def has_weights(run: RunDir) -> bool:
    return bool(list_checkpoints(run.checkpoints))


def processor_elsewhere(run: RunDir) -> str:
    """Return the processor of the machine that trained a restored run; nothing for a run of this machine."""
    known = run.environment()
    return str(known.get("processor", "unknown processor")) if RESTORED in known else ""


def is_derived(run: RunDir, name: str) -> bool:
    """Return whether a value of `derived` is known."""
    return (run.path / DERIVED).exists() and name in _read(run.path / DERIVED)


def derived(run: RunDir, name: str, compute: Callable[[], Any]) -> Any:
    """Return a value that needs the weights of a run, as plain data: computed once, then read from its directory."""
    path = run.path / DERIVED
    known = _read(path) if path.exists() else {}
    if name not in known:
        known[name] = compute()
        files.write_json(path, known)
    return known[name]


def processor_time(run: RunDir) -> dict[str, float | None]:
    """Return `user_s` and `system_s`, the processor seconds of all ranks, including start and evaluations.

    They are None if an attempt ended early, which leaves its time unknown, and for a restored run whose file lacks them.
    """
    logs = run.logs().values()
    ends = [end for log in logs for end in log.of(End)]
    is_whole = 0 < len(ends) == sum(log.attempts for log in logs) and run.job().backend not in _MANY_PROCESSES
    sums: dict[str, float | None] = {}
    for name in ("user_s", "system_s"):
        known = [time_s for end in ends if (time_s := getattr(end, name)) is not None]
        sums[name] = sum(known) if is_whole and len(known) == len(ends) else None
    return dict(derived(run, PROCESSOR, lambda: sums))


def portable(value: Any) -> Any:
    """Return plain data in which absolute paths are reduced to their last part.

    >>> portable({"weights": "/home/me/weights/resnet20.th", "name": "voc:/tmp/discs", "per": "images/s", "rate": 0.1})
    {'weights': 'resnet20.th', 'name': 'voc:discs', 'per': 'images/s', 'rate': 0.1}
    """
    match value:
        case str():
            return _FOLDERS.sub("", value)
        case dict():
            return {key: portable(one) for key, one in value.items()}
        case list():
            return [portable(one) for one in value]
    return value


def _of_work(job: Job) -> dict[str, Any]:
    """Return the job as plain data without its cluster, which may differ between machines."""
    return {key: value for key, value in resolved(job).items() if key != "cluster"}


def _renamed(job: dict[str, Any]) -> dict[str, Any]:
    """Return a stored job with the present names of its fields."""
    return {**job, "training": with_new_names(job["training"])} if "training" in job else job


def _read(path: Path) -> dict[str, Any]:
    try:
        content = files.read_json(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path} holds no mapping")
    return content
