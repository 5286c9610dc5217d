"""Weak labels: what noise and a long tail in the labels of pretraining cost, before and after transfer.

D. Mahajan et al., Exploring the limits of weakly supervised pretraining, arXiv 1805.00932.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data.labels import zipf_counts
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.job import Job
from chronograd.train.methods.teacher import softmax_of_run
from chronograd.train.order import class_shares
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, Trained, job_of, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, difference, grouped, is_apart, matching, points_apart, seeds, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import NotRun, Study, listed, table

Array = np.ndarray[Any, Any]
BEFORE, AFTER = "pretraining", "transfer"
ALONE = "clean set alone"
# Points of accuracy that label noise costs after transfer, as published, and what counts as that here: "about" is
# within a point. That of 50 % is from memory of the paper.
PUBLISHED_LOSS = {0.1: ("under 1", -np.inf, 1.0), 0.25: ("about 2", 1.0, 3.0), 0.5: ("about 5 to 6 *", 4.0, 7.0)}
# Points that square-root and uniform resampling gain over natural frequencies.
PUBLISHED_GAIN = (5.0, 6.0)
MOST_CLASSES = 20  # that a table lists one by one
_X = "class, by falling frequency"


def noise_name(share: float) -> str:
    return f"noise {100 * share:g} %"


def noise_job(settings: Settings, share: float, seed: int) -> Job:
    """Pretraining with a share of the labels replaced. None of the target's images, first in the shuffle, is in it."""
    data = {"samples": settings["pretraining_samples"], "skip": settings["target_samples"], "label_noise": share}
    return _job(settings, "noise", data, seed)


def tail_job(settings: Settings, resampling: str, seed: int) -> Job:
    """Pretraining on a long-tailed set, which is the same however it is resampled, without the target's images."""
    data = {"samples": settings["tail_samples"], "skip": settings["target_samples"], "long_tail": settings["long_tail"]}
    return _job(settings, "tail", {**data, "resampling": resampling}, seed)


def target_job(settings: Settings, seed: int, weights: str | None = None) -> Job:
    """Fine-tuning on the small clean set; without weights, training on it alone."""
    data = {"samples": settings["target_samples"]}
    return _job(settings, "alone" if weights is None else "transfer", data, seed, weights)


def _job(settings: Settings, stage: str, data: Row, seed: int, weights: str | None = None) -> Job:
    epochs = settings["epochs"][stage]
    return job_of(
        settings, settings["network"], weights, data, recipe="fine-tuning" if stage == "transfer" else "cifar-resnet",
        epochs=epochs, seed=seed, learning_rate=settings["learning_rate"][stage],
        augmentation=settings["augmentation"], evaluate_every=epochs,
    )  # fmt: skip


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Pretraining of all arms, then transfer of each from its own run."""
    first, alone = [], []
    for seed in range(settings["seeds"]):
        jobs = {noise_name(p): noise_job(settings, p, seed) for p in settings["noise"]}
        jobs |= {r: tail_job(settings, r, seed) for r in settings["resamplings"]}
        first += [Arm.of(job, [seed], stage=BEFORE, arm=name) for name, job in jobs.items()]
        alone.append(Arm.of(target_job(settings, seed), [seed], stage=ALONE, arm=""))
    trained = train_arms(runner, first + alone)
    second = [
        Arm.of(target_job(settings, one.seed, str(one.run.path)), [one.seed], stage=AFTER, arm=one.arm.known["arm"])
        for one in trained[: len(first)]
    ]
    trained += train_arms(runner, second)
    columns = ("stage", "arm", "seed", "accuracy", "seconds")
    runs = [{key: row[key] for key in columns} for row in (one.row() for one in trained)]
    rows = {"runs": runs, "classes": _class_rows(trained, settings), "tail": tail_set(settings)}
    return runner.results(settings, rows=rows)


def _class_rows(trained: Sequence[Trained], settings: Settings) -> list[Row]:
    """Test accuracy by class, of the arms of the long tail."""
    from chronograd.data import datasets

    jobs = {BEFORE: tail_job(settings, "natural", 0), AFTER: target_job(settings, 0)}
    sets = {stage: datasets.load(job.data) for stage, job in jobs.items()}
    rows = []
    for one in trained:
        known = one.arm.known
        if known["arm"] in settings["resamplings"]:
            own = sets[known["stage"]]
            accuracies = class_accuracies(softmax_of_run(one.run, own, "test"), own.test_labels_N.numpy())
            rows += [{**known, "seed": one.seed, "class": c, "accuracy": a} for c, a in enumerate(accuracies)]
    return rows


def class_accuracies(probability_NK: Array, labels_N: Array) -> list[float]:
    """Share of the images of each class for which the most probable class is theirs; NaN for a class without images.

    >>> class_accuracies(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 0, 1]))
    [0.5, 1.0]
    """
    is_right_N = probability_NK.argmax(axis=1) == labels_N
    classes = range(probability_NK.shape[1])
    return [float(is_right_N[labels_N == c].mean()) if (labels_N == c).any() else float("nan") for c in classes]


def tail_set(settings: Settings) -> list[Row]:
    """Of each class, by falling frequency: its images, and how many of it an epoch has under each resampling."""
    from chronograd.data import datasets

    names = datasets.card(tail_job(settings, "natural", 0).data).class_names
    counts = np.array(zipf_counts(settings["tail_samples"], len(names), settings["long_tail"]))
    shares = {r: class_shares(counts, r) for r in settings["resamplings"]}
    return [
        {"class": c, "name": name, "images": int(counts[c]), **{r: share[c] for r, share in shares.items()}}
        for c, name in enumerate(names)
    ]


def page(results: Results) -> Answer:
    sections = [
        section(results)
        for section in (_noise_section, _loss_section, _tail_section, _classes_section, _resampling_section)
    ]
    worst = max(results.settings["noise"])
    after = _of(results, AFTER, noise_name(worst))
    highlight = Highlight(f"after transfer, {100 * worst:g} % noise", after.percent(), seeds(after.n))
    return STUDY.answer(results, sections, [highlight])


def _of(results: Results, stage: str, arm: str = "") -> Spread:
    return spread(results.rows["runs"], stage=stage, arm=arm)


# -- label noise -------------------------------------------------------------------------------------


def _noise(results: Results, stage: str) -> dict[float, Spread]:
    return {p: _of(results, stage, noise_name(p)) for p in sorted(results.settings["noise"])}


def _noise_section(results: Results) -> Section:
    before, after, alone = _noise(results, BEFORE), _noise(results, AFTER), _of(results, ALONE)
    s = results.settings
    shares = [100 * p for p in before]
    series = [
        points(f"{when} transfer", shares, [*own.values()]) for when, own in (("before", before), ("after", after))
    ]
    marks = [Mark("y", 100 * alone.mean, ALONE)]
    body = [[f"{100 * p:g} %", before[p].percent(), *after[p].cells()] for p in before]
    body.append([ALONE, "", *alone.cells()])
    return Section(
        "Label noise",
        noise_takeaway(before, after, alone),
        intro=f"Pretraining on {how_many(s['pretraining_samples'], 'images')}; of their labels a share is replaced by a draw from the "
        f"distribution of all, which may hit the true one. Then fine-tuning on {how_many(s['target_samples'], 'other images')} with "
        "clean labels. Both have the same classes, so the head is kept.",
        figure=Figure([Lines("labels replaced, %", "test accuracy, %", series, marks, x_ticks=shares)]),
        table=listed(["labels replaced", "before transfer", "after transfer", "seeds"], body),
    )


def noise_takeaway(before: Mapping[float, Spread], after: Mapping[float, Spread], alone: Spread) -> str:
    """Of accuracies by share of labels replaced, 0 among them."""
    worst = max(before)
    lost = [100 * (s[0.0].mean - s[worst].mean) for s in (before, after)]
    if lost[0] <= 0:
        verdict = "noise costs nothing before transfer"
    else:
        verdict = "transfer does not make up for the loss"
        if lost[1] < lost[0]:
            verdict = f"on average, transfer makes up for {lost[0] - lost[1]:.1f} percentage points of the loss"
    useless = [f"{100 * p:g} %" for p in after if after[p].mean <= alone.mean]
    if useless:
        beaten = f"Pretraining does not beat the {ALONE} with {', '.join(useless)} noise."
    else:
        gained = points_apart(after[worst], alone)
        beaten = (
            f"Pretraining beats the {ALONE} at every share of noise. With {100 * worst:g} % it beats it by {gained}."
        )
    untransferred, apart = (difference(s[worst], s[0.0]) for s in (before, after))
    robust = (
        "shows no significant loss" if not apart.is_seen else "is not robust" if apart.mean < 0 else "gains by noise"
    )
    if apart.interval is None:
        robust = "cannot be judged from one seed"
    return (
        f"Here pretraining {robust}: {100 * worst:g} % noise changes accuracy by {apart.points()} after transfer. Before transfer it changes "
        f"accuracy by {untransferred.points()}; {verdict}. {beaten}"
    )


def _loss_section(results: Results) -> Section:
    before, after = _noise(results, BEFORE), _noise(results, AFTER)
    body = []
    for p in (p for p in after if p > 0):
        text = PUBLISHED_LOSS[p][0] if p in PUBLISHED_LOSS else "–"
        lost = [100 * (s[0.0].mean - s[p].mean) for s in (before, after)]
        apart = "one seed" if after[p].std is None else "yes" if is_apart(after[0.0], after[p]) else "no"
        row = [f"{100 * p:g} %", *(f"{points:.2f}" for points in lost), apart, text]
        body.append([*row, published_verdict(p, lost[1])])
    columns = ["labels replaced", "lost before", "lost after", "more than seeds differ", "published", "here is"]
    judged = [row for row in body if row[-1] != "–"]
    other = [row for row in judged if row[-1] != "as published"]
    told = "".join(f" {row[0]}: {row[-1]}." for row in other)
    return Section(
        "What noise costs, beside the paper",
        f"{len(judged) - len(other)} of {len(judged)} losses after transfer are as published.{told}",
        intro="In percentage points of accuracy against clean labels, before and after transfer. Published, after transfer: Mahajan et "
        "al. 2018, up to 3.5 billion images with hashtags. “About” is within one point.",
        table=Table(columns, body, {1, 2}, notes=["published: from a secondary source; * recalled"]),
    )


def published_verdict(share: float, lost: float) -> str:
    """
    >>> published_verdict(0.25, 2.4), published_verdict(0.25, 3.4), published_verdict(0.3, 1.0)
    ('as published', 'more than published', '–')
    """
    if share not in PUBLISHED_LOSS:
        return "–"
    _, low, high = PUBLISHED_LOSS[share]
    return "less than published" if lost < low else "more than published" if lost > high else "as published"


# -- a long tail -------------------------------------------------------------------------------------


def _tail_section(results: Results) -> Section:
    rows, resamplings = results.rows["tail"], results.settings["resamplings"]
    ranks = [row["class"] + 1 for row in rows]
    series = [Series(_word(r), "measured", ranks, [row[r] for row in rows], is_joined=True) for r in resamplings]
    listed_rows = rows if len(rows) <= MOST_CLASSES else [*rows[: MOST_CLASSES // 2], *rows[-MOST_CLASSES // 2 :]]
    columns: dict[str, Any] = {
        "rank": lambda row: str(row["class"] + 1),
        "class": "name",
        "images": lambda row: f"{row['images']:,}",
        **{f"{_word(r)}, per epoch": lambda row, r=r: f"{row[r]:,}" for r in resamplings},
    }
    return Section(
        "A long tail of labels",
        tail_takeaway(rows, resamplings),
        intro=f"{sum(row['images'] for row in rows):,} images, classes by Zipf's law with exponent "
        f"{results.settings['long_tail']:g}. Resampling changes how often an image is met, not which images there are.",
        figure=Figure([Lines(_X, "images per epoch", series, log_y=True, x_ticks=_ticks(ranks))]),
        table=replace(table(listed_rows, columns), right={0, *range(2, len(columns))}),
    )


def tail_takeaway(rows: Sequence[Row], resamplings: Sequence[str]) -> str:
    """How much more often the first class is met than the last."""
    ratios = {r: rows[0][r] / max(1, rows[-1][r]) for r in resamplings}
    often = ", ".join(f"{_word(r)} {ratio:.1f}" for r, ratio in ratios.items())
    evenest = min(ratios, key=lambda r: ratios[r])
    met = rows[-1][evenest] / max(1, rows[-1]["images"])
    return (
        f"Times that the first class is met for each time that the last is: {often}. With {_word(evenest)} resampling an "
        f"image of the last class comes {met:.1f} times per epoch."
    )


def rare(results: Results, stage: str, arm: str) -> Spread:
    """Mean accuracy on the least frequent classes, of each seed, over the seeds."""
    first = len(results.rows["tail"]) - results.settings["rare"]
    rows = [row for row in matching(results.rows["classes"], stage=stage, arm=arm) if row["class"] >= first]
    by_seed = grouped(sorted(rows, key=lambda row: row["seed"]), "seed")
    return Spread.of([float(np.nanmean([row["accuracy"] for row in own])) for own in by_seed.values()])


def _classes_section(results: Results) -> Section:
    resamplings, stages = results.settings["resamplings"], (BEFORE, AFTER)
    ranks = [row["class"] + 1 for row in results.rows["tail"]]
    panels = []
    for stage, when in ((BEFORE, "before"), (AFTER, "after")):
        by_arm = grouped(matching(results.rows["classes"], stage=stage), "arm")
        series = [
            points(_word(r), ranks, [spread(by_arm[r], **{"class": rank - 1}) for rank in ranks]) for r in resamplings
        ]
        panels.append(Lines(_X, f"accuracy {when} transfer, %", series, x_ticks=_ticks(ranks)))
    columns: dict[str, Any] = {"resampling": _word}
    for stage, when in zip(stages, ("before", "after"), strict=True):
        columns[f"{when}: all"] = lambda r, stage=stage: _of(results, stage, r).percent()
        columns[f"{when}: rare"] = lambda r, stage=stage: rare(results, stage, r).percent()
    columns["seeds"] = lambda r: str(_of(results, BEFORE, r).n)
    return Section(
        "Accuracy by class",
        classes_takeaway(*({r: rare(results, stage, r) for r in resamplings} for stage in stages)),
        intro=f"Rare are the {how_many(results.settings['rare'], 'classes')} with the fewest images in pretraining. Transfer is to "
        f"{results.settings['target_samples']:,} clean images with the frequencies of the published set.",
        figure=Figure(panels),
        table=table(resamplings, columns),
    )


def classes_takeaway(before: Mapping[str, Spread], after: Mapping[str, Spread]) -> str:
    """Of accuracies on the rare classes, by resampling."""

    def of_best(accuracies: Mapping[str, Spread]) -> str:
        best = max(accuracies, key=lambda r: accuracies[r].mean)
        shown = accuracies[best].percent()
        if best == "natural":
            return f"no resampling is better than natural frequencies, {shown}"
        gain = points_apart(accuracies[best], accuracies["natural"])
        return f"{_word(best)} resampling is best, {shown}. Its gain over natural frequencies is {gain}"

    return f"On the rare classes before transfer, {of_best(before)}. After transfer, {of_best(after)}."


def _resampling_section(results: Results) -> Section:
    resamplings = results.settings["resamplings"]
    accuracies = {stage: {r: _of(results, stage, r) for r in resamplings} for stage in (BEFORE, AFTER)}
    low, high = PUBLISHED_GAIN
    columns: dict[str, Any] = {"over natural": _word}
    columns |= {
        f"{when} transfer, here": lambda r, of=accuracies[stage]: points_apart(of[r], of["natural"])
        for stage, when in ((BEFORE, "before"), (AFTER, "after"))
    }
    columns["after, published"] = lambda r: f"+{low:g} to +{high:g} percentage points"
    return Section(
        "Resampling, beside the paper",
        resampling_takeaway(accuracies[AFTER]),
        intro="Accuracy over all classes. Published: Mahajan et al. 2018, hashtags, transfer to ImageNet.",
        table=table([r for r in resamplings if r != "natural"], columns, text=4),
    )


def resampling_takeaway(after: Mapping[str, Spread]) -> str:
    """Of accuracies over all classes after transfer, by resampling, natural among them."""
    natural = after["natural"]
    gains = {r: 100 * (s.mean - natural.mean) for r, s in after.items() if r != "natural"}
    shown = ", ".join(f"{_word(r)} {gain:+.1f}" for r, gain in gains.items())
    apart = sum(is_apart(after[r], natural) for r in gains)
    certain = f"With {seeds(natural.n)}, {apart} of {len(gains)} gains are significant"
    certain = certain if natural.std is not None else "One seed is too few to judge"
    low, high = PUBLISHED_GAIN
    best = max(gains.values())
    size = "below" if best < low else "above" if best > high else "within"
    size = size if best > 0 else "no better than natural, against"
    return f"After transfer, gains over natural in percentage points: {shown}. {certain}. The best is {size} the published {low:g} to {high:g} percentage points."


def _word(resampling: str) -> str:
    return resampling.replace("_", "-")


def _ticks(ranks: Sequence[int]) -> Sequence[int]:
    """Every rank, where there is room."""
    return ranks if len(ranks) <= MOST_CLASSES else ()


_SMOKE = {
    "data": "digits", "network": "resnet8", "image_size": None, "test_samples": 200, "target_samples": 100,
    "pretraining_samples": 300, "noise": [0.0, 0.5], "tail_samples": 200, "long_tail": 1.0, "rare": 3,
    "resamplings": ["natural", "uniform"],
    "augmentation": {"crop": 1}, "epochs": {"noise": 3, "tail": 4, "transfer": 2, "alone": 3}, "batch": 50,
    "learning_rate": {"noise": 0.1, "tail": 0.1, "transfer": 0.05, "alone": 0.1}, "seeds": 1,
}  # fmt: skip
_LAPTOP: dict[str, Any] = {
    "data": "cifar10", "network": "resnet8", "image_size": 16, "test_samples": None, "target_samples": 2000,
    "pretraining_samples": 20_000, "noise": [0.0, 0.1, 0.25, 0.5], "tail_samples": 8000, "long_tail": 1.5, "rare": 3,
    "resamplings": ["natural", "square_root", "uniform"], "augmentation": {"crop": 2, "flip": True},
    "epochs": {"noise": 4, "tail": 8, "transfer": 8, "alone": 24}, "batch": 64,
    "learning_rate": {"noise": 0.1, "tail": 0.1, "transfer": 0.05, "alone": 0.1}, "seeds": 2,
}  # fmt: skip
# Whole images, and epochs enough that fine-tuning helps the arm without noise.
_EVENING: dict[str, Any] = {
    **_LAPTOP, "image_size": None, "pretraining_samples": 40_000, "augmentation": {"crop": 4, "flip": True},
    "epochs": {"noise": 15, "tail": 30, "transfer": 20, "alone": 60}, "batch": 128,
    "learning_rate": {"noise": 0.1, "tail": 0.1, "transfer": 0.01, "alone": 0.1}, "seeds": 3,
}  # fmt: skip
# The published images and hashtags are not public: ImageNet stands in for them, with weak labels of its own.
_PAPER = {
    **_LAPTOP, "data": "imagenet:imagenet", "network": "torchvision:resnext101_32x8d", "image_size": None,
    "target_samples": 100_000, "pretraining_samples": 1_000_000, "tail_samples": 60_000, "long_tail": 0.5, "rare": 300,
    "augmentation": {"resized_crop": 0.08, "flip": True},
    "epochs": {"noise": 90, "tail": 90, "transfer": 30, "alone": 200}, "batch": 256,
    "learning_rate": {**_LAPTOP["learning_rate"], "transfer": 0.01}, "seeds": 1,
}  # fmt: skip

STUDY = Study(
    name="weak-labels",
    question="What do wrong labels and a long tail of labels cost in pretraining, before and after transfer?",
    hypothesis="Noise costs little after transfer, for wrong labels agree on nothing; resampling rare classes helps, for a "
    "network otherwise learns the frequent ones",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
    not_run=[
        NotRun(
            "evening",
            f"a pretraining long enough that fine-tuning helps the arm without noise, too: {how_many(_EVENING['epochs']['noise'], 'epochs')} of "
            f"{how_many(_EVENING['pretraining_samples'], 'whole images')} and a tail for {_EVENING['epochs']['tail']}, {how_many(_EVENING['seeds'], 'seeds')}",
            1.7,
        )
    ],
)
