"""Teacher and student: images without labels, labelled by a trained network, used to train a smaller one.

I. Z. Yalniz et al., Billion-scale semi-supervised learning for image classification, arXiv 1905.00546. D are images
with labels. U are images without: their true labels are known here, and only used to count wrong ones.

    1. a teacher is trained on D
    2. of U the teacher's P best classes per image are candidates; per class the K best-scored images are kept
    3. a student is trained on those                    "pretrained"
    4. and fine-tuned on D                              "fine-tuned"
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data.labels import with_noise, write_labels
from chronograd.figure import Figure, Lines, Picture, PictureRow, Pictures, Series, png_base64
from chronograd.job import Data, Job
from chronograd.rundir import RunDir
from chronograd.train.methods import teacher
from chronograd.train.methods.teacher import Selection
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, Trained, job_of, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, is_apart, matching, points_apart, seeds, spread, unresolved, upper
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import NotRun, Study, listed, table

Array = np.ndarray[Any, Any]

# Top-1 accuracy of ResNet-50 on ImageNet in percent: on its labels alone; as a student with U = YFCC-100M; and with U = a
# billion images found by hashtag.
PUBLISHED_ALONE, PUBLISHED_STUDENT, PUBLISHED_HASHTAGS = 76.4, 79.1, 81.2
ALONE, TEACHER, PRETRAINED, TUNED = "D alone", "teacher", "pretrained", "fine-tuned"
TOGETHER, SOFT, ECHO = "best of all classes together", "probabilities", "teacher's labels of D"
NUM_PICTURES = 4


def set_name(per_class: int, top_classes: int) -> str:
    return f"K {per_class}, P {top_classes}"


def own(settings: Settings) -> str:
    """The set of the method itself; the others vary it."""
    return set_name(settings["K"], settings["P"])


def tried(settings: Settings, varied: str) -> list[tuple[int, int]]:
    """Pairs of K and P: K is varied at the method's P, and P at a K of its own, where classes run short."""
    if varied == "K":
        return [(k, settings["P"]) for k in sorted({settings["K"], *settings["K_tried"]})]
    return [(settings["K_of_P_tried"], p) for p in sorted({1, *settings["P_tried"]})]


def epochs_for(updates: int, size: int, batch: int) -> int:
    """Epochs of a set that come nearest to a number of updates; the last incomplete batch of an epoch is dropped.

    >>> epochs_for(600, 10_050, 100), epochs_for(600, 54_000, 100)
    (6, 1)
    """
    return max(1, round(updates / (size // batch)))


# -- running it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taught:
    """What a student is pretrained on: fields of its job's data, and what is known of the labels, a row of results."""

    data: Mapping[str, Any]
    known: Row


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    labelled, recipe, noisy = settings["labelled"], settings["supervised"], _noisy(settings)
    # The teacher has a seed of its own, so that no student starts from its initial weights.
    supervised = [
        Arm.of(job(settings, settings["teacher"], labelled, recipe), [settings["seeds"]], arm=TEACHER, stage=""),
        Arm.of(job(settings, settings["student"], labelled, recipe), range(settings["seeds"]), arm=ALONE, stage=""),
    ]
    trained = train_arms(runner, [*supervised, *_pretraining(settings, noisy)])
    judge = Judge(trained[0].run, settings)
    folder = runner.folder.resolve() / "labels"
    folder.mkdir(parents=True, exist_ok=True)
    sets = {name: judge.taught(name, selection, folder) for name, selection in judge.selections().items()}
    trained += train_arms(runner, _pretraining(settings, sets))
    trained += train_arms(runner, _tuning(settings, trained, judge.echo(folder / "echo.npz")))
    rows = {
        "networks": [one.row(**judge.agreement(one.run)) for one in trained],
        "sets": [{"set": name, **taught.known} for name, taught in {**sets, **noisy}.items()],
        "labelled": [{"images": len(judge.labelled.train), "wrong": judge.wrong_on_labelled}],
    }
    rows["pictures"], pictures = judge.pictures()
    return runner.results(settings, rows=rows, pictures=pictures)


def job(
    settings: Settings, network: str, data: Mapping[str, Any], training: Mapping[str, Any], weights: str | None = None
) -> Job:
    """One normalisation for every set, so that a student meets the same pixels before and after fine-tuning."""
    whole_run = {**training, "evaluate_every": training["epochs"], "augmentation": settings["augmentation"]}
    return job_of(settings, network, weights, _data(settings, data), **whole_run)


def _data(settings: Settings, own_fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings["images"], "normalisation": "imagenet", **own_fields}


def _pretraining(settings: Settings, sets: Mapping[str, Taught]) -> list[Arm]:
    """Students from the start on each set, with the same number of updates, as near as whole epochs allow."""
    recipe = dict(settings["pretraining"])
    updates = recipe.pop("updates")
    arms = []
    for name, taught in sets.items():
        training = {**recipe, "epochs": epochs_for(updates, taught.known["labels"], recipe["batch"])}
        num_seeds = settings["seeds"] if name == own(settings) else settings["seeds_of_others"]
        student = job(settings, settings["student"], taught.data, training)
        arms.append(Arm.of(student, range(num_seeds), arm=name, stage=PRETRAINED))
    return arms


def _tuning(settings: Settings, trained: Sequence[Trained], echo: Mapping[str, Any]) -> list[Arm]:
    """Each student fine-tuned on D; the method's own also on the teacher's labels of D (`echo`)."""
    arms = []
    for one in trained:
        name = one.arm.known["arm"]
        # Of the soft one we ask what it has of the teacher, before this.
        if one.arm.known["stage"] != PRETRAINED or name == SOFT:
            continue
        labels = {name: settings["labelled"], **({ECHO: echo} if name == own(settings) and one.seed == 0 else {})}
        for tuned, data in labels.items():
            student = job(settings, settings["student"], data, settings["fine_tuning"], str(one.run.path))
            arms.append(Arm.of(student, [one.seed], arm=tuned, stage=TUNED))
    return arms


def _noisy(settings: Settings) -> dict[str, Taught]:
    """U with weak labels: true ones, of which a share is drawn anew. Wrong ones are counted for seed 0."""
    from chronograd.data import datasets

    sets = {}
    for noise in settings["noise_tried"]:
        truth_N = datasets.load(Data(**settings["unlabelled"])).train_labels.numpy()
        wrong = float((with_noise(truth_N, noise, seed=0)[0] != truth_N).mean())
        known = {"noise": noise, "labels": len(truth_N), "images": len(truth_N), "wrong": wrong}
        sets[f"weak labels, noise {100 * noise:g} %"] = Taught({**settings["unlabelled"], "label_noise": noise}, known)
    return sets


class Judge:
    """A trained teacher, and what it makes of U, of D and of the test images.

    Shapes: N images of U, D images of D, T test images, K classes.

    Attributes:
        labelled, unlabelled: D and U.
        probability_NK, probability_DK, probability_TK: the teacher's.
        truth_N: true classes of U; None where it is another data set than D.
    """

    def __init__(self, run: RunDir, settings: Settings) -> None:
        from chronograd.data import datasets

        self.settings = settings
        self.labelled, self.unlabelled = (
            datasets.load(Data(**_data(settings, settings[part]))) for part in ("labelled", "unlabelled")
        )
        is_known = settings["labelled"]["name"] == settings["unlabelled"]["name"]
        self.truth_N = self.unlabelled.train_labels.numpy() if is_known else None
        self.probability_NK = teacher.softmax_of_run(run, self.unlabelled, "train")
        self.probability_DK = teacher.softmax_of_run(run, self.labelled, "train")
        self.probability_TK = teacher.softmax_of_run(run, self.labelled, "test")
        self._position = {int(sample): i for i, sample in enumerate(self.unlabelled.train_samples_N)}

    def selections(self) -> dict[str, Selection]:
        """What is kept of U, by name of the set."""
        settings = self.settings

        def select(per_class: int, top_classes: int, is_balanced: bool = True) -> Selection:
            samples_N = self.unlabelled.train_samples_N
            return teacher.select(samples_N, self.probability_NK, top_classes, per_class, is_balanced)

        pairs = [(settings["K"], settings["P"]), *tried(settings, "K"), *tried(settings, "P")]
        found = {set_name(*pair): select(*pair) for pair in pairs}
        found[SOFT] = select(settings["K_of_P_tried"], 1)
        if settings["is_balance_ablated"]:
            found[TOGETHER] = select(settings["K"], settings["P"], is_balanced=False)
        return found

    def taught(self, name: str, kept: Selection, folder: Path) -> Taught:
        """A selection as a file of labels: classes, or the teacher's probabilities of all."""
        path = folder / f"{name.replace(',', '').replace(' ', '-')}.npz"
        positions = np.array([self._position[int(sample)] for sample in kept.sample])
        if name == SOFT:
            write_labels(path, kept.sample, probability=self.probability_NK[positions])
        else:
            write_labels(path, kept.sample, label=kept.label)
        truth = None if self.truth_N is None else self.truth_N[positions]
        known = composition(kept, self.probability_NK.shape[1], truth)
        return Taught({"name": self.settings["unlabelled"]["name"], "labels": str(path)}, known)

    def echo(self, path: Path) -> dict[str, Any]:
        """D with the teacher's labels."""
        write_labels(path, self.labelled.train_samples_N, label=self.probability_DK.argmax(1))
        return {"name": self.settings["labelled"]["name"], "labels": str(path)}

    @property
    def wrong_on_labelled(self) -> float:
        return float((self.probability_DK.argmax(1) != self.labelled.train_labels.numpy()).mean())

    def agreement(self, run: RunDir) -> Row:
        """How often a network says of a test image what the teacher says: of all, and where the teacher is wrong."""
        own_T, teachers_T = teacher.softmax_of_run(run, self.labelled, "test").argmax(1), self.probability_TK.argmax(1)
        is_wrong_T = teachers_T != self.labelled.test_labels_N.numpy()
        return agreement(own_T, teachers_T, is_wrong_T)

    def pictures(self) -> tuple[list[Row], dict[str, str]]:
        """Images kept for two classes, of the smallest set that has enough of them: what they are, and PNGs."""
        names = self.labelled.card.class_names
        by_size = sorted(self.selections().items(), key=lambda item: len(item[1].sample))
        chosen, kept = next((item for item in by_size if (item[1].times() > 1).sum() >= NUM_PICTURES), by_size[-1])
        rows, pictures = [], {}
        for i, (sample, two) in enumerate(evenly_two(kept)[:NUM_PICTURES]):
            position = self._position[sample]
            truth = None if self.truth_N is None else names[int(self.truth_N[position])]
            rows.append({"set": chosen, "name": str(i), "two": [[names[c], score] for c, score in two], "truth": truth})
            image_HWC = self.unlabelled.train.batch(np.array([position]))[0].permute(1, 2, 0).cpu().numpy()
            pictures[str(i)] = png_base64(np.rint(image_HWC * (255 / self.unlabelled.top)).astype(np.uint8))
        return rows, pictures


def agreement(own_T: Array, teachers_T: Array, is_wrong_T: Array) -> Row:
    """Share of equal classes: of all, and of those that the teacher gets wrong; None where it gets none wrong."""
    is_equal_T = own_T == teachers_T
    repeated = float(is_equal_T[is_wrong_T].mean()) if is_wrong_T.any() else None
    return {"agreement": float(is_equal_T.mean()), "repeated_mistakes": repeated}


def evenly_two(kept: Selection) -> list[tuple[int, list[tuple[int, float]]]]:
    """Samples kept for two or more classes, with their two best of these and the scores; nearest to a tie first."""
    by_sample: dict[int, list[tuple[int, float]]] = {}
    for sample, label, score in zip(kept.sample.tolist(), kept.label.tolist(), kept.score.tolist(), strict=True):
        by_sample.setdefault(sample, []).append((label, score))
    two = [(s, sorted(found, key=lambda f: -f[1])[:2]) for s, found in by_sample.items() if len(found) > 1]
    return sorted(two, key=lambda item: (-item[1][1][1], item[0]))


def composition(kept: Selection, num_classes: int, truth: Array | None) -> Row:
    """What is in a selection. `truth`: the true class of each of its labels, None where that is not known."""
    times = kept.times()
    return {
        "labels": len(kept.sample),
        "images": len(times),
        "several": int((times > 1).sum()),
        "per_class": np.bincount(kept.label, minlength=num_classes).tolist(),
        "wrong": None if truth is None else float((kept.label != truth).mean()),
    }


# -- the page --------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    weak = (_weak_section,) if results.settings["noise_tried"] else ()
    made_of = (_steps_section, _per_class_section, _top_classes_section, _composition_section, _ablation_section)
    sections = [section(results) for section in (*made_of, *weak, _distillation_section)]
    student, alone = _of(results, own(results.settings), TUNED), _of(results, ALONE)
    network = results.settings["student"]
    highlights = [
        Highlight(label, accuracy.percent(), f"{network}, {seeds(accuracy.n)}")
        for label, accuracy in (("student, fine-tuned", student), ("trained on D alone", alone))
    ]
    return STUDY.answer(results, sections, highlights)


def _of(results: Results, arm: str, stage: str = "", key: str = "accuracy") -> Spread:
    return spread(results.rows["networks"], key, arm=arm, stage=stage)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _steps_section(results: Results) -> Section:
    settings = results.settings
    student, judging = settings["student"], settings["teacher"]
    alone, judge = _of(results, ALONE), _of(results, TEACHER)
    pretrained, tuned = (_of(results, own(settings), stage) for stage in (PRETRAINED, TUNED))
    steps = [
        (ALONE, f"{student} on D alone", alone, f"{PUBLISHED_ALONE}"),
        (TEACHER, f"teacher, {judging}, on D alone", judge, "–"),
        (PRETRAINED, f"student, {student}, pretrained", pretrained, "–"),
        (TUNED, f"student, {student}, fine-tuned", tuned, f"{PUBLISHED_STUDENT} and {PUBLISHED_HASHTAGS}"),
    ]
    places, names = list(range(len(steps))), [step[0] for step in steps]
    series = points("test accuracy", places, [step[2] for step in steps], is_joined=False)
    published = f"{PUBLISHED_STUDENT - PUBLISHED_ALONE:+.1f}"
    num_images = settings["images"].get("test_samples")
    open_points = unresolved(alone.mean, num_images) if num_images else 0.0
    if tuned.mean <= alone.mean:
        agrees = f"It does not gain; published is a gain ({published})"
    elif is_apart(tuned, alone) and tuned.mean - alone.mean > open_points:
        agrees = f"It gains, as published ({published})"
    else:
        agrees = f"That it gains, as published ({published}), is not certain"
        if tuned.mean - alone.mean <= open_points:
            agrees += f": {num_images:,} test images cannot resolve less than {100 * open_points:.1f} percentage points"
    return Section(
        "The four steps",
        f"The student against the same network on D alone: {points_apart(tuned, alone)}. {agrees}. "
        f"Against its teacher: {points_apart(tuned, judge)}.",
        intro=f"K = {settings['K']:,}, P = {settings['P']}. Published: Yalniz et al. 2019, ResNet-50 on ImageNet, with 100 "
        "million photographs as U, and with a billion found by hashtag.",
        figure=Figure([Lines("", "test accuracy, %", [series], x_ticks=places, x_names=names)]),
        table=listed(
            ["network", "test accuracy", "seeds", "published (ResNet-50), %"],
            [[name, *accuracy.cells(), published] for _, name, accuracy, published in steps],
        ),
    )


def _sweep(results: Results, varied: str, title: str, said: str, intro: str) -> Section:
    """Accuracy and share of wrong labels against K or P."""
    pairs = tried(results.settings, varied)
    names, xs = [set_name(*pair) for pair in pairs], [pair["KP".index(varied)] for pair in pairs]
    sets = {row["set"]: row for row in results.rows["sets"]}
    found = {stage: [_of(results, name, stage) for name in names] for stage in (PRETRAINED, TUNED)}
    wrong = [sets[name]["wrong"] for name in names]
    shares = Series("wrong labels", "measured", xs, [None if w is None else 100 * w for w in wrong], is_joined=True)
    label = {"K": "K, images kept per class", "P": "P, classes that an image may be kept for"}[varied]
    accuracies = [points(stage, xs, spreads) for stage, spreads in found.items()]
    panels = [
        Lines(label, "test accuracy, %", accuracies, log_x=varied == "K", x_ticks=xs),
        Lines(label, "wrong labels in the set, %", [shares], log_x=varied == "K", x_ticks=xs, from_zero=True),
    ]
    body = []
    for i, (name, x) in enumerate(zip(names, xs, strict=True)):
        counts = [sets[name]["labels"], sets[name]["images"], min(sets[name]["per_class"])]
        updates = _of(results, name, PRETRAINED, "updates").mean
        accuracy = [found[stage][i].percent() for stage in (PRETRAINED, TUNED)]
        cells = [*(f"{n:,}" for n in counts), _share(wrong[i]), f"{updates:,.0f}", *accuracy, str(found[TUNED][i].n)]
        body.append([f"{x:,}", *cells])
    columns = [varied, "labels", "images", "smallest class", "wrong", "updates", PRETRAINED, TUNED, "seeds"]
    is_known = None not in wrong
    return Section(
        title, said, intro=intro, figure=Figure(panels if is_known else panels[:1]), table=listed(columns, body, 0)
    )


def shape(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A curve in words: where it is highest, and how far down it goes on both sides, in points.

    >>> shape([1, 2, 3], [50, 60, 55])
    'rises to 2 (+10.0 percentage points) and falls after it (−5.0 percentage points)'
    """
    peak = int(np.argmax(ys))
    rise, fall = ys[peak] - ys[0], ys[peak] - ys[-1]
    if rise == fall == 0:
        return "is the same for all"
    if peak == 0:
        return f"is highest at the smallest, {xs[0]:,} ({fall:.1f} percentage points above {xs[-1]:,})"
    if peak == len(xs) - 1:
        return f"is highest at the largest, {xs[-1]:,} ({rise:.1f} percentage points above {xs[0]:,})"
    return f"rises to {xs[peak]:,} (+{rise:.1f} percentage points) and falls after it (−{fall:.1f} percentage points)"


def chance(results: Results) -> float | None:
    """Points by which two runs may differ by their seeds alone: twice the deviation of a difference; None if unknown."""
    std = _of(results, own(results.settings), TUNED).std
    return None if std is None else 100 * 2 * float(np.sqrt(2)) * std


def _beside_chance(results: Results) -> str:
    by_seeds = chance(results)
    if by_seeds is None:
        return " All from one seed."
    return f" By their seeds alone two runs differ by up to some {by_seeds:.1f} percentage points."


def _tuned_points(results: Results, varied: str) -> dict[int, float]:
    """K or P → accuracy after fine-tuning, in percent."""
    pairs = tried(results.settings, varied)
    return {pair["KP".index(varied)]: 100 * _of(results, set_name(*pair), TUNED).mean for pair in pairs}


def _per_class_section(results: Results) -> Section:
    found = _tuned_points(results, "K")
    ks, ys = list(found), list(found.values())
    said = f"After fine-tuning, accuracy {shape(ks, ys)}" if len(ks) > 1 else f"Only K = {ks[0]:,} was tried"
    if len(ks) > 2:
        is_inside = 0 < int(np.argmax(ys)) < len(ys) - 1
        least = min(max(ys) - ys[0], max(ys) - ys[-1])
        is_sure = least > (chance(results) or 0.0)
        said += (
            (", as published" if is_sure else ". That it rises, then falls, as published, is not certain")
            if is_inside
            else ". The published accuracy rises, then falls"
        )
    said += f".{_beside_chance(results)}"
    sets = {row["set"]: row["wrong"] for row in results.rows["sets"]}
    least, most = (sets[set_name(*tried(results.settings, "K")[i])] for i in (0, -1))
    if least is not None and len(ks) > 1:
        said += f" From K = {ks[0]:,} to {ks[-1]:,} wrong labels go from {_share(least)} of the set to {_share(most)}."
    intro = (
        f"P = {results.settings['P']}. A small K keeps few images, of which the teacher is sure. All are pretrained for the "
        "same number of updates, as near as whole epochs allow."
    )
    return _sweep(results, "K", "How many images per class", said, intro)


def _top_classes_section(results: Results) -> Section:
    per_class = results.settings["K_of_P_tried"]
    found = _tuned_points(results, "P")
    best = max(found, key=lambda p: found[p])
    gain = found[best] - found[1]
    if gain == 0:
        said = "No P is better than P = 1."
    else:
        by_seeds = chance(results)
        is_more = by_seeds is not None and gain > by_seeds
        said = f"P = {best} ends {gain:.1f} percentage points above P = 1, {'' if is_more else 'no '}more than seeds may do."
    smallest = min(matching(results.rows["sets"], set=set_name(per_class, 1))[0]["per_class"])
    if smallest < per_class:
        said += f" With P = 1 the smallest class has {smallest:,} of {how_many(per_class, 'images')}; a larger P fills it with others."
    else:
        said += " Every class is full with P = 1 already."
    intro = f"K = {per_class:,}, so large that a class runs out of images in which it comes first."
    return _sweep(results, "P", "How many classes per image", said, intro)


def _composition_section(results: Results) -> Section:
    rows = [row for row in results.rows["sets"] if "several" in row and row["set"] != SOFT]
    (ours,) = matching(rows, set=own(results.settings))
    most = max(rows, key=lambda row: row["several"])
    low, high = min(ours["per_class"]), max(ours["per_class"])
    said = f"Are classes balanced? {ours['set']} keeps {f'{low:,} to ' if low < high else ''}{high:,} images of each. "
    said += "Can an image have two classes? "
    if most["several"]:
        counted = [f"{row['several']:,} of {row['images']:,} ({row['set']})" for row in (ours, most)]
        said += f"Where P > 1, yes: {' and '.join(dict.fromkeys(counted))} images are kept for two or more."
    else:
        said += "Where P > 1 it could, yet none has."
    shown, sets = [], results.rows["pictures"]
    for row in sets:
        truth = [f"is: {row['truth']}"] if row["truth"] else []
        lines = [*(f"{name} {score:.2f}" for name, score in row["two"]), *truth]
        shown.append(Picture("\n".join(lines), results.pictures[row["name"]]))
    return Section(
        "What is kept",
        said,
        intro=f"The pictures are kept for two classes ({sets[0]['set']}): scores, and what they are." if shown else "",
        figure=Figure([Pictures([PictureRow("", shown)])]) if shown else None,
        table=table(rows, {
            "set": "set", "labels": ("labels", "{:,}".format), "images": ("images", "{:,}".format),
            "of two or more classes": lambda row: f"{row['several']:,} ({_share(row['several'] / row['images'])})",
            "smallest class": lambda row: f"{min(row['per_class']):,}",
            "largest class": lambda row: f"{max(row['per_class']):,}",
        }),
    )  # fmt: skip


def _ablation_section(results: Results) -> Section:
    ours = own(results.settings)
    full = _of(results, ours, TUNED)
    without = {
        "without fine-tuning": _of(results, ours, PRETRAINED),
        "without U: D alone": _of(results, ALONE),
        "fine-tuned on the teacher's labels of D": _of(results, ECHO, TUNED),
    }
    if results.settings["is_balance_ablated"]:
        without["without balance: best of all classes together"] = _of(results, TOGETHER, TUNED)
    worst = min(without, key=lambda name: without[name].mean)
    said = f"{upper(worst)} costs most: {points_apart(without[worst], full)}."
    if without[worst].mean >= full.mean:
        said = "Nothing is worse when it is left out."
    for name, one in without.items():
        if one.mean > full.mean:
            said += f" “{upper(name)}” has a higher mean than all four steps: {points_apart(one, full)}."
    wrong = results.rows["labelled"][0]["wrong"]
    said += f" The teacher is wrong on {_share(wrong)} of the images of D, which it was trained on."
    body = [["all four steps", *full.cells(), ""]]
    body += [[name, *accuracy.cells(), points_apart(accuracy, full)] for name, accuracy in without.items()]
    columns = ["method", "test accuracy", "seeds", "against all four steps"]
    return Section("Each step left out", said, table=Table(columns, body, {1, 2}))


def share_that_equals(accuracy: float, curve: Sequence[tuple[float, float]]) -> float | None:
    """The share of wrong labels at which a curve of (share, accuracy) comes down to an accuracy; None if nowhere.

    >>> share_that_equals(0.6, [(0.0, 0.7), (0.4, 0.5)])
    0.2
    """
    for (x0, y0), (x1, y1) in itertools.pairwise(sorted(curve)):
        if y0 >= accuracy >= y1 and y0 > y1:
            return round(x0 + (x1 - x0) * (y0 - accuracy) / (y0 - y1), 4)
    return None


def _weak_section(results: Results) -> Section:
    sets = {row["set"]: row for row in results.rows["sets"]}
    ours = own(results.settings)
    weak = [name for name in sets if "noise" in sets[name]]
    groups = {"weak labels": weak, "teacher's labels, by K": [set_name(*pair) for pair in tried(results.settings, "K")]}
    found = {name: _of(results, name, TUNED) for names in groups.values() for name in names}
    series = [
        points(label, [100 * sets[name]["wrong"] for name in names], [found[name] for name in names])
        for label, names in groups.items()
    ]
    body = []
    for name in [*weak, ours]:
        counted = [f"{sets[name]['labels']:,}", _share(sets[name]["wrong"]), _of(results, name, PRETRAINED).percent()]
        body.append([name, *counted, *found[name].cells()])
    wrong = sets[ours]["wrong"]
    equal = share_that_equals(found[ours].mean, [(sets[name]["wrong"], found[name].mean) for name in weak])
    means = [found[name].mean for name in weak]
    said = f"With the teacher's labels, {_share(wrong)} of them wrong, a student ends at {found[ours].percent()}. Weak labels "
    if equal is not None:
        said += f"come to the same with {_share(equal)} wrong: mistakes at random cost "
        said += f"{'less' if equal > wrong else 'more'} than the teacher's, which are alike."
    elif min(means) > found[ours].mean:
        said += "are better with any noise that was tried."
    elif max(means) < found[ours].mean:
        said += "are worse with any noise that was tried."
    else:
        said += "are better with some noise that was tried, and worse with some less."
    return Section(
        "Weak labels or a teacher",
        said,
        intro="The same images U used both ways: with true labels of which a share is drawn anew, or without labels and "
        "with a teacher. All are then fine-tuned on D.",
        figure=Figure([Lines("wrong labels in pretraining, %", "test accuracy after fine-tuning, %", series)]),
        table=listed(["labels of U", "labels", "wrong", PRETRAINED, TUNED, "seeds"], body),
    )


def _distillation_section(results: Results) -> Section:
    rows, classes = results.rows["networks"], set_name(results.settings["K_of_P_tried"], 1)
    weak = [row["set"] for row in results.rows["sets"] if "noise" in row]
    names = {ALONE: ALONE, classes: "teacher's classes", SOFT: "teacher's probabilities"} | {n: n for n in weak}
    body, same, repeated = [], {}, {}
    for arm, name in names.items():
        stage = "" if arm == ALONE else PRETRAINED
        accuracy, same[arm] = _of(results, arm, stage), _of(results, arm, stage, "agreement")
        mistakes = [row["repeated_mistakes"] for row in matching(rows, arm=arm, stage=stage)]
        repeated[arm] = None if None in mistakes else float(np.mean(mistakes))
        body.append([name, accuracy.percent(), same[arm].percent(), _share(repeated[arm]), str(accuracy.n)])
    said = (
        f"Students agree with the teacher on {_share(same[classes].mean)} (classes) and {_share(same[SOFT].mean)} "
        f"(probabilities) of the test images, the same network on D alone on {_share(same[ALONE].mean)}."
    )
    student, alone = repeated[classes], repeated[ALONE]
    if student is not None and alone is not None:
        shows = "they learn the teacher, mistakes included" if student > alone else "this does not show a distillation"
        said += f" They repeat {_share(student)} of the teacher's mistakes (classes); "
        said += f"the network trained on D alone repeats {_share(alone)}: {shows}."
    taught = [row["set"] for row in results.rows["sets"] if "several" in row]
    groups = {"taught by the teacher": (taught, PRETRAINED), "then fine-tuned": (taught, TUNED),
              "taught by weak labels": (weak, PRETRAINED), ALONE: ([ALONE], "")}  # fmt: skip
    series = []
    for label, (arms, stage) in groups.items():
        own = [row for row in matching(rows, stage=stage) if row["arm"] in arms]
        xs, ys = ([100 * row[key] for row in own] for key in ("accuracy", "agreement"))
        series += [Series(label, "measured", xs, ys)] if own else []
    columns = ["taught by", "test accuracy", "agrees with the teacher", "repeats its mistakes", "seeds"]
    return Section(
        "Why it is a distillation",
        said,
        intro="Students before fine-tuning. The teacher's classes and its probabilities are of the same images.",
        figure=Figure([Lines("test accuracy, %", "agreement with the teacher, %", series)]),
        table=listed(columns, body),
    )


_SMOKE = {
    "teacher": "small-cnn", "student": "small-cnn", "images": {},
    "labelled": {"name": "digits", "samples": 100}, "unlabelled": {"name": "digits", "skip": 100, "samples": 600},
    "K": 80, "P": 2, "K_tried": [], "K_of_P_tried": 80, "P_tried": [2], "noise_tried": [0.5],
    "is_balance_ablated": False, "augmentation": {},
    "supervised": {"recipe": "sgd-one-cycle", "learning_rate": 0.05, "batch": 20, "epochs": 8},
    "pretraining": {"recipe": "sgd-one-cycle", "learning_rate": 0.05, "batch": 40, "updates": 40},
    "fine_tuning": {"recipe": "fine-tuning", "learning_rate": 0.01, "batch": 20, "epochs": 2},
    "seeds": 1, "seeds_of_others": 1,
}  # fmt: skip
# Why small-cnn (315,722 parameters here) teaches: of 2,000 images, in 20 epochs, it learned 51 %, resnet14 50 %, resnet8
# (75,290 parameters) 47 %, one seed each; and it takes half the time of resnet14.
_LAPTOP: dict[str, Any] = {
    "teacher": "small-cnn", "student": "resnet8", "images": {"image_size": 16, "test_samples": 4000},
    "labelled": {"name": "cifar10", "samples": 2000},
    "unlabelled": {"name": "cifar10", "skip": 2000, "samples": 20_000},
    "K": 1000, "P": 3, "K_tried": [50, 250, 3000, 6000], "K_of_P_tried": 3000, "P_tried": [3, 10],
    "noise_tried": [0.1, 0.25, 0.5], "is_balance_ablated": True, "augmentation": {"crop": 2, "flip": True},
    "supervised": {"recipe": "sgd-one-cycle", "learning_rate": 0.05, "batch": 100, "epochs": 40},
    "pretraining": {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 100, "updates": 600},
    "fine_tuning": {"recipe": "fine-tuning", "learning_rate": 0.01, "batch": 100, "epochs": 8},
    "seeds": 3, "seeds_of_others": 1,
}  # fmt: skip
# Whole images; a teacher of depth; a pretraining long enough that what it learned is what U has to teach.
_EVENING: dict[str, Any] = {
    **_LAPTOP, "teacher": "resnet20", "images": {"image_size": 32}, "labelled": {"name": "cifar10", "samples": 4000},
    "unlabelled": {"name": "cifar10", "skip": 4000, "samples": 40_000}, "K": 2000, "K_tried": [250, 1000, 4000, 8000],
    "K_of_P_tried": 4000, "P_tried": [3, 10], "augmentation": {"crop": 4, "flip": True},
    "supervised": {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 100, "epochs": 60},
    "pretraining": {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 100, "updates": 4000},
    "fine_tuning": {"recipe": "fine-tuning", "learning_rate": 0.01, "batch": 100, "epochs": 20},
    "seeds": 3, "seeds_of_others": 3,
}  # fmt: skip
# Networks, D, U, K and P are published, and about a billion images seen in pretraining. Batches, rates and the length of
# fine-tuning are not in our sources. A job cannot yet name a folder U that lacks the classes of D.
_PAPER = {
    "teacher": "torchvision:resnext101_32x8d", "student": "torchvision:resnet50", "images": {"image_size": 224},
    "labelled": {"name": "imagenet:imagenet"}, "unlabelled": {"name": "folder:yfcc100m"},
    "K": 16_000, "P": 10, "K_tried": [4_000, 8_000, 32_000, 64_000], "K_of_P_tried": 16_000, "P_tried": [10],
    "noise_tried": [], "is_balance_ablated": True, "augmentation": {"resized_crop": 0.08, "flip": True},
    "supervised": {"recipe": "cifar-resnet", "batch": 256, "epochs": 90},
    "pretraining": {"recipe": "cifar-resnet", "batch": 1024, "updates": 1_000_000},
    "fine_tuning": {"recipe": "fine-tuning", "batch": 256, "epochs": 30},
    "seeds": 1, "seeds_of_others": 1,
}  # fmt: skip

STUDY = Study(
    name="teacher-student",
    question="What do images without labels gain, when a teacher labels them and a student learns from the best?",
    hypothesis="A student pretrained on the teacher's best images of each class and fine-tuned on true labels beats the "
    "same network on those labels alone; with more images per class it gains, then loses to wrong labels",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
    not_run=[
        NotRun(
            "evening",
            f"every arm from {how_many(_EVENING['seeds_of_others'], 'seeds')}, whole images, a deeper teacher ({_EVENING['teacher']}) and "
            f"{how_many(_EVENING['pretraining']['updates'], 'updates')} of pretraining on {how_many(_EVENING['unlabelled']['samples'], 'images')}",
            3,
        )
    ],
)
