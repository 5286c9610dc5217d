"""Transfer: pretrained weights fine-tuned, used as a fixed feature extractor under a new last layer, or not used.

The layers of a fixed trunk run over each image once. The last layer is trained on the stored features. J. Yosinski et al., How
transferable are features in deep neural networks?, arXiv 1411.1792; the schedule of three drops is that of the recipes
`fine-tuning` and `feature-extraction`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.data import datasets, published
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, png_base64
from chronograd.job import Data, Job
from chronograd.rundir import RunDir
from chronograd.train.methods import teacher
from chronograd.units import percent, seconds
from chronograd_lab.common.arms import Arm, accuracy_table, curves_of, job_of, mean_curve, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import ends, grouped, matching, shown, spread, unresolved, upper
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, pictures_shown, table
from chronograd_lab.common.weights import PRETRAINING, source_weights
from chronograd_lab.common.written import Block, key

FINE, HEAD, SCRATCH = "fine-tuned", "last layer only", "from scratch"
MODES = (FINE, HEAD, SCRATCH)
COLORS = {FINE: "accent", HEAD: "vermilion", SCRATCH: "grey"}
_BY_RATE = {FINE: "All layers, by rate", HEAD: "The last layer only, by rate"}
# Pictures of each class on the page.
NUM_SAMPLES = 4
# Sources of targets that Chronograd cannot download.
PUBLISHED_AT = {
    "folder:hymenoptera-160": "unpack hymenoptera_data.zip of the PyTorch tutorial on transfer learning "
    "(download.pytorch.org/tutorial/hymenoptera_data.zip) as hymenoptera-160 in the folder that "
    f"{published.FOLDER_VARIABLE} names, so that hymenoptera-160/train and hymenoptera-160/val are there"
}


def arm_name(mode: str, rate: float) -> str:
    return f"{mode} at {rate:g}"


@dataclass(frozen=True)
class Experiment:
    """One way to train one target from one source. `rate` is the peak learning rate."""

    target: str
    source: str
    mode: str
    rate: float

    @property
    def name(self) -> str:
        return f"{self.target} from {self.source}: {self.arm}"

    @property
    def arm(self) -> str:
        return arm_name(self.mode, self.rate)


def experiments(settings: Settings) -> list[Experiment]:
    """Return every target with its sources in every mode at each of its rates; the long runs first."""
    rates = {FINE: "fine_rates", SCRATCH: "scratch_rates", HEAD: "head_rates"}
    return [
        Experiment(target, source, mode, rate)
        for mode, key in rates.items()
        for target, source in pairs(settings)
        for rate in of_source(settings, source)[key]
    ]


def of_source(settings: Settings, source: str) -> Settings:
    """Return the settings of a source, which may change any, such as its epochs and rates."""
    return {**settings, **settings["sources"][source]}


def pairs(settings: Settings) -> list[tuple[str, str]]:
    """Return each target with each of its sources: all, or those that name it in `targets`, with its data there."""
    return [
        (target, source)
        for target in settings["targets"]
        for source in settings["sources"]
        if target in of_source(settings, source)["targets"]
    ]


def data_of(settings: Settings, target: str, source: str) -> Row:
    """Return the data of a target as its source takes it."""
    own = settings["sources"][source].get("targets", {})
    return {**settings["targets"][target], **own.get(target, {})}


def job(settings: Settings, experiment: Experiment, weights: Mapping[str, str]) -> Job:
    """Return the job of an experiment. `weights`: by source, in the form of `network.weights`."""
    own = of_source(settings, experiment.source)
    size = {"image_size": own["image_size"]} if "image_size" in own else {}
    data = {**data_of(settings, experiment.target, experiment.source), "normalisation": own["normalisation"], **size}
    way = "feature-extraction" if experiment.mode == HEAD else "fine-tuning"
    start = None if experiment.mode == SCRATCH else weights[experiment.source]
    rate = experiment.rate
    return job_of(own, own["network"], start, data, recipe=way, learning_rate=rate, channels_last=True)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    weights = {name: source_weights(source["weights"]) for name, source in settings["sources"].items()}
    for target in settings["targets"].values():
        _check_target(Data(**target))
    if PRETRAINING in weights.values():
        (run,) = runner.train({PRETRAINING: pretraining_job(settings)}).values()
        weights = {name: str(run.path) if given == PRETRAINING else given for name, given in weights.items()}
    arms = [
        Arm(e.name, job(settings, e, weights), vars(e), range(of_source(settings, e.source)["seeds"]))
        for e in experiments(settings)
    ]
    trained = train_arms(runner, arms)
    targets = [target_row(*pair, Data(**data_of(settings, *pair))) for pair in pairs(settings)]
    held_out = settings.get("validation_samples", 0)
    rows = {"runs": [one.row(**_validation(one.run, held_out)) for one in trained], "targets": targets}
    return runner.results(settings, rows=rows, curves=curves_of(trained), pictures=samples(settings))


def pretraining_job(settings: Settings) -> Job:
    """Return the job that trains a source without available weights."""
    (network,) = (s["network"] for s in settings["sources"].values() if s["weights"] == PRETRAINING)
    own = settings[PRETRAINING]
    data = {**own["data"], "normalisation": settings["normalisation"]}
    return job_of({}, network, data=data, recipe="fine-tuning", **own["training"])


def _validation(run: RunDir, num_images: int) -> Row:
    """Return the accuracy on training images that the run did not use: those after its own in the shuffle."""
    if not num_images:
        return {}
    data = run.job().data
    held_out = data.model_copy(update={"skip": data.skip + (data.samples or 0), "samples": num_images})
    samples_N, probability_NK = teacher.probabilities(run, held_out)
    images = datasets.load(held_out)
    truth = dict(zip(images.train_samples_N.tolist(), images.train_labels.tolist(), strict=True))
    is_right = [truth[s] == c for s, c in zip(samples_N.tolist(), probability_NK.argmax(1).tolist(), strict=True)]
    return {"validation_accuracy": float(np.mean(is_right))}


def _check_target(data: Data) -> None:
    """Raise InputError with the source of a missing target, before anything runs."""
    try:
        datasets.card(data)
    except InputError as error:
        raise InputError(error.message, PUBLISHED_AT.get(data.name, error.hint)) from None


def target_row(name: str, source: str, data: Data) -> Row:
    """Return the sizes of a target, and the accuracy of always guessing the most frequent class of the test images."""
    images = datasets.load(data)
    counts = images.test_labels_N.bincount()
    card, baseline = images.card, float(counts.max() / counts.sum())
    sizes = {"train_images": card.train_size, "test_images": card.test_size, "baseline": baseline}
    return {"target": name, "source": source, "classes": card.num_classes, "shape": list(card.shape), **sizes}


def samples(settings: Settings) -> dict[str, str]:
    """Return four training images of each of the first two classes of each target, as PNG."""
    shown: dict[str, str] = {}
    for target in settings["targets"].values():
        images = datasets.load(Data(**target))
        labels_N = images.train_labels.numpy()
        for c in range(2):
            chosen = np.flatnonzero(labels_N == c)[:NUM_SAMPLES]
            pixels = images.train.batch(chosen).permute(0, 2, 3, 1).cpu().numpy() * (255 / images.top)
            name = images.card.class_names[c]
            shown |= {f"{name}/{i}": png_base64(np.rint(p).astype(np.uint8)) for i, p in enumerate(pixels)}
    return shown


# -- page ----------------------------------------------------------------------------------------------


def best(rows: Sequence[Row], mode: str) -> Row:
    """Return the best rate of a mode, its accuracy and mean times, and the accuracy `at_RATE` of every rate.

    The rate is chosen on validation images if there are any, else on the test images.
    """
    by_rate = grouped(matching(rows, mode=mode), "rate")
    judged = "validation_accuracy" if "validation_accuracy" in rows[0] else "accuracy"
    rate = max(sorted(by_rate), key=lambda r: spread(by_rate[r], judged).mean)
    own = by_rate[rate]
    return {
        "mode": mode, "rate": rate, "accuracy": spread(own),
        **{name: spread(own, name).mean for name in ("epoch_time_s", "seconds", "trained_params")},
        "step_s": float(np.mean([row["epoch_time_s"] * row["epochs"] / row["updates"] for row in own])),
        **{key(f"at_{r:g}"): spread(by_rate[r]) for r in by_rate},
    }  # fmt: skip


def cases(results: Results) -> list[Row]:
    """Return the sizes and the best rates of every target and source; `scratch` is None without such runs."""
    found = []
    for sizes in results.rows["targets"]:
        of_target = grouped(matching(results.rows["runs"], target=sizes["target"]), "source")
        for source, own in of_target.items():
            if source != sizes.get("source", source):
                continue
            fine, head = best(own, FINE), best(own, HEAD)
            scratch = best(own, SCRATCH) if matching(own, mode=SCRATCH) else None
            better = max(fine["accuracy"], head["accuracy"], key=lambda accuracy: accuracy.mean)
            found.append({
                **sizes, "name": f"{sizes['target']} from {source}", "source": source, "fine": fine, "head": head, "scratch": scratch,
                "rows": sorted(own, key=lambda row: (MODES.index(row["mode"]), row["rate"])),
                "gain": fine["accuracy"] - head["accuracy"], "worth": better - scratch["accuracy"] if scratch else None,
                "test_error": standard_error(better.mean, sizes["test_images"]), **times(own),
            })  # fmt: skip
    return found


def times(rows: Sequence[Row]) -> Row:
    """Return the shortest and longest epoch of the runs that train all layers, the longest one of the last layer alone, and the
    least ratios of both. Other work may slow any run, so the least ratio is the one that they show.
    """
    whole, last = ([row for row in rows if (row["mode"] == HEAD) == is_last] for is_last in (False, True))
    epoch_s, last_epoch_s = ends(row["epoch_time_s"] for row in whole), max(row["epoch_time_s"] for row in last)
    faster = min(row["seconds"] for row in whole) / max(row["seconds"] for row in last)
    return {
        "epoch_s": epoch_s, "last_epoch_s": last_epoch_s, "faster_epoch": epoch_s["least"] / last_epoch_s, "faster": faster,
    }  # fmt: skip


def standard_error(accuracy: float, num_images: int) -> float:
    """Return the standard error of an accuracy on test images, in percentage points.

    >>> f"{standard_error(0.9, 900):.2f}"
    '1.00'
    """
    return 100 * math.sqrt(accuracy * (1 - accuracy) / num_images)


def values(results: Results) -> dict[str, Any]:
    """Return the first target and source, accuracies that its test images cannot resolve, and all layers at the lowest rate.

    `others`: the other targets and sources by name.
    """
    case, *others = cases(results)
    accuracy = case["fine"]["accuracy"].mean
    lowest = _at_lowest_rate(results, case)
    channels, side, _ = case["shape"]
    (first_epochs, first), highest = lowest[0], max(y for _, y in lowest)
    return {
        **case,
        "others": {key(other["name"]): other for other in others},
        "channels": channels,
        "side": side,
        "unresolved": unresolved(accuracy, case["test_images"]),
        "lowest": {"first": first, "first_epochs": first_epochs, "near": next(x for x, y in lowest if y > highest - 1)},
    }


def blocks(results: Results) -> dict[str, Block]:
    found = cases(results)
    shown = {
        "Which way at which rate": Block(_ways(found), Figure([_rates(case) for case in found])),
        **{title: _by_rate(results, found, mode) for mode, title in _BY_RATE.items()},
        "All layers at the lowest rate": Block(
            listed(
                ["", "learning rate", "epochs", "mean test accuracy, %"],
                [
                    [case["name"], f"{lowest_rate(case):g}", f"{x:g}", f"{y:.2f}"]
                    for case in found
                    for x, y in _at_lowest_rate(results, case)
                ],
            )
        ),
    }
    if results.pictures:
        shown["The target"] = Block(figure=pictures_shown(results))
    return shown | {
        **{upper(case["name"]): Block(_arms(case)) for case in found[:4]},
        "Time": Block(_times(found), Figure([_times_shown(results, case) for case in found])),
        "Why": Block(_reasons(found)),
    }


def _arm(best: Row) -> str:
    return arm_name(best["mode"], best["rate"])


def _ways(found: Sequence[Row]) -> Table:
    body = []
    for case in found:
        bests = [case[name] for name in ("fine", "head", "scratch")]
        highest = max(filter(None, bests), key=lambda best: best["accuracy"].mean)
        body.append([case["name"], *(best["accuracy"].percent() if best else "–" for best in bests), _arm(highest)])
    return Table(["", *MODES, "highest mean"], body, {1, 2, 3})


def _rates(case: Row) -> Lines:
    series = []
    for mode in MODES:
        if not (by_rate := grouped(matching(case["rows"], mode=mode), "rate")):
            continue
        series.append(points(mode, list(by_rate), list(map(spread, by_rate.values())), COLORS[mode]))
    ticks = sorted({float(x) for s in series for x in s.x})
    mark = Mark("y", 100 * case["baseline"], "largest class")
    return Lines(f"learning rate, {case['name']}", "test accuracy, %", series, [mark], log_x=True, x_ticks=ticks)


def _by_rate(results: Results, found: Sequence[Row], mode: str) -> Block:
    """Return one way of training at all of its rates: accuracy against epochs."""
    panels, body = [], []
    for case in found:
        by_rate = grouped(matching(case["rows"], mode=mode), "rate")
        series = [
            mean_curve(results.curves, f"{case['name']}: {arm_name(mode, rate)}", "epoch", f"rate {rate:g}")
            for rate in by_rate
        ]
        panels.append(Lines("epochs", "test accuracy, %", series, title=case["name"]))
        body += [[case["name"], f"{rate:g}", *spread(rows).cells()] for rate, rows in by_rate.items()]
    return Block(listed(["", "learning rate", "test accuracy", "seeds"], body), Figure(panels))


def lowest_rate(case: Row) -> float:
    return min(float(row["rate"]) for row in matching(case["rows"], mode=FINE))


def _at_lowest_rate(results: Results, case: Row) -> list[tuple[float, float]]:
    """Return epochs and mean test accuracy of all layers at their lowest rate, which is the first one of an exercise."""
    series = mean_curve(results.curves, f"{case['name']}: {arm_name(FINE, lowest_rate(case))}", "epoch")
    return [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]


def _arms(case: Row) -> Table:
    rows = [{**row, "arm": arm_name(row["mode"], row["rate"])} for row in case["rows"]]
    return accuracy_table(rows, {"": "arm"}, {
        "trained parameters": ("trained_params", "{:,.0f}".format), "time per epoch": ("epoch_time_s", seconds),
        "training time": ("seconds", seconds),
    })  # fmt: skip


def _times(found: Sequence[Row]) -> Table:
    return table(found, {
        "": "name", "all layers, shortest epoch": lambda case: seconds(case["epoch_s"]["least"]),
        "last layer, longest epoch": ("last_epoch_s", seconds),
        "epoch, at least times as fast": ("faster_epoch", "{:,.0f}".format),
        "whole training, at least times as fast": ("faster", "{:,.1f}".format),
    })  # fmt: skip


def _times_shown(results: Results, case: Row) -> Lines:
    series = [
        mean_curve(results.curves, f"{case['name']}: {_arm(b)}", "seconds", b["mode"], COLORS[b["mode"]])
        for b in (case["fine"], case["head"], case["scratch"])
        if b
    ]
    return Lines(f"training time, s, {case['name']}", "test accuracy, %", series, log_x=True)


def _reasons(found: Sequence[Row]) -> Table:
    return table(found, {
        "": "name", "images per class": lambda case: f"{case['train_images'] / case['classes']:,.0f}",
        "largest class": ("baseline", percent), "fixed features": lambda case: percent(case["head"]["accuracy"].mean),
        "fine-tuning adds": ("gain", "{:%}".format), "pretraining adds": lambda case: shown(case["worth"], "{:%}".format),
    })  # fmt: skip


# Source and target have the same ten classes, so the head is used, too.
_SMOKE = {
    "targets": {"digits": {"name": "digits", "skip": 900, "samples": 200}},
    "sources": {"other digits": {"network": "resnet8", "weights": PRETRAINING}},
    PRETRAINING: {
        "data": {"name": "digits", "samples": 900},
        "training": {"epochs": 3, "batch": 50, "learning_rate": 0.05},
    },
    "normalisation": "unit", "fine_rates": [0.01], "head_rates": [0.1], "scratch_rates": [0.05], "validation_samples": 300,
    "epochs": 3, "batch": 25, "evaluate_every": 1, "seeds": 2,
}  # fmt: skip
_LAPTOP = {
    "targets": {"ants and bees": {"name": "folder:hymenoptera-160"}},
    "sources": {
        "CIFAR-10": {"network": "resnet20", "weights": "resnet20-12fca82f.th", "image_size": 32},
        "ImageNet": {
            "network": "mobilenet-v1-0.25", "weights": "mobilenetV1X0.25_pretrain.tar", "image_size": 128,
        },
    },
    "normalisation": "imagenet", "fine_rates": [0.001, 0.01, 0.1], "head_rates": [0.001, 0.01, 0.1, 1.0],
    "scratch_rates": [0.1], "epochs": 20, "batch": 32, "evaluate_every": 2, "seeds": 3,
}  # fmt: skip
# A target far from the source. It has enough test images that choosing a rate by them adds at most a few tenths of a percentage
# point.
_EVENING = {
    **_LAPTOP,
    "targets": {
        "clothes": {"name": "fashion-mnist", "samples": 2000}, "photographs": {"name": "cifar10", "samples": 2000},
        "ants and bees": {"name": "folder:hymenoptera-160"},
    },
    "sources": {
        "CIFAR-10": {"network": "resnet20", "weights": "resnet20-12fca82f.th", "image_size": 32, "targets": {"clothes": {}}},
        "ImageNet": {
            "network": "timm:tf_efficientnet_lite0", "weights": "efficientnet-lite0-57934424.pth", "image_size": 128,
            "normalisation": "signed", "fine_rates": [0.01], "scratch_rates": [], "epochs": 10, "evaluate_every": 2, "seeds": 2,
            "targets": {"clothes": {"test_samples": 2000}, "photographs": {"test_samples": 2000}, "ants and bees": {}},
        },
    },
    "head_rates": [0.001, 0.01, 0.1, 1.0], "scratch_rates": [0.01, 0.1],
    "epochs": 40, "batch": 64, "evaluate_every": 5,
}  # fmt: skip
_PAPER = {
    **_LAPTOP,
    "targets": {"flowers": {"name": "decathlon:vgg-flowers"}, "textures": {"name": "decathlon:dtd"}},
    "sources": {"ImageNet": {"network": "torchvision:resnet50", "weights": "torchvision", "image_size": 224}},
    "epochs": 200, "batch": 64, "evaluate_every": 10,
}  # fmt: skip

STUDY = Study(
    name="transfer",
    question="Pretrained weights: fine-tune all of them, or train the last layer only?",
    hypothesis="Fine-tuning at a low rate is more accurate, above all if the source is far from the target. Training the last "
    "layer only is much faster, and enough if they are near or images are few",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    published="evening",
    values=values,
    blocks=blocks,
)
