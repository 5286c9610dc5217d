"""The whole loop on one job: count, calibrate, predict, measure, train, forecast, plan, report.

Predicted and measured records are of one type, so each stage only adds records; the page at the end is made from
them alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Section
from chronograd.calibrate.machine import calibrate_once
from chronograd.compare.agreement import accuracy_of_prediction_section
from chronograd.compare.steps import parts_section, scaling_section
from chronograd.count.layers import summary
from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.fit.learning import Forecast, training_section
from chronograd.fit.loss import best_family, fit_loss
from chronograd.hardware import catalog
from chronograd.job import Job, changed, resolved
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.plan.elsewhere import plan_section
from chronograd.predict.layers import roofline_section
from chronograd.predict.memory import optimizer_kind
from chronograd.predict.prediction import predict
from chronograd.predict.work import counts_section, operators_section
from chronograd.record import Quantity, Record, subtract
from chronograd.report.runs import asked, highlight
from chronograd.rundir import RunDir
from chronograd.trace import Trace
from chronograd.units import dollars, percent, seconds, si

PLAN_DEVICES = ("k80-gk210", "v100", "a100-40", "h100")
PLAN_COUNTS = (1, 2, 4, 8, 16)
WORLDS = (1, 2)
FORECAST_FROM = 0.5

Say = Callable[[str], None]
Bar = Callable[[float, str], None]


@dataclass
class Loop:
    """What the loop has found so far. Filled stage by stage."""

    job: Job
    trace: Trace
    counted: dict[str, Any]
    predicted: dict[int, Record] = field(default_factory=dict)
    measured: dict[int, Record] = field(default_factory=dict)
    trained: Record | None = None
    forecast: Forecast | None = None
    plan: list[Record] = field(default_factory=list)
    runs: dict[str, Path] = field(default_factory=dict)


def run_loop(job: Job, say: Say, bar: Callable[[str], Any], parent: Path) -> Loop:
    """Take a job through every stage.

    Args:
        say: called with one line for each thing found.
        bar: a context manager of a title that yields a function of the share done, 0 to 1, and a text.
        parent: where run directories are made.

    Raises: what the stages raise; nothing is measured before the job is known to be valid here.
    """
    jobs.check(job)
    data = card(job.data)
    trace = trace_job(job)
    loop = Loop(job, trace, summary(trace, job.training.batch, _optimizer(job)))
    say(
        f"count      {trace.network} on {data.name}: {trace.params:,} parameters, "
        f"{si(trace.macs(), 'MAC')} per sample forward, {si(trace.flops(job.training.batch), 'FLOP')} per step"
    )
    with bar("calibrate") as report:
        device = calibrate_once(report)
    say(
        f"calibrate  {device.title}: {si(device.peak(), 'FLOP/s')} and {si(device.bandwidth_bytes_per_s, 'B/s')} reached"
    )
    for world in WORLDS:
        _predict_and_measure(loop, world, data.train_size, say, bar, parent)
    _train(loop, say, bar, parent)
    _forecast(loop, say)
    _plan(loop, data.train_size, say)
    return loop


def _optimizer(job: Job) -> str:
    return optimizer_kind(job.training.optimizer, job.training.momentum)


def at_world(job: Job, world: int) -> Job:
    """The job on `world` processes of this machine, each with the same share of its cores, so that they compare."""
    backend = "single" if world == 1 else "ddp"
    threads = job.cluster.threads or max(1, environment.cores() // max(WORLDS))
    return changed(job, [f"cluster.count={world}", f"backend={backend}", f"cluster.threads={threads}"])


def _predict_and_measure(loop: Loop, world: int, samples: int, say: Say, bar: Any, parent: Path) -> None:
    job = at_world(loop.job, world)
    predicted = predict(loop.trace, job, samples=samples)
    kept = RunDir.create(job, environment.environment(), parent=parent)
    kept.save_record(predicted)
    name = f"{world} process" + ("es" if world > 1 else "")
    num_steps, done = 60, 0
    with bar(f"measure {name}") as report:

        def on_line(line: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            report(min(1.0, done / num_steps), f"step {done}")

        flops = float(predicted.provenance["flops_per_step_per_rank"])
        run = jobs.measure(job, num_steps=num_steps, parent=parent, flops_per_step=flops, on_line=on_line)
    measured = run.record()
    loop.predicted[world], loop.measured[world] = predicted, measured
    loop.runs |= {f"predicted {name}": kept.path, f"measured {name}": run.path}
    difference = next(d for d in subtract(measured, predicted) if d.name == "step_time_s")
    assert difference.error is not None
    say(
        f"{name:<10} step predicted {seconds(predicted.value('step_time_s'))}, "
        f"measured {seconds(measured.value('step_time_s'))}: prediction off by {100 * difference.error:+.1f} %"
    )


def _train(loop: Loop, say: Say, bar: Any, parent: Path) -> None:
    job = at_world(loop.job, 1)
    epochs = job.training.epochs
    with bar("train") as report:

        def on_line(line: dict[str, Any]) -> None:
            if line.get("event") == "epoch" and line["test_accuracy"] is not None:
                text = f"epoch {line['epoch']} of {epochs}, test accuracy {percent(line['test_accuracy'])}"
                report(min(1.0, line["epoch"] / epochs), text)

        run = jobs.train(job, parent=parent, on_line=on_line)
    loop.trained = run.record()
    loop.runs["trained"] = run.path
    reached = loop.trained["time_to_accuracy_s"]
    accuracy = percent(loop.trained.value("test_accuracy"))
    num_epochs = f"{loop.trained.value('epochs'):.0f} epochs"
    if reached.value is not None:
        say(f"train      {accuracy} on the test split after {num_epochs}, {seconds(reached.value)}: target reached")
    else:
        say(f"train      {accuracy} on the test split after {num_epochs}: {reached.reason}")


def _forecast(loop: Loop, say: Say) -> None:
    """Fit the first half of the loss curve and hold its forecast against the second."""
    assert loop.trained is not None
    curve = loop.trained.curves["loss"]
    points = [
        (k, y)
        for k, y in zip(curve.columns["step"], curve.columns["loss"], strict=True)
        if k is not None and y is not None
    ]
    steps, losses = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    num_fitted = int(FORECAST_FROM * len(steps))
    try:
        model = fit_loss(steps[:num_fitted], losses[:num_fitted], best_family(steps[:num_fitted], losses[:num_fitted]))
    except InputError as error:
        say(f"forecast   none: {error.message}")
        return
    rest, happened = steps[num_fitted:], losses[num_fitted:]
    ahead = model.curve(rest)
    chosen = np.unique(np.linspace(0, len(rest) - 1, min(len(rest), 100)).astype(int))
    bounds = [model.interval(float(rest[i])) for i in chosen]
    # Single steps are noisy and go to zero; the forecast is held against means of an epoch's steps.
    per_epoch = int(loop.trained.curves["training"].columns["step"][0] or 1)
    windows = np.array_split(np.arange(len(rest)), max(1, len(rest) // per_epoch))
    off = float(np.mean([abs(ahead[w].mean() / happened[w].mean() - 1) for w in windows]))
    loop.forecast = Forecast(
        fitted_until_step=int(steps[num_fitted - 1]),
        steps=rest[chosen].tolist(),
        forecast=ahead[chosen].tolist(),
        low=[low for low, _ in bounds],
        high=[high for _, high in bounds],
        mape=off,
        family=model.family,
    )
    say(
        f"forecast   from the first {percent(FORECAST_FROM, 0)} of the steps ({model.family}): loss of the last epoch "
        f"{ahead[windows[-1]].mean():.3f}, was {happened[windows[-1]].mean():.3f}; off by {percent(off, 0)} on average"
    )


def _plan(loop: Loop, samples: int, say: Say) -> None:
    """Hours and dollars of the same run on 1 to 16 devices nobody has rented yet."""
    assert loop.trained is not None
    epochs = max(1, int(loop.trained.value("epochs")))
    for name in PLAN_DEVICES:
        device = catalog.device(name)
        for count in PLAN_COUNTS:
            if count > loop.job.training.batch:
                continue
            backend = "single" if count == 1 else "ddp"
            fields = [
                f"cluster.device={name}",
                f"cluster.count={count}",
                f"backend={backend}",
                f"training.epochs={epochs}",
            ]
            loop.plan.append(predict(loop.trace, changed(loop.job, fields), samples=samples, device=device))
    costed = [r for r in loop.plan if r["cost_usd"].value is not None]
    fastest = min(loop.plan, key=lambda r: r.value("training_time_s"))
    cheapest = min(costed, key=lambda r: r.value("cost_usd"))
    say(
        f"plan       fastest {_place(fastest)}: {seconds(fastest.value('training_time_s'))}; "
        f"cheapest {_place(cheapest)}: {dollars(cheapest.value('cost_usd'))} "
        f"({dollars(cheapest['cost_usd'].low or 0)} to {dollars(cheapest['cost_usd'].high or 0)})"
    )


def _place(record: Record) -> str:
    return f"{record.cluster['count']} × {record.cluster['device']}"


def page_of(loop: Loop) -> Answer:
    """The report of a loop."""
    assert loop.trained is not None
    single = loop.predicted[1]
    sections: list[Section] = [
        counts_section(loop.counted),
        parts_section(loop.predicted, loop.measured),
        accuracy_of_prediction_section(loop.predicted, loop.measured),
        scaling_section(loop.predicted, loop.measured),
        operators_section(single),
        roofline_section(single, loop.measured[1]),
        training_section(loop.trained, loop.forecast),
        plan_section(loop.plan),
    ]
    error = next(d for d in subtract(loop.measured[1], single) if d.name == "step_time_s").error
    records = {f"predicted-{n}": r for n, r in loop.predicted.items()}
    records |= {f"measured-{n}": r for n, r in loop.measured.items()}
    records |= {"trained": loop.trained}
    records |= {f"plan-{r.cluster['device']}-{r.cluster['count']}": r for r in loop.plan}
    return Answer(
        title=f"{loop.job.network.name} on {loop.job.data.name}",
        subtitle="Counted, predicted, measured, trained and planned from one job file",
        asked=asked(resolved(loop.job)),
        highlights=[
            highlight(loop.trained, "test_accuracy"),
            highlight(loop.measured[1], "step_time_s", _off(error)),
            highlight(min(loop.plan, key=_cost), "cost_usd", "cheapest rented run"),
        ],
        sections=sections,
        records=records,
    )


def _off(error: float | None) -> str:
    return "step time" if error is None else f"step time; predicted {100 * error:+.0f} %"


def _cost(record: Record) -> float:
    cost: Quantity = record["cost_usd"]
    return float("inf") if cost.value is None else cost.value
