"""Loss curves: from the first part of a run, when will it have converged, and when will it reach a target?

The plain form is that of Optimus (Peng et al., EuroSys 2018). Own runs are trained under four schedules of the learning rate.
Published ones are added if CHRONOGRAD_MEASURED names their folder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.forecast.convergence import CONVERGED, converged_at, forecast_convergence
from chronograd.forecast.curves import LAST
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve, Metric, read_curve
from chronograd.forecast.loss import MIN_POINTS, best_of, family_errors, fit_loss
from chronograd.forecast.published_curves import PublishedCurves, published, weighted_quantiles
from chronograd.forecast.schedule import Schedule
from chronograd.job import Job
from chronograd.record import INTERVAL
from chronograd.units import percent
from chronograd_lab.common.arms import Arm, job_of, split_seed, train_arms
from chronograd_lab.common.published_runs import HELD_BACK, PublishedCurve, cifar_resnets, dawnbench, measured_folder
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, ends, grouped, matching
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block, key

FRACTIONS = (0.25, 0.5, 0.75)
OURS, UNTOLD, OPTIMUS, BEST = "with the schedule", "with the end only", "Optimus", "best family"
METHODS = (OURS, UNTOLD, BEST, OPTIMUS, LAST)
OWN = "own runs"
HELD = "ResNet-50 at a constant rate"  # the published runs used for forecasts have none of this kind
UNSEEN = (HELD,)
NUM_SHOWN = 60  # points of a plotted forecast


def experiments(settings: Settings) -> dict[str, Job]:
    """Return every network under every schedule with every augmentation, such as `small-cnn, cosine, crop and flip`."""
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
        notes.append("Published curves were not available (CHRONOGRAD_MEASURED): only own runs are forecast.")
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
    """Return the source of one of our runs.

    >>> _own("small-cnn, cosine, crop and flip/seed-0")
    'own runs, crop and flip'
    """
    return f"{OWN}, {split_seed(name)[0].split(', ')[-1]}"


def published_curves(measured: Path) -> list[PublishedCurve]:
    return [*dawnbench(measured), *cifar_resnets(measured), *cifar_resnets(measured, HELD_BACK, HELD)]


def unseen_rows(curves: Sequence[PublishedCurve]) -> list[Row]:
    """Return our forecasts of published runs without the runs of their source, as if nobody had published their kind."""
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
    """Yield forecasts made after each of FRACTIONS of the way to convergence: of convergence, and of the target met at that
    time.

    They do not use published runs of the same group, unless `known` gives the runs to use. If a method predicts that a run
    never converges, its forecast is the planned end.
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
        errors = family_errors(early.steps, early.values)  # only from the points that the forecast may use
        best = fit_loss(early.steps, early.values, best_of(errors), draws=0)
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
    """Return the published runs except those of a group.

    There are none on small data, because the package's own ones come from this study.
    """
    return replace(published().without(group), small=())


def _near(coefficients: dict[str, float], first: float) -> float:
    """Return the level within CONVERGED of the fall of a fitted curve, from the first value to its final level."""
    level = coefficients.get("loss", coefficients.get("b2", coefficients.get("c", 0.0)))
    return level + CONVERGED * max(first - level, 0.0)


def _row(method: str, step: float | None, now: float, true: float, planned: float) -> Row:
    """Return a forecast. `error` is that of the remaining epochs, over the real number."""
    said = min(max(planned if step is None else step, now), max(planned, now))
    epochs = {name: round(value, 4) for name, value in (("now", now), ("said", said), ("true", true))}
    return {"method": method, **epochs, "error": round(abs(said - true) / (true - now), 5)}


def _shown(curve: LearningCurve) -> dict[str, list[float | None]]:
    """Return the curve and its forecast half-way, with bounds."""
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


def values(results: Results) -> dict[str, Any]:
    rows, unseen = results.rows["convergence"], _of_unseen(results)
    seen = [row for row in rows if not _is_unseen(row["source"])]
    new = [row for row in rows if _is_unseen(row["source"])]
    held = [_held(own, factor) for _, own, factor in _factors(unseen)]
    within = [_is_within(row, factor) for _, own, factor in _factors(unseen) for row in own]
    return {
        "convergence": _half_way(rows), "target": _half_way(results.rows["target"]),
        "seen": _half_way(seen) | {"covered": _covered(seen)},
        "unseen": _half_way(unseen) | {"covered": _covered(unseen), "factor": _factor(unseen), "held": float(np.mean(within)),
                                       "least_held": min(held), "most_held": max(held)},
        "new": {"covered": _covered(new)},
        "worse": {kind: ", ".join(_worse(results.rows[kind])) for kind in ("convergence", "target")},
        "followed": {"inside": float(np.mean([_inside(c) for c in _drawn(results).values()])), "curves": len(_drawn(results))},
    }  # fmt: skip


def _half_way(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the median error by method, the number of curves, and the medians of the sources by our method."""
    medians = {key(method): _median(rows, 0.5, method) for method in distinct(rows, "method")}
    sources = [_median(own, 0.5, OURS) for own in grouped(rows, "source").values()]
    return {**medians, "n": len(_errors(rows, 0.5, OURS)), **ends(sources)}


def _errors(rows: Sequence[Row], fraction: float, method: str) -> list[float]:
    return [row["error"] for row in matching(rows, fraction=fraction, method=method)]


def _median(rows: Sequence[Row], fraction: float, method: str) -> float:
    return float(np.median(_errors(rows, fraction, method)))


def _covered(rows: Sequence[Row]) -> float:
    """Return the share of our forecasts whose interval contains the epoch of convergence."""
    return float(np.mean([row["is_covered"] for row in matching(rows, method=OURS)]))


def _worse(rows: Sequence[Row]) -> list[str]:
    """Return sources with a larger median error by our method than by Optimus' form after any fraction, in whole percents."""

    def percents(own: Sequence[Row], fraction: float, method: str) -> int:
        return round(100 * _median(own, fraction, method))

    return [
        source for source, own in _by_source(rows).items()
        if any(percents(own, f, OURS) > percents(own, f, OPTIMUS) for f in FRACTIONS if _errors(own, f, OURS))
    ]  # fmt: skip


def _is_unseen(source: str) -> bool:
    """Return whether the forecasts use no published run of such a kind."""
    return source in UNSEEN or source.startswith(OWN)


def _of_unseen(results: Results) -> list[Row]:
    """Return our forecasts of kinds without a published run: own runs, held-out ones, and whole sources."""
    own = [row for row in matching(results.rows["convergence"], method=OURS) if row["source"].startswith(OWN)]
    return [*own, *results.rows.get("unseen", [])]


def _factor(rows: Sequence[Row]) -> float:
    """Return the factor that bounds the error of four in five forecasts of an unseen kind, either way; each source has the same
    weight.
    """
    logs, weights = [], []
    for own in grouped(rows, "source").values():
        logs += [abs(math.log(row["true"] / row["said"])) for row in own]
        weights += [1 / len(own)] * len(own)
    return math.exp(weighted_quantiles(np.array(logs), np.array(weights), (INTERVAL[1] - INTERVAL[0],))[0])


def _factors(rows: Sequence[Row]) -> list[tuple[str, list[Row], float]]:
    """Return each source, its rows, and the factor from all other sources."""
    return [
        (source, own, _factor([row for row in rows if row["source"] != source]))
        for source, own in grouped(rows, "source").items()
    ]


def _is_within(row: Row, factor: float) -> bool:
    return bool(max(row["now"], row["said"] / factor) <= row["true"] <= row["said"] * factor)


def _held(rows: Sequence[Row], factor: float) -> float:
    return float(np.mean([_is_within(row, factor) for row in rows]))


def blocks(results: Results) -> dict[str, Block]:
    made = {"When it will have converged": Block(_error_table(results.rows["convergence"]))}
    if len(distinct(unseen := _of_unseen(results), "source")) > 1:
        made["Kinds without a published run"] = Block(_unseen_table(unseen))
    made["When it will reach a target"] = Block(_error_table(results.rows["target"]))
    if drawn := _drawn(results):
        made["Forecasts half-way"] = Block(figure=Figure([_panel(name, columns) for name, columns in drawn.items()]))
    made["80 % interval"] = Block(_interval_table(results.rows["convergence"]))
    return made


def _by_source(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each source, and those of all."""
    return {**grouped(rows, "source"), "all": list(rows)}


def _error_table(rows: Sequence[Row]) -> Table:
    body = []
    for (source, own), fraction in itertools.product(_by_source(rows).items(), FRACTIONS):
        errors = [_errors(own, fraction, method) for method in METHODS]
        if errors[0]:
            cells = [f"{100 * np.median(e):.0f} ({100 * np.quantile(e, 0.9):.0f})" for e in errors]
            body.append([source, f"{100 * fraction:.0f} %", str(len(errors[0])), *cells])
    return listed(["curves", "seen", "n", *(f"{m}, %" for m in METHODS)], body)


def _unseen_table(rows: Sequence[Row]) -> Table:
    body = [
        [source, str(len(own)), percent(_median(own, 0.5, OURS), 0), percent(_covered(own), 0), f"{factor:.2f}",
         percent(_held(own, factor), 0)]
        for source, own, factor in _factors(rows)
    ]  # fmt: skip
    columns = ["curves", "forecasts", "error half-way", "stated interval contains", "factor, from the others"]
    return listed([*columns, "interval of that factor contains"], body)


def _interval_table(rows: Sequence[Row]) -> Table:
    by_source = _by_source(matching(rows, method=OURS)).items()
    body = [[source, str(len(own)), percent(_covered(own), 0)] for source, own in by_source]
    return listed(["curves", "forecasts", "inside"], body)


def _drawn(results: Results) -> dict[str, dict[str, list[float]]]:
    """Return curves with a forecast, by the name of their run."""
    return {
        name: {column: [value or 0.0 for value in values] for column, values in columns.items()}
        for name, columns in results.curves.items()
        if "forecast_step" in columns
    }


def _panel(name: str, columns: Mapping[str, list[float]]) -> Lines:
    steps, value, low, high = (columns[f"forecast_{part}"] for part in ("step", "value", "low", "high"))
    series = [
        Series("measured", "measured", columns["epoch"], columns["seen"], is_joined=True),
        Series("forecast", "predicted", steps, value, low, high),
    ]
    title = split_seed(name.removesuffix(", accuracy"))[0].replace("_", "-")
    return Lines("epoch", "test error", series, [Mark("x", steps[0], "forecast from here")], log_y=True, title=title)


def _inside(columns: Mapping[str, list[float]]) -> float:
    """Return the share of a curve's later points that lie in the interval of the forecast."""
    followed = np.interp(columns["forecast_step"], columns["epoch"], columns["seen"])
    low, high = (np.array(columns[f"forecast_{end}"]) for end in ("low", "high"))
    return float(np.mean((low <= followed) & (followed <= high)))


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
    values=values,
    blocks=blocks,
)
