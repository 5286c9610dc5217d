"""Batch augmentation: gain and cost of M copies of each sample in a batch, each with its own augmentation.

E. Hoffer et al., Augment your batch: better training with larger batches, arXiv 1901.09335.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Mark, Picture, PictureRow, Pictures, Series
from chronograd.job import Augmentation, Job
from chronograd.units import signed as minus
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, Curves, Trained, curves_of, job_of, mean_curve, of_arm, train_arms
from chronograd_lab.common.pictures import augmented, pixels_of
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, matching, processor_s, shown, spread, trend
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import NotRun, Study, listed, table
from chronograd_lab.common.written import Block, key

# Percentage points of accuracy that ResNet-44 gains on CIFAR-10 from M = 1 to M of 12 to 40. From memory of the paper: we do
# not have its own figures by M.
RECALLED_GAIN = (0.5, 1.0)
PICTURE_COPIES = 8
# The M that stands for large ones needs at least this number of seeds.
LEAST_RUNS = 3
# One copy with crop and flip alone: the baseline of cutout and copies.
PLAIN = "M=1, no cutout"
# Columns of a curve by the kind of cost to reach the target, and the digits printed of each.
TARGETS = {"epochs": "epoch", "updates": "step", "images": "images", "seconds": "seconds"}
_DIGITS = {"epochs": 1, "updates": 0, "images": 0, "seconds": 1}
# Further targets, as accuracy less that of the settings.
_OTHER_TARGETS = (-0.05, 0, 0.03, 0.04, 0.05)


class Copies(NamedTuple):
    """A number of copies of every sample, of epochs, and of seeds."""

    copies: int
    epochs: int
    seeds: int
    cutout: bool = True


def arms(settings: Settings) -> dict[str, Copies]:
    """Return the arms by name: those with most seeds first, then the longest runs.

    All but one have the same number of updates. The other has one copy and the same number of images as the arm of `longer`
    copies, so it spends the same compute on epochs. The arm without cutout may have its own network, images, epochs and seeds,
    in `plain`; it is then the first.
    """
    epochs, longer = settings["epochs"], settings["longer"]
    seeds = dict(zip(settings["copies"], settings["seeds"], strict=True))
    compared = {f"M={m}": Copies(m, epochs, n) for m, n in seeds.items()}
    compared[longer_name(settings)] = Copies(1, longer * epochs, seeds[longer])
    own = settings.get("plain", {})
    compared[PLAIN] = Copies(1, own.get("epochs", epochs), own.get("seeds", seeds[min(seeds)]), cutout=False)

    def order(item: tuple[str, Copies]) -> tuple[bool, int, int]:
        name, arm = item
        return not (own and name == PLAIN), -arm.seeds, -arm.copies * arm.epochs

    return dict(sorted(compared.items(), key=order))


def longer_name(settings: Settings) -> str:
    return f"M=1, {settings['longer']} × the epochs"


def by_copies(settings: Settings) -> list[str]:
    """Return the names of the arms with the same number of updates, by rising M."""
    return [f"M={m}" for m in sorted(settings["copies"])]


def job(settings: Settings, arm: Copies) -> Job:
    """Return the job of an arm. All arms have the same number of evaluations, so the longer one has more epochs between
    them.
    """
    settings = settings if arm.cutout else {**settings, **settings.get("plain", {})}
    return job_of(
        settings, settings["network"], recipe="batch-augmentation", epochs=arm.epochs,
        evaluate_every=settings["evaluate_every"] * arm.epochs // settings["epochs"],
        augmentation={**_augmentation(settings), "copies": arm.copies, **({} if arm.cutout else {"cutout": 0})},
    )  # fmt: skip


def _augmentation(settings: Settings) -> dict[str, Any]:
    return {key: settings[key] for key in ("crop", "flip", "cutout")}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Run all arms to their cap, also past the target, so that they can be compared at any point."""
    compared = [
        Arm(name, job(settings, arm), {"arm": name, "copies": arm.copies}, range(arm.seeds))
        for name, arm in arms(settings).items()
    ]
    trained = train_arms(runner, compared)
    curves, alone = curves_of(trained), _alone(runner, trained) if settings.get("timed_alone") else {}
    runs = []
    for one in trained:
        own, per_step = curves[one.name], one.run.job().training.images_per_step
        own["images"] = [(step or 0.0) * per_step for step in own["step"]]
        row = one.row()
        if one.arm.name in alone:
            own["seconds"] = [(step or 0.0) * alone[one.arm.name] for step in own["step"]]
            row["seconds"] = row["updates"] * alone[one.arm.name]
        runs.append({**row, **to_target(own, settings["target"])})
    steps = [{"arm": name, "step_time_s": step_s} for name, step_s in alone.items()]
    return runner.results(settings, rows={"runs": runs, "alone": steps}, curves=curves, pictures=pictures(settings))


def _alone(runner: StudyRunner, trained: Sequence[Trained]) -> dict[str, float]:
    """Return the seconds of a step of each arm while nothing else runs; the training runs were parallel."""
    return {one.arm.name: runner.step_alone_s(one.arm.name, one.arm.job) for one in trained if one.seed == 0}


def to_target(columns: Mapping[str, Sequence[float | None]], target: float) -> Row:
    """Return epochs, updates, images and seconds at the first evaluation that reaches the target; None if none does.

    >>> columns = {"epoch": [1, 2], "step": [10, 20], "images": [90, 180], "seconds": [0.5, 1.1]}
    >>> to_target({**columns, "test_accuracy": [0.4, 0.6]}, 0.5)["seconds_to_target"]
    1.1
    """
    first = next((i for i, a in enumerate(columns["test_accuracy"]) if a is not None and a >= target), None)
    return {f"{key}_to_target": None if first is None else columns[own][first] for key, own in TARGETS.items()}


def pictures(settings: Settings) -> dict[str, str]:
    """Return one training image and copies of it, as the network sees them, without normalisation."""
    import torch

    from chronograd.data import datasets
    from chronograd.figure import png_base64

    dataset = datasets.load(job(settings, Copies(1, settings["epochs"], 1)).data)
    images = dataset.train.batch(np.arange(1))
    copies = augmented(dataset, images, Augmentation(**_augmentation(settings), copies=PICTURE_COPIES))
    pixels = pixels_of(torch.cat([images.float(), copies]), dataset.top)
    return {"image" if i == 0 else f"copy {i}": png_base64(p) for i, p in enumerate(pixels)}


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    """Return accuracy, error, cost, and cost to reach the target by arm.

    `fewest`: the cheapest arm to the target, by kind of cost. `soonest`: the arm that needs the fewest seconds, by target in
    percent. `between`: the seconds between the fastest and the slowest arm, by target. `stages`: the error of crop and flip alone,
    by learning rate. `early`: the target before the learning rate falls, the cost to it by M, and that of all M above 1 together.
    """
    settings, rows = results.settings, results.rows["runs"]
    names = {key(name): name for name in by_copies(settings)} | {"longer": longer_name(settings), "plain": PLAIN}
    arms = {short: _arm(results, name) for short, name in names.items()}
    reached = {
        name: arms[short]["to_target"] for short, name in names.items() if short != "plain" and arms[short]["to_target"]
    }
    cheapest = {kind: min(reached, key=lambda name: reached[name][kind]) for kind in TARGETS if reached}
    copies = [one for one in arms if one.startswith("M_")]
    runs = [row for name in by_copies(settings) for row in matching(rows, arm=name)]
    to_targets = {f"at_{100 * target:g}": own for target, own in _to_targets(results, "seconds").items()}
    ended_s, at_end = _at_equal_seconds(results)
    return {
        **arms,
        "that_differ": sum((arms[one]["accuracy"] - arms["M_1"]["accuracy"]).is_seen for one in copies[1:]),
        "highest": max(copies, key=lambda one: arms[one]["accuracy"].mean),
        "doubling": trend([float(np.log2(row["copies"])) for row in runs], [row["accuracy"] for row in runs]),
        "at_equal_seconds": {"seconds": ended_s, "copies": at_end[0], "longer": at_end[1]},
        "fewest": {kind: {"arm": name, "value": reached[name][kind]} for kind, name in cheapest.items()},
        "missed": ", ".join(name for name in by_copies(settings) if name not in reached),
        "soonest": {target: _least(own) for target, own in to_targets.items()},
        "between": {target: _between(own) for target, own in to_targets.items()},
        "early": _early_values(results),
        "stages": {key(f"rate_{stage['rate']:g}"): stage for stage in stages(results)},
        "num_runs": len(rows),
        "processor_s": sum(filter(None, map(processor_s, rows))),
        "longest_s": max(row["epochs"] * row.get("epoch_time_s", 0) for row in rows),
        "reached_sooner": _published(results).rows[1][2],
        "pictures": {"copies": len(results.pictures) - 1, "distinct": len(set(list(results.pictures.values())[1:]))},
    }


def _arm(results: Results, name: str) -> dict[str, Any]:
    rows = matching(results.rows["runs"], arm=name)
    accuracy = spread(rows)
    is_reached = all(row["seconds_to_target"] is not None for row in rows)
    to_target = {kind: spread(rows, f"{kind}_to_target").mean for kind in TARGETS} if is_reached else None
    cost = {kind: spread(rows, kind).mean for kind in ("updates", "images", "seconds", "train_loss")}
    return {"accuracy": accuracy, "error": _error(accuracy), "to_target": to_target, **cost}


def _error(accuracy: Spread) -> Spread:
    return replace(accuracy, mean=1 - accuracy.mean)


def _of(results: Results, arm: str, key: str = "accuracy") -> Spread:
    return spread(results.rows["runs"], key, arm=arm)


def blocks(results: Results) -> dict[str, Block]:
    target = 100 * results.settings["target"]
    plain = {"Crop and flip alone": _plain(results)} if matching(results.rows["runs"], arm=PLAIN) else {}
    return {
        "At equal updates": _updates(results),
        "At equal images and at equal seconds": _images(results),
        f"To {target:g} %": _target(results),
        "Before the learning rate falls": _early(results),
        "Epochs and seconds by target": _by_target(results),
        **plain,
        "Compared with the paper": Block(_published(results)),
        "One image, many copies": _pictures(results),
    }


def _panel(results: Results, x: str, x_label: str) -> Lines:
    """Return the test error of all arms, with the target as a horizontal line."""
    names = [*by_copies(results.settings), longer_name(results.settings)]
    series = [_error_curve(results, name, x) for name in names]
    target = Mark("y", 100 * (1 - results.settings["target"]), "target")
    return Lines(x_label, "test error, %", series, [target], log_x=x == "images")


def _pictures(results: Results) -> Block:
    image, *copies = results.pictures.items()
    grid = [
        PictureRow("one image", [Picture("", image[1])]),
        PictureRow(f"its copies, M={len(copies)}", [Picture("", png) for _, png in copies]),
    ]
    return Block(figure=Figure([Pictures(grid)]))


def stages(results: Results) -> list[Row]:
    """Return for each learning rate of crop and flip alone the epochs and errors of its first and its last evaluation.

    A rate without an evaluation is left out.
    """
    own = job(results.settings, arms(results.settings)[PLAIN]).training
    ends = [share * float(own.epochs) for share in (*own.milestones, 1)]
    epochs, found, start = _error_curve(results, PLAIN, "epoch").x, [], 0.0
    for place, end in enumerate(ends):
        if within := [epoch for epoch in epochs if start < epoch <= end]:
            errors = [_error(accuracy_at(results.curves, PLAIN, "epoch", epoch)) for epoch in (within[0], within[-1])]
            rate = float(own.learning_rate) * own.gamma**place
            found.append(
                {"rate": rate, "epoch": within[0], "last_epoch": within[-1], "first": errors[0], "last": errors[1]}
            )
        start = end
    return found


def _plain(results: Results) -> Block:
    """Return the errors of one copy with crop and flip alone, and, of the same network, with cutout."""
    labels = {PLAIN: "crop and flip"}
    if "plain" not in results.settings:
        labels[by_copies(results.settings)[0]] = "with cutout"
    errors = [_error_curve(results, name, "epoch", label) for name, label in labels.items()]
    columns: dict[str, Any] = {
        "learning rate": ("rate", "{:g}".format), "epochs": lambda stage: f"{stage['epoch']:g} to {stage['last_epoch']:g}",
        "test error after the first of them": lambda stage: stage["first"].percent(),
        "after the last": lambda stage: stage["last"].percent(),
    }  # fmt: skip
    return Block(table(stages(results), columns), Figure([Lines("epochs", "test error, %", errors)]))


def _error_curve(results: Results, name: str, x: str, label: str = "") -> Series:
    """Return the mean test error of an arm in percent, against a column of its curves."""
    s = mean_curve(results.curves, name, x, label)
    y, low, high = ([None if v is None else 100 - v for v in values] for values in (s.y, s.high, s.low))
    return replace(s, y=y, low=low, high=high)


def _updates(results: Results) -> Block:
    def of(key: str, form: str) -> Any:
        return lambda name: format(_of(results, name, key).mean, form)

    columns: dict[str, Any] = {
        "arm": str, "test error": lambda name: _error(_of(results, name)).percent(),
        "seeds": lambda name: str(_of(results, name).n), "updates": of("updates", ",.0f"),
        "images": of("images", ",.0f"), "training loss": of("train_loss", ".3f"), "seconds": of("seconds", ",.1f"),
        "images/s": lambda name: f"{_of(results, name, 'images').mean / _of(results, name, 'seconds').mean:,.0f}",
    }  # fmt: skip
    names = [*by_copies(results.settings), longer_name(results.settings)]
    return Block(
        table(names, columns),
        Figure([_panel(results, "epoch", "epochs")]),
    )


def _at_equal_seconds(results: Results) -> tuple[float, list[Spread]]:
    """Return the time when the first of the two arms of equal images ends, and the accuracy of each at that time."""
    names = [f"M={results.settings['longer']}", longer_name(results.settings)]
    ended_s = min(_of(results, name, "seconds").mean for name in names)
    return ended_s, [accuracy_at(results.curves, name, "seconds", ended_s) for name in names]


def _images(results: Results) -> Block:
    """Compare arms at equal images and seconds: one pair has the same compute, and each arm of it a whole schedule."""
    names = [f"M={results.settings['longer']}", longer_name(results.settings)]
    ended_s, accuracies = _at_equal_seconds(results)
    at_end = dict(zip(names, accuracies, strict=True))
    columns: dict[str, Any] = {
        "arm": str, f"test error at {_of(results, names[0], 'images').mean:,.0f} images": lambda name: _error(_of(results, name)).percent(),
        f"test error at {ended_s:,.1f} s": lambda name: _error(at_end[name]).percent(),
        "seeds": lambda name: str(_of(results, name).n),
    }  # fmt: skip
    panels = [_panel(results, "images", "images processed"), _panel(results, "seconds", "seconds")]
    return Block(table(names, columns), Figure(panels))


def accuracy_at(curves: Curves, arm: str, x: str, at: float) -> Spread:
    """Return the accuracy over the seeds at the last evaluation whose mean position is not beyond `at`.

    It is 0 before the first evaluation.
    """
    own = of_arm(curves, arm)
    xs = np.mean([[float(v or 0) for v in columns[x]] for columns in own], axis=0)
    last = int((xs <= at * (1 + 1e-9)).sum()) - 1
    return Spread.of([float(columns["test_accuracy"][last] or 0) if last >= 0 else 0.0 for columns in own])


def _target(results: Results) -> Block:
    names, settings = by_copies(results.settings), results.settings
    rows, body = results.rows["runs"], []
    for name in [*names, longer_name(settings)]:
        own = matching(rows, arm=name)
        reached = sum(row["seconds_to_target"] is not None for row in own)
        cells = [_mean_text([row[f"{key}_to_target"] for row in own], _DIGITS[key]) for key in TARGETS]
        at_cap = f"{_of(results, name).percent()} after {_of(results, name, 'seconds').mean:,.1f} s"
        body.append([name, *cells, f"{reached} of {len(own)}", "" if reached == len(own) else at_cap])
    columns = ["arm", *TARGETS, "seeds that reached it", "if not all: accuracy at the cap"]
    return Block(Table(columns, body, set(range(1, 6))).without_empty_columns())


def _to_targets(results: Results, kind: str) -> dict[float, dict[str, float | None]]:
    """Return the mean epochs or seconds of each arm to each further target, by target; None if a seed misses it."""
    found: dict[float, dict[str, float | None]] = {}
    for more in _OTHER_TARGETS:
        target = round(results.settings["target"] + more, 6)
        found[target] = {}
        for name in [*by_copies(results.settings), longer_name(results.settings)]:
            own = [to_target(columns, target)[f"{kind}_to_target"] for columns in of_arm(results.curves, name)]
            found[target][name] = None if None in own else float(np.mean(own))
    return found


def early_target(results: Results) -> float | None:
    """Return the highest multiple of 5 % that each run of each M reaches before the learning rate first falls; None if there is none."""
    training = job(results.settings, arms(results.settings)[by_copies(results.settings)[0]]).training
    falls = training.milestones[0] * training.epochs
    for target in (0.05 * steps for steps in range(19, 0, -1)):
        epochs = [row["epochs"] for row in _rows_to(results, target)]
        if None not in epochs and max(epochs) < falls:
            return round(target, 2)
    return None


def _rows_to(results: Results, target: float | None) -> list[Row]:
    """Return the cost of each run of each M to a target; no rows without a target."""
    if target is None:
        return []
    return [
        {"arm": name, **{kind: reached[f"{kind}_to_target"] for kind in TARGETS}}
        for name in by_copies(results.settings)
        for reached in (to_target(columns, target) for columns in of_arm(results.curves, name))
    ]


def _early_values(results: Results) -> dict[str, Any]:
    target = early_target(results)
    if target is None:
        return {}
    rows = _rows_to(results, target)
    own = {key(name): {kind: spread(rows, kind, arm=name) for kind in TARGETS} for name in by_copies(results.settings)}
    many = [row for row in rows if row["arm"] != "M=1"]
    return {"target": target, **own, "many": {kind: spread(many, kind) for kind in TARGETS}, "runs": len(many)}


def _early(results: Results) -> Block:
    """Return epochs, updates, images and seconds of each M to the target before the learning rate falls."""
    target = early_target(results)
    rows = _rows_to(results, target)
    body = [
        [name, *(_mean_text([row[kind] for row in matching(rows, arm=name)], _DIGITS[kind]) for kind in TARGETS)]
        for name in by_copies(results.settings)
    ]
    title = "arm" if target is None else f"arm, to {100 * target:g} %"
    return Block(Table([title, *TARGETS], body, set(range(1, 1 + len(TARGETS)))))


def _least(values: Mapping[str, float | None]) -> str:
    """Return the arm with the smallest known value, or a dash."""
    known = {name: value for name, value in values.items() if value is not None}
    return min(known, key=lambda name: known[name], default="–")


def _between(values: Mapping[str, float | None]) -> float | None:
    """Return the largest less the smallest known value, None without any."""
    known = [value for value in values.values() if value is not None]
    return max(known) - min(known) if known else None


def _by_target(results: Results) -> Block:
    """Return the seconds of each arm to each target, and epochs and seconds by copies."""
    names = by_copies(results.settings)
    panels = [_to_each_target(results, kind) for kind in ("epochs", "seconds")]
    seconds = _to_targets(results, "seconds")
    body = [
        [f"{100 * target:g} %", *(shown(value, "{:.1f}".format) for value in values.values()), _least(values)]
        for target, values in seconds.items()
    ]
    columns = ["seconds to", *names, longer_name(results.settings), "fewest"]
    return Block(Table(columns, body, set(range(1, len(columns) - 1))), Figure(panels))


def _to_each_target(results: Results, kind: str) -> Lines:
    """Return a line for each target that several M reach, and the times at which the learning rate falls."""
    names, copies = by_copies(results.settings), sorted(results.settings["copies"])
    series = [
        Series(f"to {100 * target:g} %", "measured", copies, [values[name] for name in names], is_joined=True)
        for target, values in _to_targets(results, kind).items()
    ]
    series = [s for s in series if len(s.y) - s.y.count(None) > 1] or series
    latest = max((y for s in series for y in s.y if y is not None), default=0.0)
    training = job(results.settings, arms(results.settings)[names[0]]).training
    ends = [float(training.epochs) if kind == "epochs" else _of(results, name, kind).mean for name in names]
    for i, (share, color) in enumerate(zip(training.milestones, ("orange", "vermilion", "brown"), strict=False)):
        if share * min(ends) <= latest:
            rate = float(training.learning_rate) * training.gamma ** (i + 1)
            falls = [share * end for end in ends]
            series.append(Series(f"the rate falls to {rate:.2g}", "reference", copies, falls, color=color))
    return Lines("copies M", f"mean {kind} to the accuracy", series, log_x=True, x_ticks=copies)


def _mean_text(values: list[float | None], digits: int) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    over = Spread.of(known)
    return f"{over.mean:,.{digits}f}" + ("" if over.std is None else f" ± {over.std:,.{digits}f}")


def _published(results: Results) -> Table:
    first, last = by_copies(results.settings)[0], _largest(results)
    gain = _of(results, last) - _of(results, first)
    rows = results.rows["runs"]
    updates = {name: [row["updates_to_target"] for row in matching(rows, arm=name)] for name in (first, last)}
    fewer = fewer_updates(updates[first], updates[last])
    low, high = RECALLED_GAIN
    body = [
        ["larger M ends with the higher accuracy", f"{last} over {first}: {gain:%}",
         _yes(gain.mean > 0) if gain.is_seen else "not significant"],
        ["larger M reaches a given accuracy in fewer updates", fewer[1], fewer[0]],
        [f"ResNet-44 gains +{low:g} to +{high:g} percentage points *", minus(f"{100 * gain.mean:+.2f} percentage points"),
         _yes(low <= 100 * gain.mean <= high) if gain.is_seen else "not significant"],
    ]  # fmt: skip
    return listed(["published", "here", "agrees"], body, 3, ["* recalled; we do not have the paper's figures by M"])


def _largest(results: Results) -> str:
    """Return the largest M with enough seeds for a statement, or the largest of all."""
    names = by_copies(results.settings)
    return next((name for name in reversed(names) if _of(results, name).n >= LEAST_RUNS), names[-1])


def fewer_updates(first: list[float | None], last: list[float | None]) -> tuple[str, str]:
    """Return whether the arm `last` reaches the target in fewer updates than `first`, and the updates of each.

    >>> fewer_updates([None, 90.0], [40.0])
    ('yes', '40 against more than the cap')
    """
    a, b = (None if None in values else float(np.mean([v or 0.0 for v in values])) for values in (first, last))
    shown = ["more than the cap" if v is None else f"{v:,.0f}" for v in (b, a)]
    if a is None and b is None:
        return "not known", "neither reaches the target from every seed"
    return _yes(b is not None and (a is None or b < a)), " against ".join(shown)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


_SMOKE = {
    "data": "digits", "network": "resnet8", "samples": 200, "test_samples": 200, "image_size": None, "crop": 1,
    "flip": False, "cutout": 2, "copies": [1, 2, 4], "seeds": [2, 1, 1], "longer": 2, "epochs": 3, "batch": 20,
    "learning_rate": 0.05, "evaluate_every": 1, "target": 0.6,
}  # fmt: skip
_LAPTOP: dict[str, Any] = {
    "data": "cifar10", "network": "resnet8", "samples": 1000, "test_samples": 2000, "image_size": 16, "crop": 2,
    "flip": True, "cutout": 8, "copies": [1, 2, 4, 8, 16, 32], "seeds": [3, 3, 3, 3, 3, 3], "longer": 4, "epochs": 12,
    "batch": 32, "learning_rate": 0.1, "evaluate_every": 1, "target": 0.36,
}  # fmt: skip
_PAPER: dict[str, Any] = {
    **_LAPTOP, "network": "resnet44", "samples": None, "test_samples": None, "image_size": None, "crop": 4,
    "cutout": 16, "seeds": [3, 3, 3, 3, 3, 3], "longer": 8, "epochs": 100, "batch": 64, "target": 0.94,
}  # fmt: skip

# Crop and flip alone have the paper's network and all images. Copies have a smaller network and a fifth of the images.
_EVENING: dict[str, Any] = {
    **_PAPER, "network": "resnet20", "samples": 10_000, "copies": [1, 2, 4, 8], "seeds": [2, 2, 2, 2], "longer": 2,
    "epochs": 40, "target": 0.75, "timed_alone": True, "precision": "bf16", "channels_last": True,
    "plain": {"network": "resnet44", "samples": None, "epochs": 30, "seeds": 2},
}  # fmt: skip

STUDY = Study(
    name="batch-augmentation",
    question="What do M augmented copies of each sample in a batch gain, at equal updates, images and seconds?",
    hypothesis="More copies make gradients less noisy, so a larger M needs fewer updates and ends with a lower error; it "
    "costs M times the images",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    published="evening",
    values=values,
    blocks=blocks,
    not_run=[
        NotRun(
            "paper",
            f"the paper's setting, which may reach {100 * _PAPER['target']:g} %: {_PAPER['network']} on all 50,000 images at 32 × 32 for "
            f"{how_many(_PAPER['epochs'], 'epochs')}, M up to {max(_PAPER['copies'])}",
            on_gpu=True,
        )
    ],
)
