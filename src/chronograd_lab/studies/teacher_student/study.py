"""Teacher and student: images without labels, labelled by a trained network, used to train a smaller one.

I. Z. Yalniz et al., Billion-scale semi-supervised learning for image classification, arXiv 1905.00546. D are images with
labels. U are images without: their true labels are known here, and only used to count wrong ones.

    1. a teacher is trained on D
    2. the teacher's P best classes of each image in U are candidates; each class selects its K best-scored images
    3. a student is trained on those                    "pretrained"
    4. and fine-tuned on D                              "fine-tuned"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.data.labels import with_noise, write_labels
from chronograd.figure import Figure, Lines, Mark, Picture, PictureRow, Pictures, Series, png_base64
from chronograd.job import Data, Job
from chronograd.rundir import RunDir
from chronograd.train.methods import teacher
from chronograd.train.methods.teacher import Selection
from chronograd.units import percent
from chronograd_lab.common.arms import Arm, Trained, job_of, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, cost, matching, mean, shown, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key

Array = np.ndarray[Any, Any]

# Top-1 accuracy of ResNet-50 on ImageNet in percent: on its labels alone; as a student with U = YFCC-100M; and with U = a
# billion images selected by hashtag.
PUBLISHED_ALONE, PUBLISHED_STUDENT, PUBLISHED_HASHTAGS = 76.4, 79.1, 81.2
ALONE, TEACHER, PRETRAINED, TUNED = "D alone", "teacher", "pretrained", "fine-tuned"
TOGETHER, SOFT, ECHO = "best of all classes together", "probabilities", "teacher's labels of D"
NUM_PICTURES = 4


def set_name(per_class: int, top_classes: int) -> str:
    return f"K {per_class}, P {top_classes}"


def own(settings: Settings) -> str:
    """Return the name of the method's own set; the others vary it."""
    return set_name(settings["K"], settings["P"])


def tried(settings: Settings, varied: str) -> list[tuple[int, int]]:
    """Return pairs of K and P: K varies at the method's P, and P at a special K, where classes run short."""
    if varied == "K":
        return [(k, settings["P"]) for k in sorted({settings["K"], *settings["K_tried"]})]
    return [(settings["K_of_P_tried"], p) for p in sorted({1, *settings["P_tried"]})]


def epochs_for(updates: int, size: int, batch: int) -> int:
    """Return the epochs of a set nearest to a number of updates; an epoch drops its last incomplete batch.

    >>> epochs_for(600, 10_050, 100), epochs_for(600, 54_000, 100)
    (6, 1)
    """
    return max(1, round(updates / (size // batch)))


# -- running it ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taught:
    """The pretraining data of a student: fields of its job's data, and a row of results about its labels."""

    data: Mapping[str, Any]
    known: Row


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    labelled, recipe, noisy = settings["labelled"], settings["supervised"], _noisy(settings)
    # The teacher has a separate seed, so that no student starts from its initial weights.
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
    """Return a job. Every set has the same normalisation, so that a student sees the same pixels before and after
    fine-tuning.
    """
    whole_run = {**training, "evaluate_every": training["epochs"], "augmentation": settings["augmentation"]}
    return job_of(settings, network, weights, _data(settings, data), **whole_run)


def _data(settings: Settings, own_fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings["images"], "normalisation": "imagenet", **own_fields}


def _pretraining(settings: Settings, sets: Mapping[str, Taught]) -> list[Arm]:
    """Return students from the start on each set, with the same number of updates, as near as whole epochs allow."""
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
    """Return each student fine-tuned on D; the method's own also on the teacher's labels of D (`echo`)."""
    arms = []
    for one in trained:
        name = one.arm.known["arm"]
        # The student of soft labels is compared with the teacher before fine-tuning.
        if one.arm.known["stage"] != PRETRAINED or name == SOFT:
            continue
        labels = {name: settings["labelled"], **({ECHO: echo} if name == own(settings) and one.seed == 0 else {})}
        for tuned, data in labels.items():
            student = job(settings, settings["student"], data, settings["fine_tuning"], str(one.run.path))
            arms.append(Arm.of(student, [one.seed], arm=tuned, stage=TUNED))
    return arms


def _noisy(settings: Settings) -> dict[str, Taught]:
    """Return U with weak labels: true ones, with a share replaced by random ones. Wrong labels are counted for seed 0."""
    from chronograd.data import datasets

    sets = {}
    for noise in settings["noise_tried"]:
        truth_N = datasets.load(Data(**settings["unlabelled"])).train_labels.numpy()
        wrong = float((with_noise(truth_N, noise, seed=0)[0] != truth_N).mean())
        known = {"noise": noise, "labels": len(truth_N), "images": len(truth_N), "wrong": wrong}
        sets[f"weak labels, noise {100 * noise:g} %"] = Taught({**settings["unlabelled"], "label_noise": noise}, known)
    return sets


class Judge:
    """A trained teacher, and its results for U, D and the test images.

    Shapes: N images of U, D images of D, T test images, K classes.

    Attributes:
        labelled, unlabelled: D and U.
        probability_NK, probability_DK, probability_TK: the teacher's.
        truth_N: true classes of U; None if it is another data set than D.
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
        """Return the selections from U, by name of the set."""
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
        """Write a selection to a file of labels: classes, or the teacher's probabilities of all."""
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
        """Write D with the teacher's labels."""
        write_labels(path, self.labelled.train_samples_N, label=self.probability_DK.argmax(1))
        return {"name": self.settings["labelled"]["name"], "labels": str(path)}

    @property
    def wrong_on_labelled(self) -> float:
        return float((self.probability_DK.argmax(1) != self.labelled.train_labels.numpy()).mean())

    def agreement(self, run: RunDir) -> Row:
        """Return the agreement of a network with the teacher on test images: on all, and on those that the teacher gets
        wrong.
        """
        own_T, teachers_T = teacher.softmax_of_run(run, self.labelled, "test").argmax(1), self.probability_TK.argmax(1)
        is_wrong_T = teachers_T != self.labelled.test_labels_N.numpy()
        return agreement(own_T, teachers_T, is_wrong_T)

    def pictures(self) -> tuple[list[Row], dict[str, str]]:
        """Return images selected for two classes, of the smallest set with enough of them: their labels, and PNGs."""
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
    """Return the share of equal classes: of all, and of those that the teacher gets wrong; None if it gets none wrong."""
    is_equal_T = own_T == teachers_T
    repeated = float(is_equal_T[is_wrong_T].mean()) if is_wrong_T.any() else None
    return {"agreement": float(is_equal_T.mean()), "repeated_mistakes": repeated}


def evenly_two(kept: Selection) -> list[tuple[int, list[tuple[int, float]]]]:
    """Return samples selected for two or more classes, with the best two of these and the scores; nearest to a tie first."""
    by_sample: dict[int, list[tuple[int, float]]] = {}
    for sample, label, score in zip(kept.sample.tolist(), kept.label.tolist(), kept.score.tolist(), strict=True):
        by_sample.setdefault(sample, []).append((label, score))
    two = [(s, sorted(found, key=lambda f: -f[1])[:2]) for s, found in by_sample.items() if len(found) > 1]
    return sorted(two, key=lambda item: (-item[1][1][1], item[0]))


def composition(kept: Selection, num_classes: int, truth: Array | None) -> Row:
    """Return the composition of a selection. `truth`: the true class of each label; None if unknown."""
    times = kept.times()
    return {
        "labels": len(kept.sample),
        "images": len(times),
        "several": int((times > 1).sum()),
        "per_class": np.bincount(kept.label, minlength=num_classes).tolist(),
        "wrong": None if truth is None else float((kept.label != truth).mean()),
    }


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    settings, sets = results.settings, {row["set"]: row for row in results.rows["sets"]}
    classes = set_name(settings["K_of_P_tried"], 1)
    distilled = {"alone": (ALONE, ""), "classes": (classes, PRETRAINED), "probabilities": (SOFT, PRETRAINED)}
    updates = {"alone": (ALONE, ""), "pretrained": (own(settings), PRETRAINED), "tuned": (own(settings), TUNED)}
    return {
        "tuned": _of(results, own(settings), TUNED),
        "pretrained": _of(results, own(settings), PRETRAINED),
        "alone": _of(results, ALONE),
        "teacher": _of(results, TEACHER),
        "echo": _of(results, ECHO, TUNED),
        "together": _of(results, TOGETHER, TUNED),
        "by_set": {key(set_name(*pair)): _of(results, set_name(*pair), TUNED) for v in "KP" for pair in tried(settings, v)},
        "weak": {
            when: {f"noise_{100 * row['noise']:g}": _of(results, name, stage) for name, row in sets.items() if "noise" in row}
            for when, stage in {"before": PRETRAINED, "after": TUNED}.items()
        },
        "sets": {key(name): row | _extremes(row) for name, row in sets.items()},
        "distilled": {name: _of(results, *arm) for name, arm in distilled.items()},
        "agreement": {name: _of(results, *arm, "agreement") for name, arm in distilled.items()},
        "repeated": {name: _of(results, *arm, "repeated_mistakes") for name, arm in distilled.items()},
        "updates": {name: _of(results, *arm, "updates").mean for name, arm in updates.items()},
        "wrong_on_D": results.rows["labelled"][0]["wrong"],
        "published_gain": (PUBLISHED_STUDENT - PUBLISHED_ALONE) / 100,
        "cost": cost(results.rows["networks"]),
    }  # fmt: skip


def _extremes(row: Row) -> Row:
    """Return the smallest and the largest class of a set."""
    return {"smallest": min(row["per_class"]), "largest": max(row["per_class"])} if "per_class" in row else {}


def _of(results: Results, arm: str, stage: str = "", column: str = "accuracy") -> Spread:
    return spread(results.rows["networks"], column, arm=arm, stage=stage)


def _share(value: float | None) -> str:
    return shown(value, percent)


def blocks(results: Results) -> dict[str, Block]:
    weak = {"Weak labels or a teacher": _weak(results)} if results.settings["noise_tried"] else {}
    return {
        "The four steps": _steps(results),
        "How many images per class": _sweep(results, "K"),
        "How many classes per image": _sweep(results, "P"),
        "The selected images": _kept(results),
        "Each step left out": Block(_left_out(results)),
        **weak,
        "Why it is a distillation": _distillation(results),
    }


def _steps(results: Results) -> Block:
    settings = results.settings
    student = settings["student"]
    steps = [
        (ALONE, f"{student} on D alone", _of(results, ALONE), f"{PUBLISHED_ALONE}"),
        (TEACHER, f"teacher, {settings['teacher']}, on D alone", _of(results, TEACHER), "–"),
        (PRETRAINED, f"student, {student}, pretrained", _of(results, own(settings), PRETRAINED), "–"),
        (TUNED, f"student, {student}, fine-tuned", _of(results, own(settings), TUNED), f"{PUBLISHED_STUDENT} and {PUBLISHED_HASHTAGS}"),
    ]  # fmt: skip
    places, names = list(range(len(steps))), [step[0] for step in steps]
    series = points("test accuracy", places, [step[2] for step in steps], is_joined=False)
    columns = ["network", "test accuracy", "seeds", "published (ResNet-50), %"]
    return Block(
        listed(columns, [[name, *accuracy.cells(), published] for _, name, accuracy, published in steps]),
        Figure([Lines("", "test accuracy, %", [series], x_ticks=places, x_names=names)]),
    )


def _sweep(results: Results, varied: str) -> Block:
    """Return accuracy against K or P, next to the share of wrong labels or the images of the smallest class."""
    pairs = tried(results.settings, varied)
    names, xs = [set_name(*pair) for pair in pairs], [pair["KP".index(varied)] for pair in pairs]
    sets = {row["set"]: row for row in results.rows["sets"]}
    found = {stage: [_of(results, name, stage) for name in names] for stage in (PRETRAINED, TUNED)}
    wrong = [sets[name]["wrong"] for name in names]
    smallest = [min(sets[name]["per_class"]) for name in names]
    label, y_label, ys = {
        "K": ("K, selected images per class", "wrong labels in the set, %", [w and 100 * w for w in wrong]),
        "P": ("P, classes that an image may belong to", "images of the smallest class", smallest),
    }[varied]
    accuracies = [points(stage, xs, spreads) for stage, spreads in found.items()]
    panels = [
        Lines(label, "test accuracy, %", accuracies, log_x=varied == "K", x_ticks=xs),
        Lines(label, y_label, [Series(y_label, "measured", xs, ys, is_joined=True)], log_x=varied == "K", x_ticks=xs),
    ]
    body = []
    for i, (name, x) in enumerate(zip(names, xs, strict=True)):
        counts = [sets[name]["labels"], sets[name]["images"], smallest[i]]
        updates = _of(results, name, PRETRAINED, "updates").mean
        accuracy = [found[stage][i].percent() for stage in (PRETRAINED, TUNED)]
        cells = [*(f"{n:,}" for n in counts), _share(wrong[i]), f"{updates:,.0f}", *accuracy, str(found[TUNED][i].n)]
        body.append([f"{x:,}", *cells])
    columns = [varied, "labels", "images", "smallest class", "wrong", "updates", PRETRAINED, TUNED, "seeds"]
    return Block(listed(columns, body, 0), Figure(panels if None not in ys else panels[:1]))


def _kept(results: Results) -> Block:
    rows = [row for row in results.rows["sets"] if "several" in row and row["set"] != SOFT]
    pictures = []
    for row in results.rows["pictures"]:
        truth = [f"is: {row['truth']}"] if row["truth"] else []
        lines = [*(f"{name} {score:.2f}" for name, score in row["two"]), *truth]
        pictures.append(Picture("\n".join(lines), results.pictures[row["name"]]))
    columns: dict[str, Any] = {
        "set": "set", "labels": ("labels", "{:,}".format), "images": ("images", "{:,}".format),
        "of two or more classes": lambda row: f"{row['several']:,} ({_share(row['several'] / row['images'])})",
        "smallest class": lambda row: f"{min(row['per_class']):,}",
        "largest class": lambda row: f"{max(row['per_class']):,}",
    }  # fmt: skip
    return Block(table(rows, columns), Figure([Pictures([PictureRow("", pictures)])]) if pictures else None)


def _left_out(results: Results) -> Table:
    ours = own(results.settings)
    full = _of(results, ours, TUNED)
    without = {
        "without fine-tuning": _of(results, ours, PRETRAINED),
        "without U: D alone": _of(results, ALONE),
        "fine-tuned on the teacher's labels of D": _of(results, ECHO, TUNED),
    }
    if results.settings["is_balance_ablated"]:
        without["without balance: best of all classes together"] = _of(results, TOGETHER, TUNED)
    body = [["all four steps", *full.cells(), ""]]
    body += [[name, *accuracy.cells(), f"{accuracy - full:%}"] for name, accuracy in without.items()]
    return Table(["method", "test accuracy", "seeds", "against all four steps"], body, {1, 2})


def _weak(results: Results) -> Block:
    sets = {row["set"]: row for row in results.rows["sets"]}
    weak = [name for name in sets if "noise" in sets[name]]
    groups = {
        "weak labels": {name: f"{percent(sets[name]['noise'], 0)} noise" for name in weak},
        "teacher's labels": {set_name(k, p): f"K = {k:,}" for k, p in tried(results.settings, "K")},
    }
    series = [
        replace(
            points(label, [100 * sets[name]["wrong"] for name in notes], [_of(results, name, TUNED) for name in notes]),
            notes=list(notes.values()),
        )
        for label, notes in groups.items()
    ]
    alone = [Mark("y", 100 * _of(results, ALONE).mean, ALONE)]
    body = []
    for name in [*weak, own(results.settings)]:
        counted = [f"{sets[name]['labels']:,}", _share(sets[name]["wrong"]), _of(results, name, PRETRAINED).percent()]
        body.append([name, *counted, *_of(results, name, TUNED).cells()])
    return Block(
        listed(["labels of U", "labels", "wrong", PRETRAINED, TUNED, "seeds"], body),
        Figure([Lines("wrong labels in pretraining, %", "test accuracy after fine-tuning, %", series, alone)]),
    )


def _distillation(results: Results) -> Block:
    rows, classes = results.rows["networks"], set_name(results.settings["K_of_P_tried"], 1)
    weak = [row["set"] for row in results.rows["sets"] if "noise" in row]
    names = {ALONE: ALONE, classes: "teacher's classes", SOFT: "teacher's probabilities"} | {n: n for n in weak}
    body = []
    for arm, name in names.items():
        stage = "" if arm == ALONE else PRETRAINED
        accuracy, agrees = _of(results, arm, stage), _of(results, arm, stage, "agreement")
        repeated = mean(rows, "repeated_mistakes", arm=arm, stage=stage)
        body.append([name, accuracy.percent(), agrees.percent(), _share(repeated), str(accuracy.n)])
    taught = [row["set"] for row in results.rows["sets"] if "several" in row]
    groups = {"taught by the teacher": (taught, PRETRAINED), "then fine-tuned": (taught, TUNED),
              "taught by weak labels": (weak, PRETRAINED), ALONE: ([ALONE], "")}  # fmt: skip
    series = []
    for label, (arms, stage) in groups.items():
        ours = [row for row in matching(rows, stage=stage) if row["arm"] in arms]
        xs, ys = ([100 * row[column] for row in ours] for column in ("accuracy", "agreement"))
        series += [Series(label, "measured", xs, ys)] if ours else []
    columns = ["taught by", "test accuracy", "agrees with the teacher", "repeats its mistakes", "seeds"]
    return Block(listed(columns, body), Figure([Lines("test accuracy, %", "agreement with the teacher, %", series)]))


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
# The teacher is small-cnn (315,722 parameters here). In 20 epochs on 2,000 images, one seed each, it learned 51 %, resnet14 50
# %, and resnet8 (75,290 parameters) 47 %. It takes half the time of resnet14.
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
# Whole images, a deep teacher, and a pretraining long enough that its result depends on what U can teach.
_EVENING: dict[str, Any] = {
    **_LAPTOP, "teacher": "resnet20", "images": {"image_size": 32}, "labelled": {"name": "cifar10", "samples": 4000},
    "unlabelled": {"name": "cifar10", "skip": 4000, "samples": 40_000}, "K": 2000, "K_tried": [250, 1000, 4000, 8000],
    "K_of_P_tried": 4000, "P_tried": [3, 10], "augmentation": {"crop": 4, "flip": True},
    "supervised": {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 100, "epochs": 60},
    "pretraining": {"recipe": "sgd-one-cycle", "learning_rate": 0.1, "batch": 100, "updates": 4000},
    "fine_tuning": {"recipe": "fine-tuning", "learning_rate": 0.01, "batch": 100, "epochs": 20},
    "seeds": 3, "seeds_of_others": 3,
}  # fmt: skip
# Networks, D, U, K and P are published, and about a billion images seen in pretraining. Our sources lack batches, rates and the
# length of fine-tuning. A job cannot yet name a folder U that lacks the classes of D.
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
    hypothesis="A student is pretrained on the teacher's best images of each class and fine-tuned on true labels. It beats the same "
    "network on those labels alone. With more images per class it gains at first, then wrong labels cost more",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    published="evening",
)
