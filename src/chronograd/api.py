"""The verbs as Python functions: `chronograd.predict(...)` does what `chronograd predict ...` does.

Each takes a job, the path of a job file, or the name of a network, and, where only counting is needed, a `torch.nn.Module`; it
returns an `Answer`: `answer.sections` say it, `answer.data` is what `--json` prints, `answer.records` are what it rests on.
`chronograd.show(answer)` prints it. Importing this needs no torch; what needs it says so with MissingExtraError.

    answer = chronograd.predict(model, on="v100", input_shape=(3, 224, 224), batch=64)
    answer.records["v100"].value("step_time_s")
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chronograd import ask, trust
from chronograd import job as jobs
from chronograd.answer import Answer
from chronograd.errors import InputError
from chronograd.job import Job
from chronograd.rundir import listing
from chronograd.trace import Trace

if TYPE_CHECKING:
    from torch import nn

    from chronograd.measure.user_loop import LoopRecorder

PathLike = str | os.PathLike[str]
JobLike = Job | PathLike


def count(network: JobLike | Trace | nn.Module, *overrides: str, batch: int | None = None, optimizer: str | None = None,
          with_work: bool = False, **options: Any) -> Answer:  # fmt: skip
    """Parameters, MACs, FLOPs, activations, memory and receptive fields.

    Args:
        network: a name such as `torchvision:vgg19`, a module, a job, or a saved trace.
        overrides: `FIELD=VALUE` of a job.
        batch: samples of a step; by default one rank's share of the job's batch, else 1.
        optimizer: whose state counts as memory: `sgd`, `sgd-momentum`, `adamw`; by default the job's, else `sgd-momentum`.
        with_work: also each layer's formulas with its numbers in them.
        options: of `chronograd.count.network.trace_network` or, of a module, of `chronograd.count.tracing.trace`: `input_shape`
            (of one sample, which a module needs), `num_classes`, `mode`, `channels_last`.
    Raises: NotFoundError, InputError, TraceError, MissingExtraError without torch.
    """
    from chronograd.count import answer

    trace, job = _trace(network, overrides, options)
    share = 1 if job is None else -(-job.training.batch // job.cluster.count)
    kind = None if job is None else job.training.optimizer_kind
    return answer.count(trace, batch or share, optimizer or kind or "sgd-momentum", with_work=with_work)


def predict(network: JobLike | Trace | nn.Module, *overrides: str, on: str | Sequence[str] = (), trace: Trace | None = None,
            algorithm: str | None = None, data: str | None = None, batch: int | Sequence[int] | None = None,
            precision: str | None = None, mode: Literal["training", "inference"] | None = None, **options: Any) -> Answer:  # fmt: skip
    """Step time by part, memory, throughput, utilisation and cost, each with an 80 % interval; in inference latencies.

    Args:
        network: a job, the path of a job file, a name of a network, a trace, or a module.
        on: devices, such as `v100` or `8xh100`, instead of the job's; one record for each, by that name.
        trace: the job's network, counted before; then no torch is needed.
        algorithm: of the all-reduce; a ring by default.
        data, batch, precision, mode: fields of the job: the data set, the global batch (32 of a module or a trace), the
            precision, training or inference. Several batches, of inference alone, are records of their own.
        options: of a module or a trace, as of `count`; of a name `input_shape` and `num_classes`.
    Raises: as `count`; NotFoundError for a device or a data set.
    """
    from dataclasses import replace

    from chronograd.data.decoding import counted_input
    from chronograd.predict.answer import on_devices, predict_jobs
    from chronograd.predict.serving import predict_batches

    is_job = isinstance(network, Job | str | os.PathLike)
    batches = [] if batch is None else [batch] if isinstance(batch, int) else sorted(batch)
    batch = max(batches, default=None)
    if is_job:
        short = {"data": data, "batch": batch, "precision": precision, "mode": mode}
        named = {"input": options.get("input_shape"), "classes": options.get("num_classes")}
        meant = _asked(network, overrides, {**short, **named}, can_download=True, is_counted=trace is not None)
        asked = meant.job
        counted = trace or _trace(asked, (), {})[0]
    else:
        modes = {} if mode is None else {"mode": mode}
        counted = trace or _trace(network, overrides, {**modes, **options})[0]
        asked = _job_of(counted, batch or 32, precision or "fp32")
    places = [on] if isinstance(on, str) else list(on)
    if len(batches) > 1:
        if counted.mode == "training":
            raise InputError(f"batches {batches} of training", "give one batch, or mode='inference'")
        return predict_batches(counted, on_devices(asked, places), batches)
    known: dict[str, Any] = {}
    if is_job:
        samples = (_samples(asked) or None) if meant.has_data else None
        known = {"samples": samples, "has_epochs": meant.has_epochs, "assumed": list(meant.assumed.values())}
    answer = predict_jobs(counted, on_devices(asked, places), **known, algorithm=algorithm, paced=counted_input)
    return replace(answer, records=dict(zip(places or [asked.cluster.device], answer.records.values(), strict=True)))


def measure(job: JobLike, *overrides: str, num_steps: int | None = None, warmup: int = 5, seconds: float = 60.0,
            out: PathLike | None = None, launcher: str | None = None) -> Answer:  # fmt: skip
    """Time a job's steps for real, on one process or many. The record's name is that of its run directory.

    Args:
        num_steps, warmup, seconds: steps to time (30, in inference 200) after so many others, fewer if they take longer.
        out: the run directory; by default a new one in `runs`.
        launcher: `local`, `torchrun` and others; the backend's own by default.
    Raises: InputError, JobError, RunError.
    """
    from chronograd.launch import jobs as runs

    return _of_run(runs.measure(_job(job, overrides), num_steps=num_steps, warmup=warmup, seconds=seconds, out=out,
                                launcher=launcher).path)  # fmt: skip


def train(job: JobLike, *overrides: str, out: PathLike | None = None, launcher: str | None = None) -> Answer:
    """Train a job to its epochs or target accuracy, with a checkpoint per epoch. Arguments and errors as of `measure`."""
    from chronograd.launch import jobs as runs

    return _of_run(runs.train(_job(job, overrides), out=out, launcher=launcher).path)


def compare(a: PathLike, b: PathLike, *, fail_if: Sequence[str] = (), is_strict: bool = False) -> Answer:
    """Two records side by side; with `fail_if`, such as `step_time > 5%`, a gate, whose `exit_status` is 1 where it fails."""
    from chronograd.compare import answer, joining

    if fail_if:
        baseline, changed = (list(listing.records(side, each_seed=True).values()) for side in (a, b))
        paths = [path for side in (a, b) for _, path in listing.runs(side, each_seed=True)]
        return answer.judge(baseline, changed, fail_if, is_strict, joining.runs_beside(paths, [*baseline, *changed]))
    return answer.compare(*(listing.load(listing.one_run(side)) for side in (a, b)))


def plan(job: JobLike, *overrides: str, on: Sequence[str] = (), data: str | None = None, batch: int | None = None,
         precision: str | None = None, trace: Trace | None = None, largest_batch: bool = False,
         target_accuracy: float | None = None, budget_usd: float | None = None, deadline_s: float | None = None,
         confidence: float = 0.8, epochs_to_target: float | None = None, curve: PathLike | None = None,
         counts: Sequence[int] = (1, 2, 4, 8), batches: Sequence[int] | None = None,
         latency_s: float | None = None) -> Answer:  # fmt: skip
    """The largest batch that fits, the setting for a goal, or settings by the price of a sample; in inference those that keep
    a latency.

    Args:
        job: also the name of a network, whose recipe is that of a published result where one is known.
        on: devices; all GPUs that are rented out by default.
        data, batch, precision: fields of the job.
        trace: of the job, in one memory layout; without it both are counted.
        largest_batch: answer only that.
        target_accuracy, budget_usd, deadline_s, confidence: the goal, and how surely it is to be kept.
        epochs_to_target, curve: what the target takes: epochs, or a run or log of such a job.
        counts, batches: numbers of devices, and batches per device: 16 to 512, in inference 1 to 256, unless a global batch is stated.
        latency_s: of a batch, at most; of a job in inference (`mode=inference` among the overrides).
    Raises: InputError, NotFoundError.
    """
    from chronograd.data.decoding import decoding_of
    from chronograd.data.trace_job import trace_layouts
    from chronograd.plan import answer
    from chronograd.plan.effort import OutOfReach, effort_of
    from chronograd.plan.goal import Goal
    from chronograd.plan.largest import largest_batches
    from chronograd.plan.open_answer import out_of_reach

    meant = _asked(job, overrides, {"data": data, "batch": batch, "precision": precision}, target=target_accuracy,
                   can_download=True, is_counted=trace is not None)  # fmt: skip
    asked = meant.job
    if largest_batch:
        changed = [jobs.changed(asked, [f"cluster.device={name.lower()}"]) for name in on] or [asked]
        return largest_batches(trace or _trace(asked, (), {})[0], changed)
    if asked.mode == "inference":
        from chronograd.plan.serving import serve

        if not target_accuracy is budget_usd is deadline_s is None:
            raise InputError("in inference nothing is trained", "give latency_s instead of a goal")
        places = answer.devices_of(asked, on)
        return serve(
            trace or trace_layouts(asked),
            asked,
            places,
            counts,
            batches or [2**k for k in range(9)],
            latency_s=latency_s,
            confidence=confidence,
        )
    samples, devices = _samples(asked), answer.devices_of(asked, on)
    settings: dict[str, Any] = {
        "counts": counts, "batches": batches or (16, 32, 64, 128, 256, 512), "samples": samples, "decoding": decoding_of(asked),
        "global_batch": asked.training.batch if batches is None and "training.batch" in meant.stated else None,
    }  # fmt: skip
    if target_accuracy is budget_usd is deadline_s is None:
        return answer.list_settings(trace or trace_layouts(asked), asked, devices, **settings)
    name, goal = ask.name_of(asked.network.name), Goal(budget_usd, deadline_s, confidence)
    effort = effort_of(asked, samples, target=target_accuracy, epochs=epochs_to_target,
                       curve=None if curve is None else Path(curve), network=name, has_epochs=meant.has_epochs)  # fmt: skip
    if isinstance(effort, OutOfReach):
        return out_of_reach(f"{name} on {asked.data.name.partition(':')[0]}", effort, goal)
    assumed = meant.for_a_plan(has_epochs=bool(epochs_to_target or curve))
    return answer.reach_goal(
        trace or trace_layouts(asked), asked, devices, **settings, effort=effort, goal=goal, assumed=assumed
    )


def fit(what: Literal["loss", "speed", "batch"], *sources: PathLike, **options: Any) -> Answer:
    """A model fitted to what was measured: a learning curve's forecast, a speed model, steps by batch size.

    Args:
        what: `loss`: options of `fit.forecast.forecast`, such as `target`, and of `fit.loss_answer.read`, such as `metric`;
            `speed` and `batch`: those of the functions in `fit.answer`.
        sources: one run or log for `loss`; runs, or a CSV file, for the others.
    Raises: InputError, FileFormatError.
    """
    from chronograd.fit import answer
    from chronograd.forecast import loss_answer
    from chronograd.forecast.forecasting import forecast

    paths = [Path(source) for source in sources]
    if what == "loss":
        if len(paths) != 1:
            raise InputError(f"{len(paths)} sources of one learning curve", "give one run or log")
        named = ("metric", "column", "schedule", "drops", "planned")
        reading = {name: options.pop(name) for name in named if name in options}
        return loss_answer.loss(forecast(loss_answer.read(paths[0], **reading), **options))
    if what == "speed":
        return answer.speed(paths, **options)
    if what == "batch":
        return answer.batch(paths, **{"metric": "loss", **options})
    raise InputError(f"cannot fit {what!r}", "choose loss, speed or batch")


def judge(network: PathLike | None, figure: str | float | PathLike, *overrides: str, on: str | None = None,
          precision: str | None = None, batch: int | None = None, input_shape: Sequence[int] | None = None,
          mode: Literal["training", "inference"] = "training", trace: PathLike | None = None) -> Answer:  # fmt: skip
    """Whether a throughput is impossible, suspicious, as expected or slow, and what would gain most; `answer.data` has it.

    Args:
        network: a name or the path of a job file; None where a run or a table says what ran.
        figure: such as `812 images/s` or `78 ms`; a number is samples per second; a run, a record, a CSV of throughputs.
        on: what it ran on, such as `8xv100`. batch: of a step over all devices; what usually fits by default.
        trace: a file of the network, counted before.
    Raises: InputError, NotFoundError, FileFormatError; TraceError as `count`.
    """
    from chronograd.judge.ask import ask

    words = [*([] if network is None else [os.fspath(network)]), str(figure), *overrides]
    with trust.only(words):
        return ask(words, place=on, precision=precision, batch=batch, input_shape=input_shape, mode=mode,
                   trace_file=None if trace is None else Path(trace))  # fmt: skip


def forecast(log: PathLike, to: str | float | None = None, *, metric: str | None = None, run: str | None = None,
             schedule: str | None = None, drops: Sequence[float] = (), planned: float | None = None, at: Sequence[float] = (),
             pace_s: float | None = None) -> Answer:  # fmt: skip
    """When a run or log will reach a level: epoch or step, hours and clock time, each with its 80 % interval.

    Args:
        log: a run, or what `chronograd.forecast.logs` reads.
        to: an accuracy, such as `"92%"` or 0.92, or a loss. metric: `loss`, `accuracy` or a column.
        run: one of several runs in a file.
        schedule, drops, planned: of the learning rate, where neither a job nor the log tells it.
        at: epochs or steps to forecast as well. pace_s: seconds of one, where the log has no times.
    Raises: InputError, FileFormatError, NotFoundError.
    """
    import time

    from chronograd.forecast import forecast_answer, loss_answer
    from chronograd.forecast.forecasting import forecast as make_forecast

    level = None if to is None else str(to)
    curve = forecast_answer.with_pace(forecast_answer.read(Path(log), metric, level, run), pace_s)
    curve = loss_answer.with_schedule(curve, schedule, drops, planned)
    target = None if level is None else forecast_answer.level(level, curve.metric)
    return forecast_answer.forecast_answer(make_forecast(curve, target=target, at=at), now=time.time())


def explain(*runs: PathLike) -> Answer:
    """Why it is not faster: where each step goes, and what it loses time to. Of run directories, records, profiler traces."""
    from chronograd.explain import answer

    with trust.only(()):
        return answer.explain([path for _, path in listing.runs(*runs)])


def report(*runs: PathLike | Answer, out: PathLike | None = None, notebook: PathLike | None = None) -> Answer:
    """All that answers and records of runs say; written as an HTML page to `out`, and as an executed notebook.

    Args:
        runs: run directories, record files, folders of them, answers that were saved, and answers at hand, which come first.
    """
    from chronograd.answer import join
    from chronograd.report.runs import report as of_runs

    answers = [one for one in runs if isinstance(one, Answer)]
    paths = [one for one in runs if not isinstance(one, Answer)]
    answer = of_runs(listing.runs(*paths)) if paths else None
    if answers:
        answer = join(answers[0].title, [*answers, *([answer] if answer else [])])
    if answer is None:
        raise InputError("a report of nothing", "give runs, or answers of other verbs")
    if out is not None:
        from chronograd.files import write_aside
        from chronograd.report.html import render_html

        write_aside(Path(out), render_html(answer))
    if notebook is not None:
        from chronograd.report.notebook import write_notebook

        with trust.only(()):
            write_notebook(answer, Path(notebook))
    return answer


def keep_freed_memory() -> bool:
    """Keep what this process frees for what it allocates next; see `chronograd.measure.memory.keep_freed_memory`."""
    from chronograd.measure import memory

    return memory.keep_freed_memory()


def record(path: PathLike | None = None, **options: Any) -> LoopRecorder:
    """A context around a training loop of your own that writes a run; see `chronograd.measure.user_loop.record`."""
    from chronograd.measure.user_loop import record as recorder

    return recorder(path, **options)


def show(answer: Answer) -> None:
    """Print an answer as the command line does."""
    from chronograd.report import terminal

    terminal.show(answer)


def _show_in_notebook() -> None:
    """Register how a running notebook displays an answer. IPython asks this of whoever has a renderer."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.display_formatter.formatters["text/markdown"].for_type(Answer, _as_markdown)


def _as_markdown(answer: Answer) -> str:
    from chronograd.report.markdown import as_markdown

    return as_markdown(answer)


_show_in_notebook()


# -- what is asked about ------------------------------------------------------------------------------------


def _job(given: Any, overrides: Sequence[str], short: Mapping[str, Any] | None = None) -> Job:
    return _asked(given, overrides, short).job


def _asked(given: Any, overrides: Sequence[str], short: Mapping[str, Any] | None = None, **how: Any) -> ask.Asked:
    """The job and what is stated of it: of a job that is given, all that it sets. `how`: as of `ask.ask`."""
    if isinstance(given, Job):
        changes = [*ask.as_overrides(short or {}), *overrides]
        job = jobs.changed(given, changes) if changes else given
        fields = {f"{name}.{field}" for name in ("data", "training") for field in getattr(job, name).model_fields_set}
        return ask.Asked(job, frozenset(fields))
    return ask.ask(os.fspath(given), overrides, short, **how)


def _is_network(given: Any) -> bool:
    """Whether it is no job: a trace, a module, or a name that is no job file's."""
    if isinstance(given, Job):
        return False
    return not isinstance(given, str | os.PathLike) or not ask.is_job_file(os.fspath(given))


def _trace(given: Any, overrides: Sequence[str], options: dict[str, Any]) -> tuple[Trace, Job | None]:
    """The trace, and the job where there is one."""
    if not _is_network(given):
        from chronograd.data.trace_job import trace_job

        job = _job(given, overrides)
        return trace_job(job), job
    if isinstance(given, Trace):
        return given, None
    if isinstance(given, str | os.PathLike):
        if os.fspath(given).endswith((".json", ".json.gz")):
            return Trace.load(given), None
        from chronograd.count.cached import cached_trace

        return cached_trace(os.fspath(given), **options), None
    from chronograd.count.tracing import trace

    shape = options.pop("input_shape", None)
    if shape is None:
        raise InputError(f"{type(given).__name__} does not say what its samples are", "give input_shape=(3, 224, 224)")
    return trace(given, [shape], **options), None


def _job_of(trace: Trace, batch: int, precision: str) -> Job:
    """A job for a network that has none: synthetic samples of its shape."""
    if not (trace.takes_images or trace.takes_tokens):
        data: dict[str, Any] = {"name": jobs.INPUTS}
    else:
        data = {"name": "synthetic", "shape": list(trace.sample_shape), "classes": 2, "samples": max(batch, 1)}
    return jobs.from_dict(
        {
            "mode": trace.mode,
            "network": {"name": trace.network or "network"},
            "data": data,
            "training": {"batch": batch, "precision": precision},
        }
    )


def _samples(job: Job) -> int:
    """Return the training samples of an epoch; 0 where they are not known."""
    from chronograd.data.datasets import card

    return card(job.data).train_size


def _of_run(path: Path) -> Answer:
    from dataclasses import replace

    from chronograd.quantities import record_answer
    from chronograd.record import Record

    record = Record.load(path)
    return replace(record_answer(record), records={str(path): record})
