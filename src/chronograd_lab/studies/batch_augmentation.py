"""Batch augmentation: what M copies of each sample in a batch, each augmented anew, gain and cost.

E. Hoffer et al., Augment your batch: better training with larger batches, arXiv 1901.09335.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Mark, Picture, PictureRow, Pictures, Series
from chronograd.job import Augmentation, Job
from chronograd.units import seconds as duration
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, Curves, Trained, curves_of, job_of, mean_curve, of_arm, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, is_apart, matching, points_apart, spread, trend
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import NotRun, Study, listed, table

# Points of accuracy that ResNet-44 gains on CIFAR-10 from M = 1 to M of 12 to 40: from memory of the paper, whose own
# figures by M are not at hand.
RECALLED_GAIN = (0.5, 1.0)
PICTURE_COPIES = 8
# A trend needs at least this many values of M; the M that stands for large ones needs this many seeds.
LEAST_RUNS = 3
# One copy with crop and flip alone: what cutout and copies are held against.
PLAIN = "M=1, no cutout"
# Columns of a curve, by what is needed to reach the target, and digits that are printed of them.
TARGETS = {"epochs": "epoch", "updates": "step", "images": "images", "seconds": "seconds"}
_DIGITS = {"epochs": 1, "updates": 0, "images": 0, "seconds": 1}


class Copies(NamedTuple):
    """So many copies of every sample, for so many epochs, from so many seeds."""

    copies: int
    epochs: int
    seeds: int
    cutout: bool = True


def arms(settings: Settings) -> dict[str, Copies]:
    """By name, those with most seeds first, of these the longest runs. All have the same number of updates but one, which has one
    copy and as many images as the arm of `longer` copies: the same compute, spent on epochs."""
    epochs, longer = settings["epochs"], settings["longer"]
    seeds = dict(zip(settings["copies"], settings["seeds"], strict=True))
    compared = {f"M={m}": Copies(m, epochs, n) for m, n in seeds.items()}
    compared[longer_name(settings)] = Copies(1, longer * epochs, seeds[longer])
    compared[PLAIN] = Copies(1, epochs, seeds[min(seeds)], cutout=False)
    return dict(sorted(compared.items(), key=lambda item: (-item[1].seeds, -item[1].copies * item[1].epochs)))


def longer_name(settings: Settings) -> str:
    return f"M=1, {settings['longer']} × the epochs"


def by_copies(settings: Settings) -> list[str]:
    """Names of the arms of equally many updates, by rising M."""
    return [f"M={m}" for m in sorted(settings["copies"])]


def job(settings: Settings, arm: Copies) -> Job:
    """The longer arm is looked at as seldom as it has more epochs, so all arms have equally many evaluations."""
    return job_of(
        settings, settings["network"], recipe="batch-augmentation", epochs=arm.epochs,
        evaluate_every=settings["evaluate_every"] * arm.epochs // settings["epochs"],
        augmentation={**_augmentation(settings), "copies": arm.copies, **({} if arm.cutout else {"cutout": 0})},
    )  # fmt: skip


def _augmentation(settings: Settings) -> dict[str, Any]:
    return {key: settings[key] for key in ("crop", "flip", "cutout")}


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """All arms run to their cap, also past the target, so that they can be compared at any point."""
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
    """Seconds of a step of each arm while nothing else runs: the runs were trained side by side."""
    return {one.arm.name: runner.step_alone_s(one.arm.name, one.arm.job) for one in trained if one.seed == 0}


def to_target(columns: dict[str, list[float | None]], target: float) -> Row:
    """Epochs, updates, images and seconds at the first evaluation that reaches the target; None where none does.

    >>> columns = {"epoch": [1, 2], "step": [10, 20], "images": [90, 180], "seconds": [0.5, 1.1]}
    >>> to_target({**columns, "test_accuracy": [0.4, 0.6]}, 0.5)["seconds_to_target"]
    1.1
    """
    first = next((i for i, a in enumerate(columns["test_accuracy"]) if a is not None and a >= target), None)
    return {f"{key}_to_target": None if first is None else columns[own][first] for key, own in TARGETS.items()}


def pictures(settings: Settings) -> dict[str, str]:
    """One training image and copies of it, as the network sees them, normalisation undone."""
    import torch

    from chronograd.data import augment, datasets
    from chronograd.figure import png_base64

    dataset = datasets.load(job(settings, Copies(1, settings["epochs"], 1)).data)
    images = dataset.train.batch(np.arange(1))
    augmentation = Augmentation(**_augmentation(settings), copies=PICTURE_COPIES)
    draws = torch.from_numpy(augment.draw(augmentation, 0, 0, 1))
    scale_C, shift_C = torch.tensor(dataset.scale_C), torch.tensor(dataset.shift_C)
    seen = augment.augment(images, augmentation, draws, scale_C, shift_C)
    restored = (seen + shift_C.view(1, -1, 1, 1)) / scale_C.view(1, -1, 1, 1)
    shown = torch.cat([images.float(), restored]) * (255 / dataset.top)
    pixels = shown.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return {"image" if i == 0 else f"copy {i}": png_base64(p) for i, p in enumerate(pixels)}


def page(results: Results) -> Answer:
    sections = [
        section(results) for section in (_updates_section, _images_section, _target_section, _published_section)
    ]
    plain = [_plain_section(results)] if matching(results.rows["runs"], arm=PLAIN) else []
    sections = [*sections[:3], *plain, *sections[3:], _pictures_section(results)]
    first, last = by_copies(results.settings)[0], _largest(results)
    errors = f"{_error(_of(results, first)):.1f} % → {_error(_of(results, last)):.1f} %"
    highlight = Highlight(
        f"test error, {first} → {last}", errors, f"after {how_many(results.settings['epochs'], 'epochs')}"
    )
    return STUDY.answer(results, sections, [highlight])


def _of(results: Results, arm: str, key: str = "accuracy") -> Spread:
    return spread(results.rows["runs"], key, arm=arm)


def _error(accuracy: Spread) -> float:
    return 100 * (1 - accuracy.mean)


def _error_text(accuracy: Spread) -> str:
    return replace(accuracy, mean=1 - accuracy.mean).percent()


def _panel(results: Results, x: str, x_label: str) -> Lines:
    """Test error of all arms, the target as a line across."""
    names = [*by_copies(results.settings), longer_name(results.settings)]
    series = [_error_curve(results, name, x) for name in names]
    target = Mark("y", 100 * (1 - results.settings["target"]), "target")
    return Lines(x_label, "test error, %", series, [target], log_x=True)


def _pictures_section(results: Results) -> Section:
    image, *copies = results.pictures.items()
    grid = [
        PictureRow("one image", [Picture("", image[1])]),
        PictureRow(f"its copies, M={len(copies)}", [Picture("", png) for _, png in copies]),
    ]
    s = results.settings
    distinct = len({png for _, png in copies})
    return Section(
        "One image, many copies",
        f"{distinct} of the {len(copies)} copies in this batch differ from each other; a batch of {s['batch']} samples "
        f"is one of {s['batch'] * len(copies)} images, for one update.",
        intro=f"Padded by {how_many(s['crop'], 'pixels')} and cropped, {'mirrored half of the time, ' if s['flip'] else ''}a square of "
        f"{s['cutout']} pixels set to the mean; as the network sees it, normalisation undone.",
        figure=Figure([Pictures(grid)]),
    )


def _plain_section(results: Results) -> Section:
    """One copy with crop and flip alone, and with cutout."""
    first = by_copies(results.settings)[0]
    plain, cutout = _of(results, PLAIN), _of(results, first)
    errors = [
        _error_curve(results, name, "epoch", label)
        for name, label in ((PLAIN, "crop and flip"), (first, "with cutout"))
    ]
    return Section(
        "Crop and flip alone",
        f"{_of_what(results)} ends at {_error_text(plain)} of error with crop and flip after {how_many(results.settings['epochs'], 'epochs')}. "
        f"Cutout changes accuracy by {points_apart(cutout, plain)}.",
        figure=Figure([Lines("epochs", "test error, %", errors)]),
    )


def _of_what(results: Results) -> str:
    """The network, and what it is trained on."""
    settings = results.settings
    images = "all images" if settings["samples"] is None else how_many(settings["samples"], "images")
    side = settings["image_size"]
    return f"{settings['network']} on {images} of {settings['data']}{f' at {side} × {side}' if side else ''}"


def _error_curve(results: Results, name: str, x: str, label: str = "") -> Series:
    """Mean test error of an arm in percent, against a column of its curves."""
    s = mean_curve(results.curves, name, x, label)
    y, low, high = ([None if v is None else 100 - v for v in values] for values in (s.y, s.high, s.low))
    return replace(s, y=y, low=low, high=high)


def _updates_section(results: Results) -> Section:
    names = by_copies(results.settings)

    def of(key: str, form: str) -> Any:
        return lambda name: format(_of(results, name, key).mean, form)

    columns: dict[str, Any] = {
        "arm": str, "test error": lambda name: _error_text(_of(results, name)),
        "seeds": lambda name: str(_of(results, name).n), "updates": of("updates", ",.0f"),
        "images": of("images", ",.0f"), "training loss": of("train_loss", ".3f"), "seconds": of("seconds", ",.1f"),
        "images/s": lambda name: f"{_of(results, name, 'images').mean / _of(results, name, 'seconds').mean:,.0f}",
    }  # fmt: skip
    return Section(
        "At equal updates",
        f"{updates_takeaway({name: _of(results, name) for name in names})} {_trend_text(results)}".strip(),
        intro="Every M has the same number of epochs and updates; only the batch grows. One more arm has a single copy "
        f"and {results.settings['longer']} times the epochs.",
        figure=Figure([_panel(results, "epoch", "epochs"), _panel(results, "step", "weight updates")]),
        table=table([*names, longer_name(results.settings)], columns),
    )


def _trend_text(results: Results) -> str:
    """What a doubling of M changes, over all runs."""
    runs = [row for name in by_copies(results.settings) for row in matching(results.rows["runs"], arm=name)]
    doublings = [float(np.log2(row["copies"])) for row in runs]
    if len(set(doublings)) < LEAST_RUNS or len(runs) <= len(set(doublings)):
        return ""
    change = trend(doublings, [row["accuracy"] for row in runs])
    return f"Over all M together a doubling changes accuracy by {change.points()}."


def updates_takeaway(accuracies: dict[str, Spread]) -> str:
    """Of arms in order of M, the first being M=1, with the same number of updates."""
    first, *others = accuracies
    seen = [name for name in others if is_apart(accuracies[name], accuracies[first])]
    if seen:
        said = "; ".join(f"{name} {points_apart(accuracies[name], accuracies[first])}" for name in seen)
        unseen = [name for name in others if name not in seen]
        rest = f" No significant difference from it: {', '.join(unseen)}." if unseen else ""
        return f"Accuracy over {first}, {_error_text(accuracies[first])} of error: {said}.{rest}"
    best = max(others, key=lambda name: accuracies[name].mean)
    return (
        f"No value of M differs significantly from {first}, {_error_text(accuracies[first])} of error. The highest accuracy among them is of "
        f"{best}: {points_apart(accuracies[best], accuracies[first])}."
    )


def _images_section(results: Results) -> Section:
    """At equal images and seconds: one pair has the same compute and a whole schedule each."""
    copies, longer = f"M={results.settings['longer']}", longer_name(results.settings)
    ended_s = min(_of(results, name, "seconds").mean for name in (copies, longer))
    images = _of(results, copies, "images").mean
    at_end = {name: accuracy_at(results.curves, name, "seconds", ended_s) for name in (copies, longer)}
    columns: dict[str, Any] = {
        "arm": str, f"test error at {images:,.0f} images": lambda name: _error_text(_of(results, name)),
        f"test error at {ended_s:,.1f} s": lambda name: _error_text(at_end[name]),
        "seeds": lambda name: str(_of(results, name).n),
    }  # fmt: skip
    return Section(
        "At equal images and at equal seconds",
        f"{images_takeaway(copies, longer, _of(results, copies), _of(results, longer))} "
        f"{seconds_takeaway(ended_s, copies, *at_end.values())}",
        intro=f"{copies} and {longer} process equally many images, each with a whole schedule of the learning rate. "
        "Seconds are of training, without evaluation"
        + (", by the step of each arm timed while nothing else ran." if results.rows.get("alone") else "."),
        figure=Figure([_panel(results, "images", "images processed"), _panel(results, "seconds", "seconds")]),
        table=table(at_end, columns),
    )


def accuracy_at(curves: Curves, arm: str, x: str, at: float) -> Spread:
    """Accuracy over the seeds at the last evaluation that, in the mean of the seeds, is not beyond `at`.

    0 where there is none yet.
    """
    own = of_arm(curves, arm)
    xs = np.mean([[float(v or 0) for v in columns[x]] for columns in own], axis=0)
    last = int((xs <= at * (1 + 1e-9)).sum()) - 1
    return Spread.of([float(columns["test_accuracy"][last] or 0) if last >= 0 else 0.0 for columns in own])


def images_takeaway(copies: str, longer: str, a: Spread, b: Spread) -> str:
    """Whether compute is better spent on copies (a) or on epochs (b)."""
    verdict = "does not differ significantly from"
    if is_apart(a, b):
        verdict = "is better than" if a.mean > b.mean else "is worse than"
    return f"At equal images {copies} {verdict} {longer}: {points_apart(a, b)}."


def seconds_takeaway(at_s: float, copies: str, a: Spread, b: Spread) -> str:
    verdict = ("ahead" if a.mean > b.mean else "behind") if is_apart(a, b) else "not significantly ahead or behind"
    return f"After {duration(at_s)}, when the first of them ends, {copies} is {verdict}: {points_apart(a, b)}."


def _target_section(results: Results) -> Section:
    names, settings = by_copies(results.settings), results.settings
    rows, body = results.rows["runs"], []
    for name in [*names, longer_name(settings)]:
        own = matching(rows, arm=name)
        reached = sum(row["seconds_to_target"] is not None for row in own)
        cells = [_mean_text([row[f"{key}_to_target"] for row in own], _DIGITS[key]) for key in TARGETS]
        at_cap = f"{_of(results, name).percent()} after {_of(results, name, 'seconds').mean:,.1f} s"
        body.append([name, *cells, f"{reached} of {len(own)}", "" if reached == len(own) else at_cap])
    columns = ["arm", *TARGETS, "seeds that reached it", "if not all: accuracy at the cap"]
    looks = settings["epochs"] // settings["evaluate_every"]
    copies, panels = sorted(settings["copies"]), []
    for key in ("epochs", "seconds"):
        values = [[row[f"{key}_to_target"] for row in matching(rows, arm=name)] for name in names]
        known = [[value for value in own if value is not None] for own in values]
        spreads = [Spread.of(own) if own else None for own in known]
        y, low, high = ([None if s is None else getattr(s, side) for s in spreads] for side in ("mean", "low", "high"))
        notes = [
            f"{len(some)} of {len(own)}" if len(some) < len(own) else ""
            for some, own in zip(known, values, strict=True)
        ]
        series = Series(
            "mean of the seeds that reached it", "measured", copies, y, low, high, notes=notes, is_joined=True
        )
        panels.append(Lines("copies M", f"{key} to the target", [series], log_x=True, x_ticks=copies))
    return Section(
        f"To {100 * settings['target']:g} %",
        f"To {100 * settings['target']:g} % of accuracy, {_of_what(results)}: "
        f"{target_takeaway(rows, names, longer_name(settings), settings['epochs'])}",
        intro=f"Every arm is looked at {looks} times. Means are over the seeds that reached the target.",
        figure=Figure(panels),
        caption="A number beside a point: how many of the seeds reached the target, where some did not. No point: none did.",
        table=Table(columns, body, set(range(1, 6))).without_empty_columns(),
    )


def _mean_text(values: list[float | None], digits: int) -> str:
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    over = Spread.of(known)
    return f"{over.mean:,.{digits}f}" + ("" if over.std is None else f" ± {over.std:,.{digits}f}")


def target_takeaway(rows: list[Row], names: list[str], longer: str, cap: int) -> str:
    """Which of the arms that reach the target from every seed needs the fewest updates, images and seconds."""
    reached: dict[str, dict[str, Spread]] = {}
    for name in [*names, longer]:
        own = matching(rows, arm=name)
        if all(row["seconds_to_target"] is not None for row in own):
            reached[name] = {key: Spread.of([row[f"{key}_to_target"] for row in own]) for key in TARGETS}
    missed = [name for name in names if name not in reached]
    short = f" Not reached from every seed within {how_many(cap, 'epochs')}: {', '.join(missed)}." if missed else ""
    if not reached:
        return f"no arm reaches the target from every seed.{short}"
    first = {key: min(reached, key=lambda name: reached[name][key].mean) for key in TARGETS}
    shown = {key: f"{reached[name][key].mean:,.{_DIGITS[key]}f}" for key, name in first.items()}
    return (
        f"fewest epochs and updates {first['updates']} ({shown['epochs']} and {shown['updates']}). Fewest images: "
        f"{first['images']} ({shown['images']}). Fewest seconds: {first['seconds']} ({shown['seconds']}).{short}"
    )


def _published_section(results: Results) -> Section:
    names = by_copies(results.settings)
    first, last = names[0], _largest(results)
    gain = 100 * (_of(results, last).mean - _of(results, first).mean)
    is_seen = is_apart(_of(results, last), _of(results, first))
    rows = results.rows["runs"]
    updates = {name: [row["updates_to_target"] for row in matching(rows, arm=name)] for name in (first, last)}
    fewer = fewer_updates(updates[first], updates[last])
    low, high = RECALLED_GAIN
    body = [
        ["larger M ends with the higher accuracy",
         f"{last} over {first}: {points_apart(_of(results, last), _of(results, first))}",
         _yes(gain > 0) if is_seen else "not significant"],
        ["larger M reaches a given accuracy in fewer updates", fewer[1], fewer[0]],
        [f"ResNet-44 gains +{low:g} to +{high:g} percentage points *", f"{gain:+.2f} percentage points",
         _yes(low <= gain <= high) if is_seen else "not significant"],
    ]  # fmt: skip
    agreed = sum(row[2] == "yes" for row in body[:2])
    size = "above" if gain > high else "below" if gain < low else "within"
    within = f"the gain of {gain:+.2f} percentage points is {size} the range of +{low:g} to +{high:g} recalled for it"
    return Section(
        "Beside the paper",
        f"{agreed} of the paper's 2 claims hold here; {within if is_seen else f'the gain is not significant, {gain:+.2f} percentage points'}.",
        intro="Hoffer et al. 2019: CIFAR-10 with crop, flip and cutout, ResNet-44, batch 64, 100 epochs.",
        table=listed(
            ["published", "here", "agrees"], body, 3, ["* recalled; the paper's figures by M are not at hand"]
        ),
    )


def _largest(results: Results) -> str:
    """The largest M with repeats enough for a statement, else the largest."""
    names = by_copies(results.settings)
    return next((name for name in reversed(names) if _of(results, name).n >= LEAST_RUNS), names[-1])


def fewer_updates(first: list[float | None], last: list[float | None]) -> tuple[str, str]:
    """Whether the arm `last` reaches the target in fewer updates than `first`, and how many each needs.

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

# On one GPU a quarter of an hour, on two cores days: CIFAR-10 as it is, the paper's network for a fifth of its epochs.
_EVENING: dict[str, Any] = {
    **_PAPER, "copies": [1, 2, 4, 8], "seeds": [3, 3, 3, 1], "longer": 2, "epochs": 20, "target": 0.91, "timed_alone": True,
}  # fmt: skip

STUDY = Study(
    name="batch-augmentation",
    question="What do M augmented copies of each sample in a batch gain, at equal updates, images and seconds?",
    hypothesis="More copies make gradients less noisy, so a larger M needs fewer updates and ends with a lower error; it "
    "costs M times the images",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
    not_run=[
        NotRun(
            "paper",
            f"the paper's setting, which may reach {100 * _PAPER['target']:g} %: {_PAPER['network']} on all 50,000 images at 32 × 32 for "
            f"{how_many(_PAPER['epochs'], 'epochs')}, M up to {max(_PAPER['copies'])}",
            1100,
            1.6,
        ),
        NotRun(
            "evening",
            f"the same network for {how_many(_EVENING['epochs'], 'epochs')}, to {100 * _EVENING['target']:g} %, M up to {max(_EVENING['copies'])}",
            39,
        ),
    ],
)
