"""Job logs of clusters as workloads: Philly (Microsoft, JSON) and Helios (SenseTime, CSV).

A line of a log states when a job was submitted, its GPUs and how long it ran; nothing of its network. Jobs without GPUs or without a time
are left out and counted.

Source: Jeon et al., Analysis of large-scale multi-tenant GPU clusters for DNN training workloads, ATC 2019 (msr-fiddle/philly-traces,
`cluster_job_log`). Hu et al., Characterization and prediction of deep learning workloads in large-scale GPU datacenters, SC 2021
(S-Lab-System-Group/HeliosData, `cluster_log.csv`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from chronograd import door
from chronograd.errors import FileFormatError

HELIOS_COLUMNS = frozenset(("job_id", "gpu_num", "submit_time", "duration"))
# Philly's log has 117,325 jobs, and each GPU of each attempt is a value.
_MOST_BYTES = 1_000_000_000
_MOST_VALUES = 100_000_000
_HEAD_BYTES = 4096


class LoggedJob(NamedTuple):
    """A job of a log. `arrival_s`: after the first one."""

    name: str
    arrival_s: float
    gpus: int
    duration_s: float


class ClusterLog(NamedTuple):
    """The jobs of a log in the order of their arrival, and the number of jobs that were left out."""

    jobs: list[LoggedJob]
    left_out: int


class _Submitted(NamedTuple):
    name: str
    at: datetime
    gpus: int
    duration_s: float


def read_log(path: Path) -> ClusterLog | None:
    """Return the jobs of a log; None for another file.

    Raises: FileFormatError that names the job or the line.
    """
    head = _head(path)
    if head.startswith("["):
        return _philly(path)
    return _helios(path) if set(head.partition("\n")[0].strip().split(",")) >= HELIOS_COLUMNS else None


def _head(path: Path) -> str:
    """Return the first characters of a file, unpacked."""
    with door.opened(path, "a workload", expects=("zip", "gzip", "bzip2", "xz")) as stream:
        head = stream.read(_HEAD_BYTES)
    if door.kind_of(head) is None:
        return (door.decoded(head) or "").lstrip()
    return door.read_text(
        path, "a workload", most_bytes=_MOST_BYTES, most_lines=None, most_values=_MOST_VALUES
    ).lstrip()


def _philly(path: Path) -> ClusterLog | None:
    what = "a job log of Philly"
    text = door.read_text(path, what, most_bytes=_MOST_BYTES, most_lines=None, most_values=_MOST_VALUES)
    rows = door.parse_json(text, path, what)
    if not all(isinstance(row, dict) and isinstance(row.get("attempts"), list) for row in rows):
        return None
    return _log([_philly_job(row, f"{path}, job {number}") for number, row in enumerate(rows, 1)])


def _philly_job(row: Mapping[str, Any], place: str) -> _Submitted | None:
    """Return a job with the time of all its attempts and the GPUs of the last one; None if it never ran to an end."""
    try:
        ran = [one for one in row["attempts"] if one.get("start_time") and one.get("end_time")]
        if not ran:
            return None
        times = [(_time(one["start_time"]), _time(one["end_time"])) for one in ran]
        duration_s = sum((end - start).total_seconds() for start, end in times)
        gpus = sum(len(node["gpus"]) for node in ran[-1]["detail"])
        return _Submitted(str(row["jobid"]), _time(row["submitted_time"]), gpus, duration_s)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{place} is damaged: {error}",
            "each job has jobid, submitted_time and attempts with start_time, end_time, detail",
        ) from None


def _helios(path: Path) -> ClusterLog:
    what = "a job log of Helios"
    text = door.read_text(path, what, most_bytes=_MOST_BYTES, most_lines=None, most_values=_MOST_VALUES)
    reader = csv.DictReader(io.StringIO(text, newline=None), strict=True)
    rows = list[_Submitted | None]()
    try:
        for row in reader:
            rows.append(
                _Submitted(row["job_id"], _time(row["submit_time"]), int(row["gpu_num"]), float(row["duration"]))
            )
    except (csv.Error, TypeError, ValueError) as error:
        raise FileFormatError(
            f"cannot read {path}, line {reader.line_num}: {error}",
            "each line has job_id, gpu_num, submit_time such as 2020-06-09 18:41:01, and duration in seconds",
        ) from None
    return _log(rows)


def _time(text: str) -> datetime:
    """Return a time of a log, such as 2017-10-07 01:11:39. Raises ValueError."""
    return datetime.fromisoformat(text).replace(tzinfo=None)


def _log(rows: Sequence[_Submitted | None]) -> ClusterLog:
    kept = sorted((row for row in rows if row and row.gpus > 0 and row.duration_s > 0), key=lambda row: row.at)
    jobs = [LoggedJob(row.name, (row.at - kept[0].at).total_seconds(), row.gpus, row.duration_s) for row in kept]
    return ClusterLog(_with_different_names(jobs), len(rows) - len(kept))


def _with_different_names(jobs: Iterable[LoggedJob]) -> list[LoggedJob]:
    """Return jobs, with a number behind a name that an earlier one has."""
    counts: dict[str, int] = {}
    named = []
    for job in jobs:
        counts[job.name] = counts.get(job.name, 0) + 1
        named.append(job if counts[job.name] == 1 else job._replace(name=f"{job.name}-{counts[job.name]}"))
    return named
