"""The input of `judge`: settings and figures from a network, a figure, a run or a table."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.ask import check_ordinary, samples_of
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError, InputError, MissingExtraError, NotFoundError
from chronograd.fit.tables import ThroughputRow, precision_of, read_table
from chronograd.hardware import catalog
from chronograd.job import Job, changed, fields_of_place, parse_on, with_ranks
from chronograd.judge.answer import JudgedTable, answer_of, answer_of_table
from chronograd.judge.claim import Claim, is_claim, of_record, parse
from chronograd.judge.verdict import Judged, Stated, judge
from chronograd.record import Record
from chronograd.rundir import listing
from chronograd.trace import Trace

# Maximum number of judged rows of a table: tracing each network takes seconds.
MAX_ROWS = 64
# Batch of a job made from a network's name, until its batch is known: enough for any number of devices.
UNSAID_BATCH = 100_000
_LAYOUTS = {"training.channels_last=true": "nhwc", "training.channels_last=false": "nchw"}
_EXAMPLE = 'write it as chronograd judge resnet50 --on v100 "812 images/s"'


@dataclass
class Traces:
    """Traces of jobs, each computed once. `given`: an existing trace, used instead of the network."""

    given: Trace | None = None
    known: dict[tuple[Any, ...], Trace] = field(default_factory=dict)

    def __call__(self, job: Job, mode: str) -> Trace:
        """Return the trace of a job's network in a mode. Raises as `trace_job`, and InputError if the given trace is a
        different one.
        """
        if self.given is not None:
            if (self.given.mode, self.given.channels_last) != (mode, job.training.channels_last):
                raise InputError(f"the trace is of {self.given.mode}, in another mode or layout", "leave --trace out")
            return self.given
        training = job.training
        layout = training.channels_last, training.param_dtype
        key = (job.network.model_dump_json(), job.data.model_dump_json(), *layout, mode)
        if key not in self.known:
            self.known[key] = _traced(job, mode)
        return self.known[key]


def _traced(job: Job, mode: str) -> Trace:
    name, data = job.network.name, job.data
    is_library = ":" not in name or name.partition(":")[0] in ("timm", "torchvision")
    if name.endswith((".json", ".json.gz")) or data.name != "synthetic" or not is_library:
        return trace_job(job, mode=mode)
    from chronograd.count.cached import cached_trace

    return cached_trace(name, dict(job.network.options), input_shape=data.shape, num_classes=data.classes, mode=mode,
                        channels_last=job.training.channels_last, param_dtype=job.training.param_dtype)  # fmt: skip


def job_of_network(name: str, input_shape: Sequence[int] | None = None) -> Job:
    """Return a job for a network without one: samples of its shape, random ones without classes. Raises as `samples_of`."""
    shape, classes = samples_of(name, input_shape)
    job: dict[str, Any] = {"network": {"name": name}, "training": {"batch": UNSAID_BATCH}}
    if classes is None:
        job["network"]["inputs"] = ["x".join(map(str, shape))]
        return jobs.from_dict({**job, "data": {"name": jobs.INPUTS}})
    return jobs.from_dict({**job, "data": {"name": "synthetic", "shape": list(shape), "classes": classes}})


def ask(words: Sequence[str], *, place: str | None = None, precision: str | None = None, batch: int | None = None,
        input_shape: Sequence[int] | None = None, mode: str = "training", trace_file: Path | None = None) -> Answer[Judged | JudgedTable]:  # fmt: skip
    """Answer the words of a command line: a network or job, a figure or its source, and overrides of the job.

    Args:
        place: such as `8xv100`. precision: `amp` is fp16. batch: samples of a step over all devices. input_shape: shape of one
            sample.
        mode: `training` or `inference`. trace_file: an existing trace of the network.

    Raises: InputError if one of them is missing or given twice; as `judge` for the rest.
    """
    overrides, figures, others = split(words)
    sources = [word for word in others if has_figures(word)]
    names = [word for word in others if word not in sources]
    if len(figures) + len(sources) != 1 or len(names) > 1:
        what = f"{_many(len(names), 'network')} and {_many(len(figures) + len(sources), 'figure')}"
        raise InputError(f"{what} in {' '.join(words)!r:.200}: give one of each", _EXAMPLE)
    if place is not None:
        catalog.device(parse_on(place)[1]).check_predicted()  # report a wrong name before importing torch
    stated = _stated(place, precision, batch, overrides)
    if sources and sources[0].endswith(".csv"):
        return _of_table(Path(sources[0]), place, precision, mode, overrides)
    traces = Traces(None if trace_file is None else Trace.load(trace_file))
    record = listing.load(listing.one_run(sources[0])) if sources else None
    job = _job(names, record, input_shape, stated)
    if record is None and "device" not in job.cluster.model_fields_set:
        raise InputError(
            f"on which device was {figures[0]!r} measured?", "add --on, such as --on v100; --on local is this machine"
        )
    is_given = batch is not None or bool(record) or _has_batch(names, overrides)
    claim = of_record(record) if record is not None else parse(figures[0])
    is_stated = record is not None or jobs.is_job_file(names[0])
    fields = {text.partition("=")[0] for text in stated}
    named = job.cluster.device if record is None and len(catalog.variants(job.cluster.device)) > 1 else ""
    return answer_of(
        judge(
            claim,
            job,
            traces,
            mode=mode,
            stated=Stated(
                has_batch=is_given,
                has_layout=is_stated or "training.channels_last" in fields,
                has_precision=is_stated or "training.precision" in fields,
                device=named,
            ),
        )
    )


def split(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Return the overrides among the words of a command line, the figures, and the names of networks and files."""
    overrides = [word for word in words if re.match(r"[a-z_]+(\.[a-z_]+)*=", word)]
    others = [word for word in words if word not in overrides]
    figures = [word for word in others if is_claim(word) and not os.path.exists(word)]
    return overrides, figures, [word for word in others if word not in figures]


def _many(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'s' * (count > 1)}"


def has_figures(word: str) -> bool:
    """Return whether a word names a run, a record or a table, rather than a network or job."""
    path = Path(word)
    if path.suffix == ".csv":
        return True
    if path.suffix == ".json" and path.is_file():
        return _is_record(path)
    if path.suffix in (".yaml", ".yml", ".gz", ".py"):
        return False
    return path.is_dir() or (Path("runs") / word).is_dir()


def _is_record(path: Path) -> bool:
    from chronograd.files import format_of
    from chronograd.record import FORMAT

    return format_of(path) == FORMAT


def _has_batch(names: Sequence[str], overrides: Sequence[str]) -> bool:
    """Return whether the job states its batch; a job made from a network's name does not."""
    return any(text.startswith("training.batch=") for text in overrides) or jobs.is_job_file(names[0])


def _job(names: Sequence[str], record: Record | None, shape: Sequence[int] | None, stated: Sequence[str]) -> Job:
    """Return the setting of a job file, a network's name or a record, with the stated values in it."""
    if names and jobs.is_job_file(names[0]):
        job = jobs.load(names[0], stated)
        check_ordinary(job)
        return with_ranks(job)
    if record is None or names:
        if not names:
            raise InputError("no network was given", _EXAMPLE)
        own = [] if record is None else _of_record(record)
        return with_ranks(changed(job_of_network(names[0], shape), [*own, *stated]))
    if not record.job:
        raise InputError(
            f"{record.title} does not state its network", "name its network before it: chronograd judge resnet50 RUN"
        )
    return changed(jobs.from_dict(record.job.model_dump(), record.title), [*_of_record(record), *stated])


def _of_record(record: Record) -> list[str]:
    """Return the device and the batch of a record, as overrides."""
    ran_on = catalog.of_driver_name(record.cluster.ran_on) if record.cluster.ran_on else None
    overrides = [f"cluster.count={record.world}"]
    overrides += [f"cluster.device={ran_on.name}"] if ran_on is not None else []
    return overrides + ([f"training.batch={record.global_batch}"] if record.global_batch else [])


def _stated(place: str | None, precision: str | None, batch: int | None, overrides: Sequence[str]) -> list[str]:
    """Return the options as overrides, then the overrides themselves. Raises InputError if one contradicts the place."""
    fields = [] if place is None else fields_of_place(place, overrides)
    if precision is not None:
        fields.append(f"training.precision={'fp16' if precision == 'amp' else precision}")
    return [*fields, *([] if batch is None else [f"training.batch={batch}"]), *overrides]


def _of_table(
    path: Path, place: str | None, precision: str | None, mode: str, overrides: Sequence[str]
) -> Answer[JudgedTable]:
    """Judge each row of a table of throughputs that ran with the stated settings and whose network can be traced."""
    table = read_table(path)
    table = table.stated(
        device=None if place is None else parse_on(place)[1],
        precision=None if precision is None else precision_of(precision),
        phase=table.phase or mode,
        layout=next((_LAYOUTS[text] for text in overrides if text in _LAYOUTS), None),
    ).matched()
    on = place or table.device
    if on is None:
        raise InputError(f"{path.name} does not state its device", "give --on")
    stated = [
        f"training.channels_last={str(table.channels_last).lower()}",
        f"training.compile={str(table.is_compiled).lower()}",
        *_stated(on, precision or table.precision or "fp32", None, overrides),
    ]
    cases: list[Judged] = []
    left_out: list[tuple[str, str]] = []
    missing: MissingExtraError | None = None
    for row in table.rows[:MAX_ROWS]:
        try:
            cases.append(_of_row(row, stated, table.mode, table.layout is not None))
        except ChronogradError as error:
            left_out.append((row.key, error.message.splitlines()[0]))
            missing = error if isinstance(error, MissingExtraError) else missing
    if missing is not None and not cases:
        raise missing
    if len(table.rows) > MAX_ROWS:
        left_out.append(
            (f"{len(table.rows) - MAX_ROWS} rows", f"the first {MAX_ROWS} are judged; give a shorter table")
        )
    return answer_of_table(cases, left_out, table.notes)


def _of_row(row: ThroughputRow, stated: Sequence[str], mode: str, has_layout: bool) -> Judged:
    shape = [3, row.image_size, row.image_size]
    try:
        job = job_of_network(row.model, shape)
    except NotFoundError:
        if ":" in row.model:
            raise
        job = job_of_network(f"timm:{row.model}", shape)
    job = changed(job, [*stated, f"training.batch={row.batch}"])
    claim = Claim(row.batch / row.seconds, "samples per second", row.key)
    return judge(claim, with_ranks(job), Traces(), mode=mode, stated=Stated(has_layout=has_layout), with_advice=False)
