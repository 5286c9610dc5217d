"""Targets that run a verb on a stranger's file as the command line does: logs, traces, workloads, schedules, config files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.fuzzing import damage, pack
from benchmarks.fuzzing.pack import Entry
from benchmarks.fuzzing.seeds import run_entries
from benchmarks.fuzzing.targets import MAX_FITTED, ROOT, Target, as_file, as_folder
from chronograd.answer import Answer
from chronograd.cli import common
from chronograd.configs.find import load, packaged
from chronograd.configs.readers import is_read
from chronograd.errors import ChronogradError, InputError
from chronograd.forecast import forecast_answer
from chronograd.forecast.forecasting import forecast
from chronograd.report.text_chart import text_chart
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.log import EVENTS, SCHEDULE, ScheduleLog
from chronograd.schedule.policies import names as policy_names
from chronograd.schedule.workload import drawn, read_workload
from chronograd.verbs.count import Count
from chronograd.verbs.explain import Explain
from chronograd.verbs.forecast import ForecastLog
from chronograd.verbs.predict import Predict
from chronograd.verbs.schedule import ScheduleJobs
from chronograd.watch.queue import queue_answer

# CPU time of an input that is also fitted or simulated, under instrumentation.
MAX_VERB_S = 30.0
# A fit or a simulation takes a thousand times as long as reading. These shares of the inputs have one.
SHARE_OF_FITS, SHARE_OF_SIMULATIONS, SHARE_OF_PREDICTIONS = 1 / 256, 1 / 16, 1 / 16
MAX_SIMULATED = 4


def _is_chosen(data: bytes, share: float) -> bool:
    """Return whether an input belongs to a share of all inputs; the same input always does or does not."""
    return zlib.crc32(data) / 2**32 < share


def _show(answer: Answer[Any]) -> None:
    """Use an answer as the command line does, with --json and without."""
    json.dumps(answer.as_data(), allow_nan=False)
    common.show(answer, as_json=False)


def _each(*reads: Callable[[], object]) -> None:
    """Call each function: an error in one must not hide another. Raises the first error of the product."""
    errors = []
    for read in reads:
        try:
            read()
        except ChronogradError as error:
            errors.append(error)
    if errors:
        raise errors[0]


# -- logs ----------------------------------------------------------------------------------------------------

FOREIGN_LOGS = ROOT / "tests" / "forecast" / "foreign"
NUM_LINES = 30
_QUESTIONS = ((None, None), ("loss", None), ("accuracy", "90%"), (None, "0.5"))


def _log(folder: Path) -> None:
    """Read a log, or a folder of one, with one of several questions; fit some of the short ones."""
    entries = [path for path in sorted(folder.iterdir()) if path.name != "home"]
    path = entries[0] if len(entries) == 1 else folder
    data = path.read_bytes() if path.is_file() else path.name.encode()
    _read_log(path, *_QUESTIONS[zlib.crc32(data) % len(_QUESTIONS)])


def _read_log(path: Path, metric: str | None, to: str | None) -> None:
    curve = replace(forecast_answer.read(path, metric, to, fraction=1.0 if metric else 0.7), may_fall=True)
    target = None if to is None else forecast_answer.level(to, curve.metric)
    data = curve.values.tobytes()
    if len(curve.steps) > MAX_FITTED or not _is_chosen(data, SHARE_OF_FITS):
        return
    if _is_chosen(data, SHARE_OF_FITS / 16):
        _show(ForecastLog(log=str(path), metric=metric, to=to).answer())
    answer = forecast_answer.forecast_answer(forecast(curve, target=target, at=[3.0], draws=1), now=1.8e9)
    _show(answer)
    text_chart(answer.sections[0].figure.panels[0])  # type: ignore[union-attr, arg-type]


def _beginning(path: Path) -> bytes:
    """Return the first lines of a log that consists of lines, and all of any other."""
    data = path.read_bytes()
    lines = data.split(b"\n")
    is_whole = b"\0" in data or data.startswith((b"PK", b"\x1f\x8b")) or len(lines) < NUM_LINES
    return data if is_whole or path.name == "trainer_state.json" else b"\n".join(lines[:NUM_LINES]) + b"\n"


def _log_seeds() -> list[bytes]:
    """Return logs of many programs, one per input, and folders of an MLflow run and of TensorBoard's events."""
    files = sorted(path for path in FOREIGN_LOGS.iterdir() if path.suffix not in (".toml", ".sh"))
    logs = [pack.packed([Entry(path.name, _beginning(path))]) for path in files]
    lines = b"".join(b"%d %g %d\n" % (1_700_000_000_000 + 60_000 * n, 1 / n, n) for n in range(1, 9))
    mlflow = [Entry("run/meta.yaml", b"run_id: a\n"), Entry("run/metrics/loss", lines)]
    short = b"".join(
        b"[2024-03-0%d 10:00:00] epoch %d/9 loss: %.3f acc: %d%%\n" % (n, n, 1 / n, 9 * n) for n in range(1, 9)
    )
    return [*logs, pack.packed(mlflow), pack.packed([Entry("short.log", short)])]


# -- traces --------------------------------------------------------------------------------------------------

FOREIGN_TRACES = ROOT / "tests" / "explain" / "foreign"


def _profile(folder: Path) -> None:
    _show(Explain(runs=tuple(sorted(folder.glob("*.json")))).answer())


def _profile_seeds() -> list[bytes]:
    """Return traces of several programs, and three steps of a rank of two, with and without kernels."""
    traces = [path.read_bytes() for path in sorted(FOREIGN_TRACES.glob("*.json"))]
    for category in ("kernel", "cpu_op"):
        events: list[dict[str, Any]] = []
        for at in (0, 1000, 2000):
            marks = {"ProfilerStep#1": 1000, "Optimizer.step#SGD": 100, "enumerate(DataLoader)#x": 50}
            works = {"gemm": 400, "ncclDevKernel_AllReduce": 700}
            spans = [("user_annotation", 0, marks), (category, 200, works)]
            events += [
                {"ph": "X", "cat": kind, "name": name, "ts": at + after, "dur": us, "tid": 1}
                for kind, after, named in spans
                for name, us in named.items()
            ]
        ranks = {"rank": 0, "world_size": 2}
        trace = {"traceEvents": events, "distributedInfo": ranks, "deviceProperties": [{"name": "g"}]}
        traces.append(json.dumps(trace).encode())
    return traces


# -- workloads and schedules ---------------------------------------------------------------------------------


def _workload(folder: Path) -> None:
    """Read a workload, a CSV file or a folder of job files; simulate some of the short ones."""
    _each(lambda: _schedule(folder / "jobs.csv"), lambda: _schedule(folder / "jobs"))


def _schedule(path: Path) -> None:
    lines = read_workload(path)
    drawn(lines, 3, 600.0, 0)
    data = repr(lines).encode()
    if len(lines) <= MAX_SIMULATED and _is_chosen(data, SHARE_OF_SIMULATIONS):
        policies = (sorted(policy_names())[zlib.crc32(data) % len(policy_names())],)
        _show(ScheduleJobs(workload=path, on="16xv100", policy=policies, draws=1).answer())


def _workload_seeds() -> list[bytes]:
    import torch  # noqa: F401 — its import runs a program of the system, and a job file in a workload needs it

    timed = b"""name,arrival,gpus,servers,batch,deadline,coefficients,steps,weight
large,0,8,2,256,30h,1.02 2.78 4.92 0 0.02,10000,1
small,10min,1,1,32,,2.83 3.92 0 0.11,5000,2
"""
    networks = b"name,arrival,job,data,gpus,epochs,batch,deadline,noise_scale\na,0,resnet50,imagenet,8,90,256,30h,\n,10min,resnet20,cifar10,1,,,,500\n"
    files = b"job,target,precision\njobs/a.yaml,90%,fp32\n"
    job = Entry("jobs/a.yaml", b"network: {name: lenet5}\ndata: {name: digits}\ntraining: {batch: 64, epochs: 2}\n")
    return [
        pack.packed(entries)
        for entries in ([Entry("jobs.csv", timed)], [Entry("jobs.csv", networks)], [Entry("jobs.csv", files), job])
    ]


def _queue(folder: Path) -> None:
    """Show a schedule of someone else, and continue it."""
    _each(lambda: _show(queue_answer(folder)), lambda: _continue(folder))


def _continue(folder: Path) -> None:
    queue = ScheduleLog.read(folder).queue
    log = ScheduleLog.open(folder, queue)
    try:
        log.running(), log.over(), log.abandoned()
        jobs = [ScheduledJob(job.name, job.arrival_s, job.work, [[0.0], [1.0]], Allocation(1)) for job in queue.jobs]
        if jobs and queue.cores:
            log.timetable(jobs, Pool(queue.cores))
        for job in queue.jobs[:1]:
            log.note(job.name, "start", 1)
    finally:
        log.close()
    ScheduleLog.read(folder)


def _queue_seeds() -> list[bytes]:
    jobs = [
        {"name": name, "arrival_s": at, "work": 100, "batch": 10} for name, at in (("a", 0), ("b", 30.5), ("c", 60))
    ]
    saved = json.dumps({"start": 1.7e9, "policy": "optimus", "cores": 2, "jobs": jobs}).encode()
    events = [
        (0, "a", "start"),
        (31, "b", "start"),
        (40, "a", "stop"),
        (45, "a", "start"),
        (90, "a", "end"),
        (99, "b", "fail"),
    ]
    lines = [{"time": 1.7e9 + at, "job": job, "event": kind, "workers": 1} for at, job, kind in events]
    schedule = [Entry(SCHEDULE, saved), Entry(EVENTS, b"".join(json.dumps(line).encode() + b"\n" for line in lines))]
    run = [replace(entry, name=f"a/{entry.name}") for entry in run_entries()]
    return [pack.packed(entries) for entries in (schedule, [*schedule, *run])]


# -- config files of large models ----------------------------------------------------------------------------


def _config(folder: Path) -> None:
    """Count a model, and predict some of them. Families that the library Transformers builds are left out."""
    path = folder / "config.json"
    if not is_read(load(path)):
        raise InputError("a family that Chronograd does not read", "")
    _show(Count(network=str(path), show_work=True).answer())
    if _is_chosen(path.read_bytes(), SHARE_OF_PREDICTIONS):
        _show(Predict(job=str(path), on=("8xh100",)).answer())


def _config_seeds() -> list[bytes]:
    """Return a config file of each family."""
    by_family = {json.loads(path.read_bytes()).get("model_type"): path for _, path in sorted(packaged().items())}
    return [path.read_bytes() for path in by_family.values()]


BY_NAME = {
    target.name: target
    for target in (
        Target("log", as_folder, _log, _log_seeds, damage.of_pack, max_cpu_s=MAX_VERB_S),
        Target("profile", as_file("trace.json"), _profile, _profile_seeds, damage.of_json),
        Target("workload", as_folder, _workload, _workload_seeds, damage.of_pack, max_cpu_s=MAX_VERB_S),
        Target("queue", as_folder, _queue, _queue_seeds, damage.of_pack),
        Target("config", as_file("config.json"), _config, _config_seeds, damage.of_json, max_cpu_s=MAX_VERB_S),
    )
}
