"""The whole loop on one job: count, calibrate, predict, measure, explain, train, forecast, plan, report.

Predicted and measured records are of one type, so each stage only adds records; the page at the end is made from
them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronograd.calibrate.machine import calibrate_once
from chronograd.count.layers import summary
from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.explain.answer import disturbances
from chronograd.fit.learning import held_against, what_was_reached
from chronograd.fit.loss_answer import forecast_from_half
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.plan.elsewhere import elsewhere, plan_section
from chronograd.predict.prediction import predict
from chronograd.record import Record
from chronograd.report.loop import Loop, prediction_words
from chronograd.rundir import Line, RunDir
from chronograd.rundir.steps import Epoch
from chronograd.trace import Trace
from chronograd.units import percent, si
from chronograd.words import processes

WORLDS = (1, 2)
NUM_STEPS = 60

Say = Callable[[str], None]
Bar = Callable[[str], Any]


def run_loop(job: Job, say: Say, bar: Bar, parent: Path) -> Loop:
    """Take a job through every stage.

    Args:
        say: called with one line for each thing found.
        bar: a context manager of a title that yields a function of the share done, 0 to 1, and a text.
        parent: where run directories are made.

    Raises: what the stages raise; nothing is measured before the job is known to be valid here.
    """
    jobs.check(job)
    data, trace = card(job.data), trace_job(job)
    optimizer = job.training.optimizer_kind
    loop = Loop(job, summary(trace, job.training.batch, optimizer))
    macs, flops = si(trace.macs(), "MAC"), si(trace.flops(job.training.batch), "FLOP")
    say(
        f"count      {trace.network} on {data.name}: {trace.params:,} parameters, {macs} per sample forward, {flops} per step"
    )
    with bar("calibrate") as report:
        device = calibrate_once(report)
    rates = f"{si(device.peak(), 'FLOP/s')} and {si(device.bandwidth_bytes_per_s, 'B/s')}"
    say(f"calibrate  {device.title}: {rates} reached")
    for world in WORLDS:
        predict_and_measure(loop, trace, world, data.train_size, bar, parent)
        say(f"{processes(world):<10} {prediction_words(loop, world)}")
    loop.trained = trained = train(loop, bar, parent)
    say(f"train      {what_was_reached(trained)}")
    try:
        loop.forecast = forecast_from_half(loop.runs["trained"])
        say(f"forecast   {held_against(loop.forecast)}")
    except InputError as error:
        say(f"forecast   none: {error.message}")
    alike = changed(
        job, ["backend=single", "cluster.count=1", f"training.epochs={max(1, int(trained.value('epochs')))}"]
    )
    loop.plan = elsewhere(trace, alike, data.train_size)
    say(f"plan       {plan_section(loop.plan).takeaway}")
    return loop


def at_world(job: Job, world: int) -> Job:
    """The job on `world` processes of this machine, each with the same share of its cores, so that they compare."""
    backend = "single" if world == 1 else "ddp"
    threads = job.cluster.threads or max(1, environment.cores() // max(WORLDS))
    return changed(job, [f"cluster.count={world}", f"backend={backend}", f"cluster.threads={threads}"])


def predict_and_measure(loop: Loop, trace: Trace, world: int, samples: int, bar: Bar, parent: Path) -> None:
    """Steps on `world` processes, as predicted, as measured, and what disturbed the measurement."""
    job, name = at_world(loop.job, world), processes(world)
    predicted = predict(trace, job, samples=samples)
    kept = RunDir.create(job, environment.environment(), parent=parent)
    kept.save_record(predicted)
    flops, done = predicted.provenance.flops_per_step_per_rank, 0
    with bar(f"measure {name}") as report:

        def on_line(line: Line) -> None:
            nonlocal done
            done += 1
            report(min(1.0, done / NUM_STEPS), f"step {done}")

        run = jobs.measure(job, num_steps=NUM_STEPS, parent=parent, flops_per_step=flops, on_line=on_line)
    loop.predicted[world], loop.measured[world], loop.met[world] = predicted, run.record(), disturbances(run.path)
    loop.runs |= {f"predicted {name}": kept.path, f"measured {name}": run.path}


def train(loop: Loop, bar: Bar, parent: Path) -> Record:
    """The record of the job, trained on one process."""
    epochs = loop.job.training.epochs
    with bar("train") as report:

        def on_line(line: Line) -> None:
            if isinstance(line, Epoch) and line.test_accuracy is not None:
                text = f"epoch {line.epoch} of {epochs}, test accuracy {percent(line.test_accuracy)}"
                report(min(1.0, line.epoch / epochs), text)

        run = jobs.train(at_world(loop.job, 1), parent=parent, on_line=on_line)
    loop.runs["trained"] = run.path
    return run.record()
