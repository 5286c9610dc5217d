"""Loss curves: from the first part of a run, when will it have converged, and when will it reach a target?

The plain form is that of Optimus (Peng et al., EuroSys 2018). Own runs are trained under four schedules of the learning rate;
published ones are added where CHRONOGRAD_MEASURED names the folder that holds them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.forecast.convergence import CONVERGED, converged_at, forecast_convergence
from chronograd.forecast.curves import LAST
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve, Metric, read_curve
from chronograd.forecast.loss import MIN_POINTS, best_family, fit_loss
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.forecast.schedule import Schedule
from chronograd.job import Job
from chronograd.record import INTERVAL
from chronograd.words import first_sentence, how_many
from chronograd_lab.common.arms import Arm, job_of, split_seed, train_arms
from chronograd_lab.common.published_runs import HELD_BACK, PublishedCurve, cifar_resnets, dawnbench, measured_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

FRACTIONS = (0.25, 0.5, 0.75)
OURS, UNTOLD, OPTIMUS, BEST = "with the schedule", "with the end only", "Optimus", "best family"
METHODS = (OURS, UNTOLD, BEST, OPTIMUS, LAST)
OWN = "own runs"
HELD = "ResNet-50 at a constant rate"  # a kind of which the published runs that are asked have none
UNSEEN = (HELD,)
NUM_SHOWN = 60  # points of a plotted forecast


def experiments(settings: Settings) -> dict[str, Job]:
    """Every network under every schedule with every augmentation, such as `small-cnn, cosine, crop and flip`."""
    parts, jobs = {"cluster": {"device": "cpu"}}, {}
    varied = settings["networks"], settings["schedules"].items(), settings["augmentations"].items()
    for network, (name, schedule), (how, augmentation) in itertools.product(*varied):
        training = {"recipe": "sgd-momentum", "augmentation": augmentation, "schedule": name, **schedule}
        jobs[f"{network}, {name}, {how}"] = job_of(settings, network, parts=parts, **training)
    return jobs


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    seeds = range(settings["seeds"])
    metrics: tuple[Metric, ...] = ("loss", "accuracy")
    curves = [
        PublishedCurve(replace(read_curve(one.run.path, m), name=f"{one.name}, {m}"), _own(one.name), one.name)
        for one in train_arms(runner, [Arm(name, job, seeds=seeds) for name, job in experiments(settings).items()])
        for m in metrics
    ]
    notes = []
    measured = measured_folder()
    if measured is None:
        notes.append("Published curves were not at hand (CHRONOGRAD_MEASURED): only own runs are forecast.")
    else:
        curves += published_curves(measured)
    rows: dict[str, list[Row]] = {"convergence": [], "target": []}
    for one in curves:
        for kind, row in forecasts(one):
            rows[kind].append(row)
        runner.say(f"{one.source}: {one.curve.name}")
    rows["unseen"] = unseen_rows(curves)
    kept = {
        one.curve.name: _shown(one.curve)
        for one in curves
        if one.source.startswith(OWN) and one.curve.metric == "accuracy" and split_seed(one.group)[1] == 0
    }
    return runner.results(settings, rows=rows, curves=kept, notes=notes)


def _own(name: str) -> str:
    """
    >>> _own("small-cnn, cosine, crop and flip/seed-0")
    'own runs, crop and flip'
    """
    return f"{OWN}, {split_seed(name)[0].split(', ')[-1]}"


def published_curves(measured: Path) -> list[PublishedCurve]:
    return [*dawnbench(measured), *cifar_resnets(measured), *cifar_resnets(measured, HELD_BACK, HELD)]


def unseen_rows(curves: Sequence[PublishedCurve]) -> list[Row]:
    """Our forecasts of published runs as if theirs were a kind that nobody has published: no run of the whole source is asked."""
    groups: dict[str, set[str]] = {}
    for one in curves:
        groups.setdefault(one.source, set()).add(one.group)
    rows = []
    for one in curves:
        if not one.source.startswith(OWN):
            known = replace(published(), small=())
            for group in groups[one.source]:
                known = known.without(group)
            rows += [row for kind, row in forecasts(one, known) if kind == "convergence" and row["method"] == OURS]
    return rows


def forecasts(one: PublishedCurve, known: PublishedCurves | None = None) -> Iterator[tuple[str, Row]]:
    """Forecasts made after each of FRACTIONS of the way to convergence, of convergence and of the target that is met then.

    Of published runs those of the same group are not asked, unless `known` are those that are. A method that says never is taken to say the planned end.
    """
    curve, known = one.curve, known or _known(one.group)
    true = converged_at(curve.steps, curve.values)
    target = float(curve.values[np.flatnonzero(curve.steps == true)[0]])
    met = float(curve.steps[np.flatnonzero(curve.values <= target)[0]])
    planned = curve.schedule.planned or float(curve.steps[-1])
    untold = replace(curve, schedule=Schedule(None, (), planned))
    for fraction in FRACTIONS:
        early = curve.first(int((curve.steps <= fraction * true).sum()))
        if len(early.steps) < MIN_POINTS:
            continue
        now, known_of = float(early.steps[-1]), {"source": one.source, "curve": curve.name, "fraction": fraction}
        ours = forecast_convergence(early, known)
        plain = fit_loss(early.steps, early.values, draws=0)
        best = fit_loss(early.steps, early.values, best_family(early.steps, early.values), draws=0)
        first = float(early.values[0])
        steps: dict[str, float | None] = {
            OURS: ours.step,
            UNTOLD: forecast_convergence(untold.first(len(early.steps)), known).step,
            BEST: best.steps_to(_near(best.coefficients, first)),
            OPTIMUS: plain.steps_to(_near(plain.coefficients, first)),
            LAST: now,
        }
        for method, step in steps.items():
            is_covered = {"is_covered": ours.low <= true <= ours.high} if method == OURS else {}
            yield "convergence", known_of | _row(method, step, now, true, planned) | is_covered
        if met <= now:
            continue
        share, aimed = len(early.steps) / len(curve.steps), 1 - target if curve.metric == "accuracy" else target
        for method, of in ((OURS, curve), (UNTOLD, untold)):
            reached = forecast(of, share + 1e-9, target=aimed, known=known, draws=0).reached
            steps[method] = None if reached is None else reached.step
        steps |= {BEST: best.steps_to(target), OPTIMUS: plain.steps_to(target)}
        for method, step in steps.items():
            yield "target", known_of | _row(method, step, now, met, planned)


def _known(group: str) -> PublishedCurves:
    """Published runs but those of a group; none on small data, as those that the package has are of this study."""
    return replace(published().without(group), small=())


def _near(coefficients: dict[str, float], first: float) -> float:
    """Within CONVERGED of the fall from the first value to the level of a fitted curve."""
    level = coefficients.get("loss", coefficients.get("b2", coefficients.get("c", 0.0)))
    return level + CONVERGED * max(first - level, 0.0)


def _row(method: str, step: float | None, now: float, true: float, planned: float) -> Row:
    """`error` is of the remaining epochs, over what really remained."""
    said = min(max(planned if step is None else step, now), max(planned, now))
    epochs = {name: round(value, 4) for name, value in (("now", now), ("said", said), ("true", true))}
    return {"method": method, **epochs, "error": round(abs(said - true) / (true - now), 5)}


def _shown(curve: LearningCurve) -> dict[str, list[float | None]]:
    """The curve and its forecast after half of the way, with bounds."""
    true = converged_at(curve.steps, curve.values)
    count = int((curve.steps <= 0.5 * true).sum())
    if count < MIN_POINTS:
        return {"epoch": curve.steps.tolist(), "seen": curve.values.tolist()}
    at = np.linspace(curve.steps[count - 1], curve.schedule.planned or curve.steps[-1], NUM_SHOWN)[1:]
    made = forecast(curve, count / len(curve.steps) + 1e-9, at=at.tolist(), known=_known(curve.name))
    found = [one for one in made.at if one.step in at]
    columns = {"epoch": curve.steps.tolist(), "seen": curve.values.tolist(), "converged": [true]}
    columns["forecast_step"] = [round(one.step, 3) for one in found]
    is_error = curve.metric == "accuracy"
    ends = ("value", "high", "low") if is_error else ("value", "low", "high")
    for name, field in zip(("value", "low", "high"), ends, strict=True):
        values = [getattr(one, field) for one in found]
        columns[f"forecast_{name}"] = [round(1 - v if is_error else v, 5) for v in values]
    return columns


def page(results: Results) -> Answer:
    rows = results.rows["convergence"]
    seen = [row for row in rows if not _is_unseen(row["source"])]
    highlights = []
    unseen = _of_unseen(results)
    for label, own in (("kinds that published runs have", seen), ("kinds that none of them has", unseen)):
        errors = _errors(own, 0.5, OURS)
        if len(errors):
            detail = f"median of {how_many(len(errors), 'curves')}"
            medians = [100 * np.median(_errors(of, 0.5, OURS)) for of in grouped(own, "source").values()]
            detail += f", by source {min(medians):.0f} to {max(medians):.0f} %"
            if own is seen:
                detail += f"; Optimus' form {100 * np.median(_errors(own, 0.5, OPTIMUS)):.0f} %"
            highlights.append(
                Highlight(f"remaining epochs half-way, {label}", f"{100 * np.median(errors):.0f} % off", detail)
            )
    unseen_section = _unseen_section(results)
    sections = [
        _table_section(
            rows,
            "When it will have converged",
            "convergence",
            "The run has converged when its value, as a median of three, has come within 2 % of its whole fall of the level at its end. "
            "Forecasts are made from the points up to a quarter, half and three quarters of the way there; errors are over the "
            "epochs that really remained, medians with the 90th percentile. No run of the same team, depth or network is "
            "asked. A method that says never is taken at the planned end. With the last value, all has been reached now.",
        ),
        unseen_section,
        _table_section(
            results.rows["target"],
            "When it will reach a target",
            "a target",
            "The target is the value at convergence, known beforehand, as an accuracy to be reached is.",
        ),
        _example_section(results),
        _interval_section(rows),
    ]
    converged, target = (f"{first_sentence(sections[i].takeaway)[0]}." for i in (0, 2))
    return replace(STUDY.answer(results, sections, highlights), summary=[converged, unseen_section.takeaway, target])


def _of_unseen(results: Results) -> list[Row]:
    """Our forecasts of curves of a kind that no published run that was asked has: our own, those held back, and whole sources."""
    own = [row for row in matching(results.rows["convergence"], method=OURS) if row["source"].startswith(OWN)]
    return [*own, *results.rows.get("unseen", [])]


def _factor(rows: Sequence[Row]) -> float:
    """By what factor a forecast of an unseen kind is off, either way, four times in five; each source weighs the same."""
    logs, weights = [], []
    for own in grouped(rows, "source").values():
        logs += [abs(math.log(row["true"] / row["said"])) for row in own]
        weights += [1 / len(own)] * len(own)
    return math.exp(weighted_quantiles(np.array(logs), np.array(weights), (INTERVAL[1] - INTERVAL[0],))[0])


def _is_within(row: Row, factor: float) -> bool:
    return bool(max(row["now"], row["said"] / factor) <= row["true"] <= row["said"] * factor)


def _unseen_section(results: Results) -> Section:
    rows, body, wide, shares = _of_unseen(results), [], [], []
    sources = grouped(rows, "source")
    if len(sources) < 2:
        return Section(
            "A kind that no published run has", "It takes the published curves to tell: they were not at hand."
        )
    for source, own in sources.items():
        factor = _factor([row for row in rows if row["source"] != source])
        within = [_is_within(row, factor) for row in own]
        wide += within
        shares.append(100 * float(np.mean(within)))
        as_given = float(np.mean([row["is_covered"] for row in own]))
        body.append([source, str(len(own)), f"{100 * np.median(_errors(own, 0.5, OURS)):.0f} %", f"{100 * as_given:.0f} %",
                     f"{factor:.2f}", f"{100 * np.mean(within):.0f} %"])  # fmt: skip
    given = 100 * float(np.mean([row["is_covered"] for row in rows]))
    return Section(
        "A kind that no published run has",
        f"Of a kind that no published run has, the remaining epochs are off by {100 * np.median(_errors(rows, 0.5, OURS)):.0f} % half-way, in the "
        f"median, and the 80 % interval as given holds {given:.0f} times in a hundred; one that goes a factor of {_factor(rows):.2f} either way "
        f"holds {100 * np.mean(wide):.0f}, by source {min(shares):.0f} to {max(shares):.0f}.",
        intro="Our own runs are on a twenty-fifth of the data of the published ones; ResNet-50 is of a kind that the ResNets at a constant "
        "rate have not; of the others, no run of the whole source is asked. The factor is from the other sources, each weighing the "
        "same: four in five of their forecasts are within it, of the epoch of convergence.",
        table=listed(["curves", "forecasts", "error half-way", "interval as given holds", "factor, from the others", "interval of that factor holds"], body),
    )  # fmt: skip


def _errors(rows: Sequence[Row], fraction: float, method: str, source: str | None = None) -> np.ndarray:
    """Of one source, or of all."""
    asked = matching(rows, fraction=fraction, method=method)
    return np.array([row["error"] for row in asked if source in (None, row["source"])])


def _table_section(rows: Sequence[Row], title: str, until: str, intro: str) -> Section:
    body = []
    for source in (*distinct(rows, "source"), None):
        for fraction in FRACTIONS:
            errors = [_errors(rows, fraction, method, source) for method in METHODS]
            if len(errors[0]):
                cells = [f"{100 * np.median(e):.0f} ({100 * np.quantile(e, 0.9):.0f})" for e in errors]
                body.append([source or "all", f"{100 * fraction:.0f} %", str(len(errors[0])), *cells])
    half = {method: float(np.median(_errors(rows, 0.5, method))) for method in METHODS}
    theirs = 3 + METHODS.index(OPTIMUS)
    worse = [f"{row[0]} after {row[1]}" for row in body if float(row[3].split()[0]) > float(row[theirs].split()[0])]
    never = f"worse than Optimus' form: {', '.join(worse)}" if worse else "never worse than Optimus' form in the median"
    return Section(
        title,
        f"Half-way, the median error of the remaining epochs to {until} is {100 * half[OURS]:.0f} % with the schedule, "
        f"{100 * half[UNTOLD]:.0f} % if only its end is told, {100 * half[OPTIMUS]:.0f} % by Optimus' form and {100 * half[LAST]:.0f} % by "
        f"the last value; {never}.",
        intro=intro,
        table=listed(["curves", "seen", "n", *(f"{m}, %" for m in METHODS)], body),
    )


def _example_section(results: Results) -> Section:
    panels, said = [], []
    for name, columns in results.curves.items():
        if "forecast_step" not in columns:
            continue
        known = {key: [value or 0.0 for value in values] for key, values in columns.items()}
        steps, low, high = (known[f"forecast_{key}"] for key in ("step", "low", "high"))
        series = [
            Series("measured", "measured", known["epoch"], known["seen"], is_joined=True),
            Series("forecast", "predicted", steps, known["forecast_value"], low, high),
        ]
        told = split_seed(name.removesuffix(", accuracy"))[0]
        marks = [Mark("x", steps[0], "forecast from here")]
        panels.append(Lines("epoch", "test error", series, marks, log_y=True, title=told.replace("_", "-")))
        followed = np.interp(steps, known["epoch"], known["seen"])
        inside = (np.array(low) <= followed) & (followed <= np.array(high))
        said.append(float(np.mean(inside)))
    return Section(
        "Forecasts half-way",
        f"{100 * np.mean(said):.0f} % of what followed lies in the 80 % interval of the forecasts, over {how_many(len(said), 'curves')}."
        if said
        else "No run of this size has points enough before it is half-way.",
        intro="Test errors, of one seed each. Beyond the next drop of the rate, and where it is annealed, levels fall as they "
        "did in published runs, whose training sets are 25 times as large and more.",
        figure=Figure(panels) if panels else None,
        table=None if panels else Table(["note"], [["more epochs are needed"]]),
    )


def _interval_section(rows: Sequence[Row]) -> Section:
    asked, body = matching(rows, method=OURS), []
    for source in (*distinct(rows, "source"), None):
        covered = [row["is_covered"] for row in asked if source in (None, row["source"])]
        body.append([source or "all", str(len(covered)), f"{100 * np.mean(covered):.0f} %"])
    known = [row["is_covered"] for row in asked if not _is_unseen(row["source"])]
    new = [row["is_covered"] for row in asked if _is_unseen(row["source"])]
    told = [
        f"{100 * np.mean(covered):.0f} times in a hundred of kinds that {whose}"
        for covered, whose in ((known, "published runs have"), (new, "none of them has")) if covered
    ]  # fmt: skip
    return Section(
        "80 % interval",
        f"The 80 % interval of our forecasts held the epoch of convergence {', and '.join(told)}.",
        table=listed(["curves", "forecasts", "inside"], body),
    )


def _is_unseen(source: str) -> bool:
    """Whether no published run that is asked is of such a kind."""
    return source in UNSEEN or source.startswith(OWN)


_SCHEDULES = {
    "constant": {"learning_rate": 0.02}, "multi_step": {"milestones": [0.5, 0.75]}, "cosine": {}, "one_cycle": {},
}  # fmt: skip
_SMOKE = {
    "data": "digits", "networks": ["small-cnn"], "samples": 200, "test_samples": None, "image_size": 8, "epochs": 16,
    "batch": 20, "learning_rate": 0.05, "seeds": 1,
    "schedules": {"constant": {"learning_rate": 0.02}, "multi_step": {"milestones": [0.5, 0.75]}},
    "augmentations": {"nothing": {}},
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "networks": ["small-cnn", "resnet8"], "samples": 2000, "test_samples": 2000, "image_size": 16,
    "epochs": 40, "batch": 64, "learning_rate": 0.05, "seeds": 1, "schedules": _SCHEDULES,
    "augmentations": {"nothing": {}, "crop and flip": {"crop": 2, "flip": True}},
}  # fmt: skip
_PAPER = {
    **_LAPTOP, "networks": ["resnet20", "resnet56"], "samples": None, "test_samples": None, "image_size": 32, "epochs": 180,
    "batch": 128, "learning_rate": 0.1, "seeds": 3,
    "augmentations": {"nothing": {}, "crop and flip": {"crop": 4, "flip": True}},
}  # fmt: skip

STUDY = Study(
    name="loss-curves",
    question="From the first part of a training run, when will it have converged, and when will it reach a target?",
    hypothesis="A falling curve extrapolates where the learning rate is constant; where the rate falls, its schedule decides",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)
