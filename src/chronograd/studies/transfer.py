"""Transfer: pretrained weights fine-tuned, or kept as a fixed feature extractor under a new last layer, or not used.

A fixed trunk is run over each image once; what is trained is the last layer on the features that were kept.
J. Yosinski et al., How transferable are features in deep neural networks?, arXiv 1411.1792; the schedule of three drops
is that of the recipes `fine-tuning` and `feature-extraction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data import datasets
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.job import Data, Job, from_dict
from chronograd.study.lab import Lab, Spread, curve, outcome, over_seeds, split_seed, spread
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import distinct, mean_curve, points, points_apart, seeds, signed, study_page
from chronograd.study.weights import PRETRAINING, source_weights
from chronograd.units import seconds

FINE, HEAD, SCRATCH = "fine-tuned", "last layer only", "from scratch"
MODES = (FINE, HEAD, SCRATCH)
COLORS = {FINE: "accent", HEAD: "vermilion", SCRATCH: "grey"}
# Points of accuracy that a page cannot tell from none.
TIE = 0.05
# Where a target comes from that no data set of ours downloads.
PUBLISHED_AT = {
    "folder:hymenoptera-160": "unpack hymenoptera_data.zip of the PyTorch tutorial on transfer learning "
    "(download.pytorch.org/tutorial/hymenoptera_data.zip) as hymenoptera-160 in the folder that "
    f"{datasets.FOLDER_VARIABLE} names, so that hymenoptera-160/train and hymenoptera-160/val are there"
}
# What is known of a target and its sources beforehand.
KNOWN = {
    "ants and bees": "ImageNet has the classes ant and bee, and the tutorial that published these photographs calls them "
    "a small subset of it; CIFAR-10 has no insects."
}


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
        return f"{self.mode} at {self.rate:g}"


def experiments(settings: Settings) -> list[Experiment]:
    """Every target with every source in every mode at each of its rates; the long runs first."""
    rates = {FINE: settings["fine_rates"], SCRATCH: settings["scratch_rates"], HEAD: settings["head_rates"]}
    return [
        Experiment(target, source, mode, rate)
        for mode, own in rates.items()
        for target in settings["targets"]
        for source in settings["sources"]
        for rate in own
    ]


def job(settings: Settings, experiment: Experiment, weights: Mapping[str, str]) -> Job:
    """The job of an experiment. `weights`: by source, as `network.weights` takes them."""
    source = settings["sources"][experiment.source]
    network = {"name": source["network"]}
    if experiment.mode != SCRATCH:
        network["weights"] = weights[experiment.source]
    training = {
        "recipe": "feature-extraction" if experiment.mode == HEAD else "fine-tuning",
        "learning_rate": experiment.rate,
        "epochs": settings["epochs"],
        "batch": settings["batch"],
        "evaluate_every": settings["evaluate_every"],
        "checkpoint_every": settings["epochs"],
        "channels_last": True,
    }
    return from_dict({"network": network, "data": _data(settings, experiment), "training": training})


def _data(settings: Settings, experiment: Experiment) -> dict[str, Any]:
    data = {**settings["targets"][experiment.target], "normalisation": settings["normalisation"]}
    size = settings["sources"][experiment.source].get("image_size")
    return data if size is None else {**data, "image_size": size}


def conduct(lab: Lab, settings: Settings) -> Results:
    weights = {name: source_weights(source["weights"]) for name, source in settings["sources"].items()}
    for target in settings["targets"].values():
        _check_target(Data(**target))
    if PRETRAINING in weights.values():
        (run,) = lab.train({PRETRAINING: pretraining_job(settings)}).values()
        weights = {name: str(run.path) if given == PRETRAINING else given for name, given in weights.items()}
    compared = {e.name: e for e in experiments(settings)}
    jobs = {name: job(settings, e, weights) for name, e in compared.items()}
    rows, curves = [], {}
    for name, run in lab.train(over_seeds(jobs, settings["seeds"])).items():
        experiment, seed = split_seed(name)
        e = compared[experiment]
        rows.append(
            {"target": e.target, "source": e.source, "mode": e.mode, "rate": e.rate, "seed": seed, **outcome(run)}
        )
        curves[name] = curve(run.record())
    targets = [target_row(name, Data(**target)) for name, target in settings["targets"].items()]
    return lab.results(settings, rows={"runs": rows, "targets": targets}, curves=curves)


def pretraining_job(settings: Settings) -> Job:
    """Trains the source that has no weights from outside."""
    (network,) = (s["network"] for s in settings["sources"].values() if s["weights"] == PRETRAINING)
    own = settings[PRETRAINING]
    data = {**own["data"], "normalisation": settings["normalisation"]}
    training = {"recipe": "fine-tuning", "checkpoint_every": own["training"]["epochs"], **own["training"]}
    return from_dict({"network": {"name": network}, "data": data, "training": training})


def _check_target(data: Data) -> None:
    """Raises InputError that says where a target comes from, before anything is run."""
    try:
        datasets.card(data)
    except InputError as error:
        raise InputError(error.message, PUBLISHED_AT.get(data.name, error.hint)) from None


def target_row(name: str, data: Data) -> Row:
    """Sizes of a target, and the accuracy of always naming the class that has most test images."""
    found = datasets.load(data)
    counts = found.test_labels_N.bincount()
    return {
        "target": name,
        "classes": found.card.num_classes,
        "train_images": found.card.train_size,
        "test_images": found.card.test_size,
        "baseline": float(counts.max() / counts.sum()),
    }


# -- what the runs say ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Best:
    """The best learning rate of a mode, by mean test accuracy, and what its runs took."""

    mode: str
    rate: float
    accuracy: Spread
    epoch_time_s: float
    seconds: float
    trained_params: float

    @property
    def arm(self) -> str:
        return f"{self.mode} at {self.rate:g}"


@dataclass(frozen=True)
class Case:
    """One target from one source: the best of each mode, and the target's sizes."""

    target: str
    source: str
    fine: Best
    head: Best
    scratch: Best
    train_images: int
    test_images: int
    classes: int
    baseline: float

    @property
    def name(self) -> str:
        return f"{self.target} from {self.source}"

    @property
    def ranked(self) -> list[Best]:
        return sorted((self.fine, self.head, self.scratch), key=lambda b: -b.accuracy.mean)

    @property
    def leader(self) -> str:
        """Which mode wins, in words."""
        first, second, _ = self.ranked
        is_tie = 100 * (first.accuracy.mean - second.accuracy.mean) < TIE
        return f"{first.mode} and {second.mode} are level" if is_tie else f"{first.mode} wins"

    @property
    def gain(self) -> float:
        """Points that fine-tuning adds to the fixed features."""
        return 100 * (self.fine.accuracy.mean - self.head.accuracy.mean)

    @property
    def worth(self) -> float:
        """Points that the better use of the pretrained weights adds to training from scratch."""
        return 100 * (max(self.fine.accuracy.mean, self.head.accuracy.mean) - self.scratch.accuracy.mean)

    @property
    def test_error(self) -> float:
        """Standard error in points of the winner's accuracy that so many test images leave, equal for all seeds."""
        p = self.ranked[0].accuracy.mean
        return float(100 * (p * (1 - p) / self.test_images) ** 0.5)


def best(rows: Sequence[Row], mode: str) -> Best:
    own = [row for row in rows if row["mode"] == mode]
    rate = max(_rates(own, mode), key=lambda r: spread(own, rate=r).mean)
    took = {key: spread(own, key, rate=rate).mean for key in ("epoch_time_s", "seconds", "trained_params")}
    return Best(mode, rate, spread(own, rate=rate), **took)


def cases(results: Results) -> list[Case]:
    found = []
    for target in results.rows["targets"]:
        of_target = [row for row in results.rows["runs"] if row["target"] == target["target"]]
        sizes = {key: target[key] for key in ("train_images", "test_images", "classes", "baseline")}
        for source in distinct(of_target, "source"):
            rows = [row for row in of_target if row["source"] == source]
            fine, head, scratch = (best(rows, mode) for mode in MODES)
            found.append(Case(target["target"], source, fine, head, scratch, **sizes))
    return found


def _rates(rows: Sequence[Row], mode: str) -> list[float]:
    return sorted({float(row["rate"]) for row in rows if row["mode"] == mode})


def winner(case: Case) -> str:
    """Which mode wins, and whether the seeds tell it from the next."""
    first, second, _ = case.ranked
    if 100 * (first.accuracy.mean - second.accuracy.mean) < TIE:
        return f"{_upper(first.arm)} and {second.arm} are level at {first.accuracy.percent()}."
    return (
        f"{_upper(first.arm)} wins with {first.accuracy.percent()}; against {second.arm}: "
        f"{points_apart(first.accuracy, second.accuracy)}."
    )


def reason(found: Sequence[Case]) -> str:
    """What the fixed features say about the distance of source and target, and whether fine-tuning follows it."""
    near, far = (pick(found, key=lambda c: c.head.accuracy.mean) for pick in (max, min))
    if near is far:
        share = (
            f"{100 * near.head.accuracy.mean:.1f} % of the test images, the largest class {100 * near.baseline:.1f} %"
        )
        follows = "are all that is needed" if near.gain <= 0 else f"leave {near.gain:.1f} points to fine-tuning"
        return (
            f"The fixed features of {near.source} get {share}: they {follows}. Pretraining is worth {signed(near.worth)} "
            f"points over {near.train_images:,} images alone."
        )
    said = (
        f"Fixed features get {100 * near.head.accuracy.mean:.1f} % in {near.name} and "
        f"{100 * far.head.accuracy.mean:.1f} % in {far.name}, so the first are nearer. Fine-tuning adds "
        f"{signed(near.gain)} and {signed(far.gain)} points: "
    )
    if far.gain > max(near.gain, 0):
        said += "it pays more where the source is far."
    elif max(near.gain, far.gain) <= 0:
        said += "it pays in neither."
    else:
        said += "the distance does not explain where it pays."
    return (
        f"{said} Pretraining is worth {signed(near.worth)} and {signed(far.worth)} points over training from scratch."
    )


def speed(case: Case) -> str:
    """How much faster a kept trunk is, and what it costs."""
    epoch = case.fine.epoch_time_s / case.head.epoch_time_s
    whole = case.fine.seconds / case.head.seconds
    cost = f"costs {case.gain:.1f} points" if case.gain >= TIE else f"gains {-case.gain:.1f} points"
    if abs(case.gain) < TIE:
        cost = "costs nothing"
    return (
        f"{_upper(case.name)}: an epoch on kept features is {epoch:,.0f} times as fast, the whole training with its one "
        f"pass of the trunk {whole:,.1f} times; that {cost}."
    )


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


# -- the page ------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    found = cases(results)
    sections = [_rates_section(results, found), *(_case_section(results, case) for case in found[:3])]
    sections += [_time_section(results, found), _reason_section(results, found)]
    case = max(found, key=lambda c: c.ranked[0].accuracy.mean)
    first = case.ranked[0]
    highlights = [
        Highlight("best", first.accuracy.percent(), f"{case.name}, {first.arm}, {seeds(first.accuracy.n)}"),
        Highlight(
            "an epoch on kept features",
            f"{case.fine.epoch_time_s / case.head.epoch_time_s:,.0f} × as fast",
            f"{seconds(case.head.epoch_time_s)} against {seconds(case.fine.epoch_time_s)}",
        ),
    ]
    return study_page(STUDY, results, sections, highlights)


def _rows(results: Results, case: Case) -> list[Row]:
    return [r for r in results.rows["runs"] if (r["target"], r["source"]) == (case.target, case.source)]


def _rates_section(results: Results, found: Sequence[Case]) -> Section:
    panels = []
    for case in found:
        series = []
        for mode in MODES:
            rows = [row for row in _rows(results, case) if row["mode"] == mode]
            rates = _rates(rows, mode)
            series.append(points(mode, rates, [spread(rows, rate=rate) for rate in rates], COLORS[mode]))
        ticks = sorted({float(x) for s in series for x in s.x})
        mark = Mark("y", 100 * case.baseline, "largest class")
        label = f"learning rate, {case.name}"
        panels.append(Lines(label, "test accuracy, %", series, [mark], log_x=True, x_ticks=ticks))
    body = [[c.name, *(b.accuracy.percent() for b in (c.fine, c.head, c.scratch)), c.ranked[0].arm] for c in found]
    errors = ", ".join(f"{c.test_images:,} test images: ±{c.test_error:.1f} points" for c in found[:1])
    leaders = {case.name: case.leader for case in found}
    said = "; ".join(
        f"{leader} in {' and in '.join(name for name, own in leaders.items() if own == leader)}"
        for leader in dict.fromkeys(leaders.values())
    )
    return Section(
        "Which way at which rate",
        f"Each at its best learning rate, {said}.",
        intro="Each mode is shown at its best rate, chosen on the test images, as there is no third split. What the "
        f"number of test images alone leaves open, the same for all seeds, is one standard error: {errors}.",
        figure=Figure(panels),
        table=Table(["", *MODES, "winner"], body, {1, 2, 3}),
    )


def _case_section(results: Results, case: Case) -> Section:
    rows, body = _rows(results, case), []
    for mode in MODES:
        for rate in _rates(rows, mode):
            own: dict[str, Any] = {"mode": mode, "rate": rate}
            accuracy = spread(rows, **own)
            epoch, whole, params = (
                spread(rows, key, **own).mean for key in ("epoch_time_s", "seconds", "trained_params")
            )
            body.append(
                [
                    f"{mode} at {rate:g}",
                    accuracy.percent(),
                    str(accuracy.n),
                    f"{params:,.0f}",
                    seconds(epoch),
                    seconds(whole),
                ]
            )
    columns = ["", "test accuracy", "seeds", "trained parameters", "time per epoch", "training time"]
    source = results.settings["sources"][case.source]
    size = f" at {source['image_size']}×{source['image_size']}" if "image_size" in source else ""
    return Section(
        _upper(case.name),
        winner(case),
        intro=f"{source['network']}{size}; {case.train_images:,} training and {case.test_images:,} test images of "
        f"{case.classes} classes. The training time of a fixed trunk has its one pass over the images in it.",
        table=Table(columns, body, set(range(1, len(columns)))),
    )


def _time_section(results: Results, found: Sequence[Case]) -> Section:
    panels, body = [], []
    for case in found:
        series = []
        for b in (case.fine, case.head, case.scratch):
            experiment = Experiment(case.target, case.source, b.mode, b.rate)
            drawn = mean_curve(results.curves, experiment.name, "seconds")
            series.append(
                Series(b.mode, "measured", drawn.x, drawn.y, drawn.low, drawn.high, COLORS[b.mode], is_joined=True)
            )
        panels.append(Lines(f"training time, s, {case.name}", "test accuracy, %", series, log_x=True))
        ratio = case.fine.epoch_time_s / case.head.epoch_time_s
        body.append(
            [
                case.name,
                seconds(case.fine.epoch_time_s),
                seconds(case.head.epoch_time_s),
                f"{ratio:,.0f}",
                f"{case.fine.seconds / case.head.seconds:,.1f}",
                signed(-case.gain),
            ]
        )
    columns = ["", "fine-tuned, per epoch", "last layer, per epoch", "times as fast", "whole, times as fast", "points"]
    return Section(
        "Time",
        " ".join(map(speed, found)),
        figure=Figure(panels),
        table=Table(columns, body, set(range(1, len(columns)))),
    )


def _reason_section(results: Results, found: Sequence[Case]) -> Section:
    body = [
        [
            c.name,
            f"{c.train_images / c.classes:,.0f}",
            f"{100 * c.baseline:.1f} %",
            f"{100 * c.head.accuracy.mean:.1f} %",
            signed(c.gain),
            signed(c.worth),
        ]
        for c in found
    ]
    columns = ["", "images per class", "largest class", "fixed features", "fine-tuning adds", "pretraining adds"]
    intro = "How well a last layer does on fixed features measures how near the source is. "
    if len(results.settings["sources"]) > 1:
        intro += "The sources differ in network and image size too, so the distance is that of the whole. "
    intro += " ".join(KNOWN[target] for target in dict.fromkeys(c.target for c in found) if target in KNOWN)
    return Section("Why", reason(found), intro=intro.strip(), table=Table(columns, body, set(range(1, len(columns)))))


# Source and target have the same ten classes, so the head comes along.
_SMOKE = {
    "targets": {"digits": {"name": "digits", "skip": 900, "samples": 200}},
    "sources": {"other digits": {"network": "resnet8", "weights": PRETRAINING}},
    PRETRAINING: {
        "data": {"name": "digits", "samples": 900},
        "training": {"epochs": 3, "batch": 50, "learning_rate": 0.05},
    },
    "normalisation": "unit", "fine_rates": [0.01], "head_rates": [0.1], "scratch_rates": [0.05],
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
    "normalisation": "imagenet", "fine_rates": [0.001, 0.01, 0.1], "head_rates": [0.01, 0.1, 1.0],
    "scratch_rates": [0.1], "epochs": 20, "batch": 32, "evaluate_every": 2, "seeds": 3,
}  # fmt: skip
_PAPER = {
    "targets": {"flowers": {"name": "decathlon:vgg-flowers"}, "textures": {"name": "decathlon:dtd"}},
    "sources": {"ImageNet": {"network": "torchvision:resnet50", "weights": "torchvision", "image_size": 224}},
    "normalisation": "imagenet", "fine_rates": [0.001, 0.01, 0.1], "head_rates": [0.01, 0.1, 1.0],
    "scratch_rates": [0.1], "epochs": 200, "batch": 64, "evaluate_every": 10, "seeds": 3,
}  # fmt: skip

STUDY = Study(
    name="transfer",
    question="Pretrained weights: fine-tune all of them, or keep them and train the last layer only?",
    hypothesis="Fine-tuning at a low rate is more accurate, the more so the farther the source is from the target; a "
    "fixed feature extractor is much faster and enough where they are near or images are few",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)
