"""The page of a whole loop on one job: count, prediction, measurement, training, forecast and plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from chronograd.answer import Answer, Highlight, Section
from chronograd.compare.agreement import accuracy_of_prediction_section
from chronograd.compare.steps import parts_section, scaling_section
from chronograd.count.answer import counts_section
from chronograd.count.layers import Counted
from chronograd.forecast.forecasting import Forecast
from chronograd.forecast.learning import training_section
from chronograd.job import Job, resolved
from chronograd.plan.elsewhere import plan_section
from chronograd.predict.layers import roofline_section
from chronograd.predict.work import operators_section
from chronograd.record import JobHeader, Record, subtract
from chronograd.report.runs import asked, highlight
from chronograd.units import dollars, percent, quantity
from chronograd.words import first_sentence, listed, processes, signed_percent

# Relative to the speed at calibration: a smaller difference explains nothing.
OTHER_PACE = 1.08
# Share of the processors' time: if the host takes more, the measured step is not that of the predicted machine.
TAKEN = 0.05


@dataclass
class Loop:
    """The results of the loop so far. Stages fill it in, by number of processes where several were used.

    Attributes:
        plan: of the job on other devices. If the job is too small for renting, `rented` is the plan of a larger one.
        met: findings of `explain` in a measurement that predictions do not know, such as a busy host; empty if none.
        pace: time of a piece of work during the measurement, divided by its time at calibration.
        taken: share of the processors' time that the host of this virtual machine took during the measurement.
    """

    job: Job
    counted: Counted
    predicted: dict[int, Record] = field(default_factory=dict)
    measured: dict[int, Record] = field(default_factory=dict)
    met: dict[int, str] = field(default_factory=dict)
    pace: dict[int, float] = field(default_factory=dict)
    taken: dict[int, float] = field(default_factory=dict)
    trained: Record | None = None
    forecast: Forecast | None = None
    plan: list[Record] = field(default_factory=list)
    rented: Answer | None = None
    runs: dict[str, Path] = field(default_factory=dict)


def page_of(loop: Loop) -> Answer:
    """Return the report of a loop."""
    assert loop.trained is not None
    single, measured = loop.predicted[1], loop.measured[1]
    training = training_section(loop.trained, loop.forecast)
    planned = loop.rented.sections if loop.rented else [plan_section(loop.plan)]
    sections = [
        counts_section(loop.counted),
        _with_what_was_met(parts_section(loop.predicted, loop.measured), loop.met),
        _with_what_was_met(accuracy_of_prediction_section(loop.predicted, loop.measured), loop.met),
        scaling_section(loop.predicted, loop.measured),
        operators_section(single),
        roofline_section(single, measured),
        training,
        *planned,
    ]
    records = {f"predicted-{n}": r for n, r in loop.predicted.items()}
    records |= {f"measured-{n}": r for n, r in loop.measured.items()}
    records |= {"trained": loop.trained}
    records |= {f"plan-{r.device}-{r.world}": r for r in loop.plan}
    return Answer(
        title=f"{loop.job.network.name} on {loop.job.data.name}",
        subtitle="Counted, predicted, measured, trained and planned from one job file",
        asked=asked(JobHeader.model_validate(resolved(loop.job))),
        highlights=[
            highlight(
                loop.trained, "test_accuracy" if loop.trained["bits_per_byte"].value is None else "bits_per_byte"
            ),
            _step(single, measured),
            _rented(loop),
        ],
        sections=sections,
        records=records,
        summary=_summary(loop, training, planned[0]),
    )


def _summary(loop: Loop, training: Section, planned: Section) -> list[str]:
    """Return a sentence each on the training, the machine to rent and the error of the prediction."""
    return [f"{first_sentence(training.takeaway)[0]}.", _to_rent(loop, planned), _how_good(loop)]


def _how_good(loop: Loop) -> str:
    """Return the error of the predicted steps; if no measurement can be compared with one, state only that."""
    worlds = sorted(loop.predicted.keys() & loop.measured.keys())
    void = [n for n in worlds if is_void(loop, n)]
    whys = {n: f" ({'; '.join(reasons)})" if (reasons := _reasons(loop, n)) else "" for n in worlds}
    errors = [f"{_error(loop, n)[0]} with {processes(n)}{whys[n]}" for n in worlds if n not in void]
    sentence = f"The predicted step is off by {listed(errors)}. " if errors else ""
    if void:
        taken = listed([percent(loop.taken[n], 0) for n in void])
        sentence += (
            f"The step of {listed([processes(n) for n in void])} cannot be compared with its prediction: the host of this "
            f"virtual machine took {taken} of the processors' time."
        )
    return sentence.strip()


def _to_rent(loop: Loop, planned: Section) -> str:
    chosen = loop.rented.data["chosen"] if loop.rented else None
    if chosen is None:
        return f"{first_sentence(planned.takeaway)[0]}."
    time, place = quantity(3600 * chosen["hours"], "s"), f"{chosen['count']} × {chosen['device']}"
    return f"{planned.title}: {place} from {chosen['vendor']}, {time}, {dollars(chosen['dollars'])}."


def _step(predicted: Record, measured: Record) -> Highlight:
    """Return the measured step of one process, with its prediction."""
    own, was = (quantity(record.value("step_time_s"), "s") for record in (measured, predicted))
    return Highlight("step time", own, f"predicted {was}; n = {measured['step_time_s'].n}, {processes(1)}")


def _rented(loop: Loop) -> Highlight:
    """Return the machine to rent, and its cost."""
    if loop.rented is None:
        cheapest = min(loop.plan, key=lambda r: math.inf if r["cost_usd"].value is None else r.value("cost_usd"))
        return highlight(cheapest, "cost_usd", "cheapest rented run")
    chosen = loop.rented.data["chosen"]
    if chosen is None:
        return Highlight(loop.rented.sections[0].title, "nothing", "that meets the goal")
    detail = f"{chosen['count']} × {chosen['device']}, {quantity(3600 * chosen['hours'], 's')}"
    return Highlight(loop.rented.sections[0].title, dollars(chosen["dollars"]), detail)


def _with_what_was_met(section: Section, met: dict[int, str]) -> Section:
    """Add to a sentence on an error that the measurement was not quiet."""
    words = [f"with {processes(n)}, {what}" for n, what in met.items() if what]
    return replace(section, takeaway=f"{section.takeaway} While measuring {'; '.join(words)}.") if words else section


def prediction_words(loop: Loop, world: int) -> str:
    """Return the predicted and the measured step, and their difference, in words."""
    predicted, measured = (
        quantity(group[world].value("step_time_s"), "s") for group in (loop.predicted, loop.measured)
    )
    return f"step predicted {predicted}, measured {measured}: prediction off by {_error_words(loop, world)}"


def _error_words(loop: Loop, world: int) -> str:
    """Return the error of a predicted step, together with the findings of `explain` in the measurement."""
    error, why = _error(loop, world)
    if not why:
        return error
    return f"{error}, which means nothing here: {why}" if is_void(loop, world) else f"{error}, but {why}"


def is_void(loop: Loop, world: int) -> bool:
    """Return whether a measured step cannot be compared with its prediction, because other programs used the processors."""
    return loop.taken.get(world, 0.0) > TAKEN


def _error(loop: Loop, world: int) -> tuple[str, str]:
    """Return the error of a predicted step, and evidence for another cause than the prediction; empty if none."""
    step = next(d for d in subtract(loop.measured[world], loop.predicted[world]) if d.name == "step_time_s")
    words = "; ".join(_reasons(loop, world))
    if not is_void(loop, world) and _is_other_pace(pace := loop.pace.get(world, 1.0)):
        predicted, measured = (group[world].value("step_time_s") for group in (loop.predicted, loop.measured))
        words += f", without which it is {signed_percent(predicted * pace / measured - 1)}"
    return signed_percent(step.error), words


def _reasons(loop: Loop, world: int) -> list[str]:
    """Return evidence for another cause of an error than the prediction."""
    words = [loop.met[world]] if loop.met.get(world) else []
    if is_void(loop, world):
        taken = percent(loop.taken[world], 0)
        words.append(f"the host of this virtual machine took {taken} of the processors' time meanwhile")
    elif _is_other_pace(pace := loop.pace.get(world, 1.0)):
        slower = f"{pace:.2f} times as slow" if pace > 1 else f"{1 / pace:.2f} times as fast"
        words.append(f"the machine ran {slower} as at calibration")
    return words


def _is_other_pace(pace: float) -> bool:
    return bool(pace) and not 1 / OTHER_PACE < pace < OTHER_PACE
