"""The whole loop on one job: count, calibrate, predict, measure, explain, train, forecast, plan, report.

Predicted and measured records have the same type, so each stage only adds records. The page at the end is made from them alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chronograd.answer import Answer
from chronograd.calibrate import pace
from chronograd.calibrate.machine import Setup, calibrate_once, lays_channels_last
from chronograd.count.layers import summary
from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.explain.answer import disturbances
from chronograd.forecast.learning import held_against, what_was_reached
from chronograd.forecast.loss_answer import forecast_from_half
from chronograd.hardware.catalog import Device
from chronograd.job import Job, changed
from chronograd.launch import jobs
from chronograd.launch.repeats import record_of_rounds
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.plan.elsewhere import elsewhere, plan_section
from chronograd.predict.prediction import predict
from chronograd.record import Record
from chronograd.report.loop import Loop, prediction_words
from chronograd.rundir import Line, RunDir
from chronograd.rundir.steps import Epoch
from chronograd.trace import Trace
from chronograd.units import percent, si
from chronograd.words import how_many, processes

WORLDS = (1, 2)
# Steps are measured in rounds in which the numbers of processes take turns, so that a disturbance affects all of them.
ROUNDS, STEPS_PER_ROUND = 3, 20
# A job that trains here within minutes does not need a rented GPU: the plan is then that of a larger training.
RENTED_FROM_S = 600.0

Say = Callable[[str], None]
Bar = Callable[[str], Any]


def run_loop(job: Job, say: Say, bar: Bar, parent: Path, rent: Callable[[], Answer]) -> Loop:
    """Take a job through every stage.

    Args:
        say: called with one line for each result.
        bar: a context manager of a title that yields a function of the completed share, 0 to 1, and a text.
        parent: folder of the run directories.
        rent: returns the plan of a larger training, for a job that trains here within minutes.

    Raises: the errors of the stages; nothing is measured before the job is known to be valid here.
    """
    jobs.check_trained(job)
    jobs.check(job)
    data, trace = card(job.data), trace_job(job)
    optimizer = job.training.optimizer_kind
    loop = Loop(job, summary(trace, job.training.batch, optimizer))
    macs, flops = si(trace.macs(), "MAC"), si(trace.flops(job.training.batch), "FLOP")
    say(
        f"count      {trace.network} on {data.name}: {how_many(trace.params, 'parameters')}, {macs} per sample forward, {flops} per step"
    )
    with bar("calibrate") as report:
        device, why = calibrate_once(report, [Setup(max(WORLDS), threads_of(job), lays_channels_last(job.training))])
    rates = f"{si(device.peak(), 'FLOP/s')} and {si(device.bandwidth_bytes_per_s, 'B/s')}"
    say(f"calibrate  {device.title}: {rates} reached{f'; {why}' if why else ''}")
    for world in WORLDS:
        predict_steps(loop, trace, world, data.train_size, parent)
    measure_in_turns(loop, device, bar, parent)
    for world in WORLDS:
        say(f"{processes(world):<10} {prediction_words(loop, world)}")
    loop.trained = trained = train(loop, bar, parent)
    say(f"train      {what_was_reached(trained)}")
    try:
        loop.forecast = forecast_from_half(loop.runs["trained"])
        say(f"forecast   {held_against(loop.forecast)}")
    except InputError as error:
        say(f"forecast   none: {error.message}")
    if loop.predicted[1].value("training_time_s") < RENTED_FROM_S:
        loop.rented = rent()
        say(f"plan       {loop.rented.sections[0].title}. {loop.rented.sections[0].takeaway}")
    else:
        epochs = max(1, int(trained.value("epochs")))
        alike = changed(job, ["backend=single", "cluster.count=1", f"training.epochs={epochs}"])
        loop.plan = elsewhere(trace, alike, data.train_size)
        say(f"plan       {plan_section(loop.plan).takeaway}")
    return loop


def at_world(job: Job, world: int) -> Job:
    """Return the job on `world` processes of this machine, each with the same share of its cores, so that they can be compared."""
    backend = "single" if world == 1 else "ddp"
    return changed(job, [f"cluster.count={world}", f"backend={backend}", f"cluster.threads={threads_of(job)}"])


def threads_of(job: Job) -> int:
    """Return the threads of each process: the job's, else its share of the cores with the largest number of processes."""
    return job.cluster.threads_per_rank(environment.cores(), max(WORLDS))


def predict_steps(loop: Loop, trace: Trace, world: int, samples: int, parent: Path) -> None:
    """Predict steps on `world` processes."""
    job = at_world(loop.job, world)
    loop.predicted[world] = predict(trace, job, samples=samples)
    kept = RunDir.create(job, environment.environment(), parent=parent)
    kept.save_record(loop.predicted[world])
    loop.runs[f"predicted {processes(world)}"] = kept.path


def measure_in_turns(loop: Loop, device: Device, bar: Bar, parent: Path) -> None:
    """Measure steps on every number of processes, in rounds, with the speed of the machine and its disturbances.

    Each record covers all rounds; its run directory has one directory for each.
    """
    kept_s = float((device.calibration or {}).get("pace_s", 0.0))
    rounds: dict[int, list[RunDir]] = {world: [] for world in WORLDS}
    probes: dict[int, list[float]] = {world: [] for world in WORLDS}
    taken: dict[int, list[float]] = {world: [] for world in WORLDS}
    wholes = {w: RunDir.create(at_world(loop.job, w), environment.environment(), parent=parent) for w in WORLDS}
    done, total = 0, ROUNDS * len(WORLDS) * STEPS_PER_ROUND
    with bar("measure") as report:

        def on_line(line: Line) -> None:
            nonlocal done
            done += 1
            report(min(1.0, done / total), f"step {done}")

        for number in range(ROUNDS):
            for world in WORLDS:
                out = wholes[world].path / f"round-{number + 1}"
                flops = loop.predicted[world].provenance.flops_per_step_per_rank
                before, ticks = pace.probe_s(), environment.processor_ticks()
                rounds[world].append(
                    jobs.measure(
                        wholes[world].job(),
                        Timing(num_steps=STEPS_PER_ROUND),
                        out=out,
                        flops_per_step=flops,
                        on_line=on_line,
                    )
                )
                taken[world].append(environment.taken_share(ticks, environment.processor_ticks()))
                probes[world] += [before, pace.probe_s()]
    for world, runs in rounds.items():
        wholes[world].save_record(record_of_rounds([run.record() for run in runs]))
        loop.measured[world] = wholes[world].record()
        loop.met[world] = next((text for run in runs if (text := disturbances(run.path))), "")
        loop.taken[world] = statistics.median(taken[world])
        loop.runs[f"measured {processes(world)}"] = wholes[world].path
        if kept_s:
            loop.pace[world] = statistics.median(probes[world]) / kept_s


def train(loop: Loop, bar: Bar, parent: Path) -> Record:
    """Train the job on one process and return its record."""
    epochs = loop.job.training.epochs
    with bar("train") as report:

        def on_line(line: Line) -> None:
            if isinstance(line, Epoch) and line.test_loss is not None:
                bits, accuracy = line.bits_per_byte, line.test_accuracy
                score = f"test accuracy {percent(accuracy)}" if bits is None else f"{bits:.3f} bits per byte"
                report(min(1.0, line.epoch / epochs), f"epoch {line.epoch} of {epochs}, {score}")

        run = jobs.train(at_world(loop.job, 1), parent=parent, on_line=on_line)
    loop.runs["trained"] = run.path
    return run.record()
