"""A run directory made from a platform's log: the job, steps and record that `chronograd.clouds.entry` printed.

Logs are text or JSON. Text may have anything before and after the output of a node, as from `kubectl logs --prefix` and `sky
logs`. JSON has events with a `message` (CloudWatch Logs). Or it has entries with a `textPayload`, or a `message` in
`jsonPayload` (Cloud Logging, newest first).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from chronograd import door, files
from chronograd import job as jobs
from chronograd.clouds.entry import JOB, RECORD, STEP
from chronograd.errors import FileFormatError
from chronograd.record import Record, first_problem
from chronograd.rundir import RunDir

MAX_BYTES = 500_000_000
_HEAD = re.compile(rf"({JOB}|{STEP} (\d{{1,6}})|{RECORD}) (?=\{{)")


def collect(log: Path, out: Path) -> RunDir:
    """Create a run directory from a log: job, environment, steps of every rank, and the record if the job finished.

    The log of a restarted job has every start; a repeated line counts once.

    Raises: FileFormatError for a log without a Chronograd job, RunError if `out` exists.
    """
    try:
        text = files.read_bytes(log, MAX_BYTES).decode(errors="replace")
    except OSError as error:
        raise FileFormatError(f"cannot read {log}: {error.strerror}") from None
    started: dict[str, Any] = {}
    steps: dict[int, dict[str, None]] = {}
    parts: dict[int, str] = {}
    wanted = 0  # parts of the record
    for head, data in _objects(messages(text, log)):
        if head[2] is not None:
            steps.setdefault(int(head[2]), {})[data] = None
        elif head[1] == JOB:
            started = started or _data(data, log)
        else:
            part = _data(data, log)
            if isinstance(part.get("part"), int) and isinstance(part.get("of"), int):
                parts[part["part"]], wanted = str(part.get("text")), part["of"]
    if not isinstance(started.get("job"), dict):
        raise FileFormatError(f"{log} has no line of {JOB}", "it is the log of a job that `chronograd launch` rendered")
    is_whole = 0 < wanted <= len(parts) and all(i in parts for i in range(wanted))
    record = _record("".join(parts[i] for i in range(wanted)), log) if is_whole else None
    job = jobs.from_dict(started["job"], str(log))
    if (rank := max(steps, default=0)) >= (most := job.cluster.count + job.communication.servers):
        raise FileFormatError(f"{log} has steps of rank {rank}, and its job has at most {most:,} processes")
    run = RunDir.create(job, started.get("environment", {}), out)
    for rank, lines in steps.items():
        files.write_aside(run.steps_path(rank), "".join(f"{line}\n" for line in lines))
    if record is not None:
        run.save_record(record)
    return run


def _objects(lines: Iterable[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the heads of our lines, and the JSON object that follows each."""
    for line in lines:
        if (head := _HEAD.search(line)) is not None and "}" in line[head.end() :]:
            yield head, line[head.end() : line.rindex("}") + 1]


def _record(text: str, log: Path) -> Record:
    try:
        return Record.model_validate(_data(text, log))
    except ValidationError as error:
        raise FileFormatError(f"{log}: its record is damaged: {first_problem(error)}") from None


def _data(text: str, log: Path) -> dict[str, Any]:
    try:
        data = json.loads(text)
        files.check_plain(data)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{log}: a line of the job is damaged: {error}") from None
    return dict(data)


def messages(text: str, log: Path) -> Iterator[str]:
    """Yield the output of the nodes from text or JSON, line by line, oldest first.

    Raises: FileFormatError for JSON of too many values.
    """
    if text.lstrip().startswith(("{", "[")):
        door.check_amount(text, log, "the log of a job", most_lines=None)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        yield from text.splitlines()
        return
    events = data.get("events", data.get("entries", [])) if isinstance(data, dict) else data
    events = [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []
    if events and _time(events[0]) > _time(events[-1]):
        events.reverse()
    for event in events:
        yield from _message(event).splitlines()


def _time(event: Mapping[str, Any]) -> str:
    """Return a time that sorts as text: CloudWatch's milliseconds, which have equal length, or the text of Cloud Logging."""
    return str(event.get("timestamp", ""))


def _message(event: Mapping[str, Any]) -> str:
    payload = event.get("jsonPayload")
    inner = payload.get("message") if isinstance(payload, dict) else None
    return str(event.get("message") or event.get("textPayload") or inner or "")
