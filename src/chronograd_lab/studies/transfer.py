"""Transfer: pretrained weights fine-tuned, or kept as a fixed feature extractor under a new last layer, or not used.

A fixed trunk is run over each image once; what is trained is the last layer on the features that were kept.
J. Yosinski et al., How transferable are features in deep neural networks?, arXiv 1411.1792; the schedule of three drops
is that of the recipes `fine-tuning` and `feature-extraction`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data import datasets
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Mark, Picture, PictureRow, Pictures
from chronograd.job import Data, Job
from chronograd.recipes import recipe
from chronograd.rundir import RunDir
from chronograd.train.methods import teacher
from chronograd.units import seconds
from chronograd.words import how_many
from chronograd.words import listed as listed_words
from chronograd_lab.common.arms import Arm, accuracy_table, curves_of, job_of, mean_curve, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import (
    Spread,
    difference,
    grouped,
    matching,
    points_apart,
    seeds,
    signed,
    spread,
    unresolved,
    upper,
)
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.weights import PRETRAINING, source_weights

FINE, HEAD, SCRATCH = "fine-tuned", "last layer only", "from scratch"
MODES = (FINE, HEAD, SCRATCH)
COLORS = {FINE: "accent", HEAD: "vermilion", SCRATCH: "grey"}
_BY_RATE = {FINE: "All layers, by rate", HEAD: "The last layer only, by rate"}
# Points of accuracy that a page cannot tell from none.
TIE = 0.05
# The arithmetic of a layer with fewer takes microseconds on any device; a step of the loop takes at least a millisecond.
FEW_PARAMETERS = 100_000
# Of each class that is shown.
NUM_SAMPLES = 4
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
    size = {"image_size": source["image_size"]} if "image_size" in source else {}
    data = {**settings["targets"][experiment.target], "normalisation": settings["normalisation"], **size}
    way = "feature-extraction" if experiment.mode == HEAD else "fine-tuning"
    start = None if experiment.mode == SCRATCH else weights[experiment.source]
    rate = experiment.rate
    return job_of(settings, source["network"], start, data, recipe=way, learning_rate=rate, channels_last=True)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    weights = {name: source_weights(source["weights"]) for name, source in settings["sources"].items()}
    for target in settings["targets"].values():
        _check_target(Data(**target))
    if PRETRAINING in weights.values():
        (run,) = runner.train({PRETRAINING: pretraining_job(settings)}).values()
        weights = {name: str(run.path) if given == PRETRAINING else given for name, given in weights.items()}
    arms = [Arm(e.name, job(settings, e, weights), vars(e), range(settings["seeds"])) for e in experiments(settings)]
    trained = train_arms(runner, arms)
    targets = [target_row(name, Data(**target)) for name, target in settings["targets"].items()]
    held_out = settings.get("validation_samples", 0)
    rows = {"runs": [one.row(**_validation(one.run, held_out)) for one in trained], "targets": targets}
    return runner.results(settings, rows=rows, curves=curves_of(trained), pictures=samples(settings))


def pretraining_job(settings: Settings) -> Job:
    """Trains the source that has no weights from outside."""
    (network,) = (s["network"] for s in settings["sources"].values() if s["weights"] == PRETRAINING)
    own = settings[PRETRAINING]
    data = {**own["data"], "normalisation": settings["normalisation"]}
    return job_of({}, network, data=data, recipe="fine-tuning", **own["training"])


def _validation(run: RunDir, num_images: int) -> Row:
    """Accuracy on training images that the run was not trained on, those that follow its own in the shuffle."""
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
    """Raises InputError that says where a target comes from, before anything is run."""
    try:
        datasets.card(data)
    except InputError as error:
        raise InputError(error.message, PUBLISHED_AT.get(data.name, error.hint)) from None


def target_row(name: str, data: Data) -> Row:
    """Sizes of a target, and the accuracy of always naming the class that has most test images."""
    images = datasets.load(data)
    counts = images.test_labels_N.bincount()
    card, baseline = images.card, float(counts.max() / counts.sum())
    sizes = {"train_images": card.train_size, "test_images": card.test_size, "baseline": baseline}
    return {"target": name, "classes": card.num_classes, "shape": list(card.shape), **sizes}


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
    step_s: float = 0.0

    @property
    def arm(self) -> str:
        return arm_name(self.mode, self.rate)


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

    def of(self, mode: str) -> Best:
        return next(own for own in (self.fine, self.head, self.scratch) if own.mode == mode)

    @property
    def ranked(self) -> list[Best]:
        return sorted((self.fine, self.head, self.scratch), key=lambda b: -b.accuracy.mean)

    @property
    def is_tie(self) -> bool:
        first, second, _ = self.ranked
        return 100 * (first.accuracy.mean - second.accuracy.mean) < TIE

    @property
    def is_told(self) -> bool:
        """Whether seeds and test images bear it that the first is ahead of the second."""
        first, second, _ = self.ranked
        apart = difference(first.accuracy, second.accuracy)
        return apart.is_seen and 100 * apart.mean > self.unresolved

    @property
    def leader(self) -> str:
        """Which mode wins, in words."""
        first, second, _ = self.ranked
        if self.is_told:
            return f"{first.mode} wins"
        return f"{first.mode} and {second.mode} are {'level' if self.is_tie else 'not significantly different'}"

    @property
    def gain(self) -> float:
        """Points that fine-tuning adds to the fixed features."""
        return 100 * (self.fine.accuracy.mean - self.head.accuracy.mean)

    @property
    def worth(self) -> float:
        """Points that the better use of the pretrained weights adds to training from scratch."""
        return 100 * (max(self.fine.accuracy.mean, self.head.accuracy.mean) - self.scratch.accuracy.mean)

    @property
    def faster_epoch(self) -> float:
        """How many times as fast an epoch on kept features is as one of fine-tuning; `faster`: the whole training."""
        return self.fine.epoch_time_s / self.head.epoch_time_s

    @property
    def faster(self) -> float:
        return self.fine.seconds / self.head.seconds

    @property
    def test_error(self) -> float:
        """Standard error in points of the winner's accuracy that so many test images leave, equal for all seeds."""
        p = self.ranked[0].accuracy.mean
        return float(100 * (p * (1 - p) / self.test_images) ** 0.5)

    @property
    def unresolved(self) -> float:
        """Percentage points between two modes that this number of test images cannot resolve."""
        return 100 * unresolved(self.ranked[0].accuracy.mean, self.test_images)


def best(rows: Sequence[Row], mode: str) -> Best:
    """By validation images where some were held out, else by the test images."""
    by_rate = grouped(matching(rows, mode=mode), "rate")
    judged = "validation_accuracy" if "validation_accuracy" in rows[0] else "accuracy"
    rate = max(sorted(by_rate), key=lambda r: spread(by_rate[r], judged).mean)
    took = {key: spread(by_rate[rate], key).mean for key in ("epoch_time_s", "seconds", "trained_params")}
    step_s = float(
        np.mean(
            [row["epoch_time_s"] * row["epochs"] / row["updates"] for row in by_rate[rate] if "updates" in row] or [0.0]
        )
    )
    return Best(mode, rate, spread(by_rate[rate]), **took, step_s=step_s)


def cases(results: Results) -> list[Case]:
    found = []
    for sizes in results.rows["targets"]:
        for source, own in grouped(matching(results.rows["runs"], target=sizes["target"]), "source").items():
            fine, head, scratch = (best(own, mode) for mode in MODES)
            own_sizes = {key: value for key, value in sizes.items() if key != "shape"}
            found.append(Case(**own_sizes, source=source, fine=fine, head=head, scratch=scratch))
    return found


def winner(case: Case) -> str:
    """Which mode wins, and whether the seeds tell it from the next."""
    first, second, _ = case.ranked
    if case.is_tie:
        return f"{upper(first.arm)} and {second.arm} are level at {first.accuracy.percent()}."
    apart = points_apart(first.accuracy, second.accuracy)
    if case.is_told:
        return f"{upper(first.arm)} wins with {first.accuracy.percent()}. Against {second.arm}: {apart}."
    return (
        f"No winner: {first.arm} has {first.accuracy.percent()}, {second.arm} {second.accuracy.percent()}: {apart}. "
        f"{case.test_images:,} test images cannot resolve less than {case.unresolved:.1f} percentage points."
    )


def reason(found: Sequence[Case]) -> str:
    """What the fixed features say about the distance of source and target, and whether fine-tuning follows it."""
    near, far = (pick(found, key=lambda c: c.head.accuracy.mean) for pick in (max, min))
    if near is far:
        share = (
            f"{100 * near.head.accuracy.mean:.1f} % of the test images, the largest class {100 * near.baseline:.1f} %"
        )
        follows = (
            "are all that is needed" if near.gain <= 0 else f"leave {near.gain:.1f} percentage points to fine-tuning"
        )
        return (
            f"The fixed features of {near.source} get {share}: they {follows}. Pretraining is worth {signed(near.worth)} "
            f"percentage points over {near.train_images:,} images alone."
        )
    seen = [case for case in (near, far) if _is_gain(case)]
    verdict = "with these seeds and test images it is not seen to pay in either"
    if seen:
        more = far.gain - near.gain > (near.unresolved**2 + far.unresolved**2) ** 0.5
        verdict = f"it is seen to pay in {' and '.join(case.name for case in seen)}"
        verdict += ", more where the source is far" if more else ""
    return (
        f"Fixed features get {100 * near.head.accuracy.mean:.1f} % in {near.name} and "
        f"{100 * far.head.accuracy.mean:.1f} % in {far.name}, so the first are nearer. Fine-tuning adds "
        f"{signed(near.gain)} and {signed(far.gain)} percentage points: {verdict}. Pretraining is worth {signed(near.worth)} and "
        f"{signed(far.worth)} percentage points over training from scratch."
    )


def _is_gain(case: Case) -> bool:
    """Whether fine-tuning is seen to add to the fixed features."""
    return difference(case.fine.accuracy, case.head.accuracy).is_seen and case.gain > case.unresolved


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}"


def speed(case: Case) -> str:
    """How much faster a kept trunk is, and what it costs."""
    cost = (
        f"costs {case.gain:.1f} percentage points" if case.gain >= TIE else f"gains {-case.gain:.1f} percentage points"
    )
    if abs(case.gain) < TIE:
        cost = "costs nothing"
    return (
        f"{upper(case.name)}: an epoch on kept features is {_times(case.faster_epoch)} times as fast, the whole training with its one "
        f"pass of the trunk {case.faster:,.1f} times. That {cost}.{_overhead(case)}"
    )


def _overhead(case: Case) -> str:
    """Return a sentence that the overhead of the loop dominates a step on kept features, if so few parameters need far less time."""
    head = case.head
    if not head.step_s or head.trained_params > FEW_PARAMETERS:
        return ""
    return (
        f" A step on kept features takes {seconds(head.step_s)} and trains {head.trained_params:,.0f} parameters: nearly all of it is the overhead of "
        "the loop. So the ratio compares two loops, not the arithmetic."
    )


# -- the page ------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    found = cases(results)
    sections = [_rates_section(results, found), *(_mode_section(results, found, mode) for mode in (FINE, HEAD))]
    sections += [_lowest_section(results, found)]
    sections += [_target_section(results)] if results.pictures else []
    sections += [*(_case_section(results, case) for case in found[:3])]
    sections += [_time_section(results, found), _reason_section(results, found)]
    case = max(found, key=lambda c: c.ranked[0].accuracy.mean)
    first = case.ranked[0]
    epochs = f"{seconds(case.head.epoch_time_s)} against {seconds(case.fine.epoch_time_s)}"
    highlights = [
        Highlight("best", first.accuracy.percent(), f"{case.name}, {first.arm}, {seeds(first.accuracy.n)}"),
        Highlight(
            "an epoch on kept features",
            f"{_times(case.faster_epoch)} × as fast",
            f"{epochs}{', mostly overhead of the loop' if _overhead(case) else ''}",
        ),
    ]
    by_title = {section.title: section.takeaway for section in sections}
    summary = [winner(case), *(by_title[title] for title in _BY_RATE.values())]
    return STUDY.answer(results, sections, highlights, summary)


def _rows(results: Results, case: Case) -> list[Row]:
    """By mode and rate."""
    own = matching(results.rows["runs"], target=case.target, source=case.source)
    return sorted(own, key=lambda row: (MODES.index(row["mode"]), row["rate"]))


def _rates_section(results: Results, found: Sequence[Case]) -> Section:
    panels = []
    for case in found:
        series = []
        for mode in MODES:
            by_rate = grouped(matching(_rows(results, case), mode=mode), "rate")
            series.append(points(mode, list(by_rate), list(map(spread, by_rate.values())), COLORS[mode]))
        ticks = sorted({float(x) for s in series for x in s.x})
        mark = Mark("y", 100 * case.baseline, "largest class")
        label = f"learning rate, {case.name}"
        panels.append(Lines(label, "test accuracy, %", series, [mark], log_x=True, x_ticks=ticks))
    body = [[c.name, *(b.accuracy.percent() for b in (c.fine, c.head, c.scratch)), c.ranked[0].arm] for c in found]
    errors = ", ".join(
        f"{how_many(c.test_images, 'test images')}: ±{c.test_error:.1f} percentage points" for c in found[:1]
    )
    leaders = {case.name: case.leader for case in found}
    modes = "; ".join(
        f"{leader} in {' and in '.join(name for name, own in leaders.items() if own == leader)}"
        for leader in dict.fromkeys(leaders.values())
    )
    return Section(
        "Which way at which rate",
        f"Each at its best learning rate, {modes}.",
        intro=f"Each mode is shown at its best rate, chosen {_chosen(results)}. What the number of test images alone leaves "
        f"open, the same for all seeds, is one standard error: {errors}.",
        figure=Figure(panels),
        table=Table(["", *MODES, "winner"], body, {1, 2, 3}),
    )


def rates_takeaway(case: Case, mode: str, by_rate: Mapping[float, Spread]) -> str:
    """Return which rate of a mode is best, and which rates do not differ significantly from it."""
    rate = case.of(mode).rate
    best_of = by_rate[rate]
    others = {r: s for r, s in by_rate.items() if r != rate}
    left_open = unresolved(best_of.mean, case.test_images)
    close = [
        f"{r:g} ({s.percent()})"
        for r, s in others.items()
        if not difference(best_of, s).is_seen or best_of.mean - s.mean <= left_open
    ]
    said = (
        f"{'All layers' if mode == FINE else 'The last layer only'}, {case.name}: best at {rate:g}, {best_of.percent()}"
    )
    said += f". No significant difference from {listed_words(close)}" if close else ""
    if others:
        worst = min(others, key=lambda r: others[r].mean)
        said += f". Worst at {worst:g}, {others[worst].percent()}"
    return f"{said}."


def _mode_section(results: Results, found: Sequence[Case], mode: str) -> Section:
    """One way of training at all of its rates: accuracy against epochs."""
    panels, said, body = [], [], []
    for case in found:
        by_rate = grouped(matching(_rows(results, case), mode=mode), "rate")
        names = [f"{case.name}: {arm_name(mode, rate)}" for rate in by_rate]
        series = [
            mean_curve(results.curves, name, "epoch", f"rate {rate:g}")
            for name, rate in zip(names, by_rate, strict=True)
        ]
        panels.append(Lines("epochs", "test accuracy, %", series, title=case.name))
        accuracies = {rate: spread(rows) for rate, rows in by_rate.items()}
        said.append(rates_takeaway(case, mode, accuracies))
        body += [[case.name, f"{rate:g}", *accuracy.cells()] for rate, accuracy in accuracies.items()]
    return Section(
        _BY_RATE[mode],
        " ".join(said),
        intro=_schedule(results, mode),
        figure=Figure(panels),
        table=listed(["", "learning rate", "test accuracy", "seeds"], body),
    )


def _lowest_section(results: Results, found: Sequence[Case]) -> Section:
    """How all layers learn at the lowest of their rates, the one that an exercise begins with."""
    said, body = [], []
    for case in found:
        by_rate = grouped(matching(_rows(results, case), mode=FINE), "rate")
        rate = min(by_rate)
        series = mean_curve(results.curves, f"{case.name}: {arm_name(FINE, rate)}", "epoch")
        known = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        (first, low), (_, high) = known[0], max(known, key=lambda point: point[1])
        reached = next(x for x, y in known if y > high - 1)
        said.append(
            f"At {rate:g} {case.name} begin with {low:.1f} % after {first:g} epochs, come within a point of their highest accuracy after "
            f"{reached:g}, and end at {spread(by_rate[rate]).percent()}."
        )
        body += [[case.name, f"{x:g}", f"{y:.2f}"] for x, y in known]
    columns = ["", "epochs", "mean test accuracy, %"]
    return Section(
        "All layers at the lowest rate", " ".join(said), _schedule(results, FINE), table=listed(columns, body)
    )


def _schedule(results: Results, mode: str) -> str:
    """What all rates of a way share: where training begins, and where the rate is divided."""
    settings, fields = results.settings, recipe("feature-extraction" if mode == HEAD else "fine-tuning")
    drops = listed_words([f"{round(settings['epochs'] * share):g}" for share in fields["milestones"]])
    head = " The last layer is new, with random values." if mode == HEAD else ""
    return (
        f"SGD with momentum {fields['momentum']:g}, batch {settings['batch']}, {how_many(settings['epochs'], 'epochs')}; the rate, that of "
        f"{'the last layer' if mode == HEAD else 'all layers'}, is divided by {1 / fields['gamma']:g} after {drops} epochs.{head}"
    )


def _target_section(results: Results) -> Section:
    """What the target is: its sizes, and some samples of two classes."""
    targets = results.rows["targets"]
    grid: dict[str, list[Picture]] = {}
    for name, png in results.pictures.items():
        grid.setdefault(name.rpartition("/")[0], []).append(Picture("", png))
    said = [
        f"{upper(row['target'])}: {row['train_images']:,} training and {how_many(row['test_images'], 'test images')} of {row['classes']} "
        f"classes, {row['train_images'] / row['classes']:,.0f} a class{_described(row)}"
        for row in targets
    ]
    return Section(
        "The target",
        f"{'; '.join(said)}.",
        intro="Samples of two classes, as they are. The exercise asks for a set of the Visual Decathlon and a ResNet-50 of ImageNet: "
        "size `paper` has these, where they are at hand.",
        figure=Figure([Pictures([PictureRow(name, pictures) for name, pictures in grid.items()])]),
    )


def _described(row: Row) -> str:
    """
    >>> _described({"shape": [1, 28, 28]}), _described({"shape": [3, 224, 224]})
    (', grey images of 28×28 pixels', ', colour images of 224×224 pixels')
    """
    if "shape" not in row:
        return ""
    channels, height, width = row["shape"]
    return f", {'grey' if channels == 1 else 'colour'} images of {height}×{how_many(width, 'pixels')}"


def samples(settings: Settings) -> dict[str, str]:
    """Four training images of each of the first two classes of each target, as PNG."""
    from chronograd.figure import png_base64

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


def _chosen(results: Results) -> str:
    held_out = results.settings.get("validation_samples", 0)
    if held_out:
        return f"on {held_out:,} training images that no run was trained on"
    return "on the test images, as there is no third split: of the same images a best rate is a little too good"


def _case_section(results: Results, case: Case) -> Section:
    rows = [{**row, "arm": arm_name(row["mode"], row["rate"])} for row in _rows(results, case)]
    source = results.settings["sources"][case.source]
    size = f" at {source['image_size']}×{source['image_size']}" if "image_size" in source else ""
    more = {"trained parameters": ("trained_params", "{:,.0f}".format), "time per epoch": ("epoch_time_s", seconds),
            "training time": ("seconds", seconds)}  # fmt: skip
    return Section(
        upper(case.name),
        winner(case),
        intro=f"{source['network']}{size}; {case.train_images:,} training and {how_many(case.test_images, 'test images')} of "
        f"{how_many(case.classes, 'classes')}. The training time of a fixed trunk has its one pass over the images in it.",
        table=accuracy_table(rows, {"": "arm"}, more),
    )


def _time_section(results: Results, found: Sequence[Case]) -> Section:
    panels = []
    for case in found:
        series = [
            mean_curve(results.curves, f"{case.name}: {b.arm}", "seconds", b.mode, COLORS[b.mode])
            for b in (case.fine, case.head, case.scratch)
        ]
        panels.append(Lines(f"training time, s, {case.name}", "test accuracy, %", series, log_x=True))
    return Section(
        "Time",
        " ".join(map(speed, found)),
        figure=Figure(panels),
        table=table(found, {
            "": lambda case: case.name, "fine-tuned, per epoch": lambda case: seconds(case.fine.epoch_time_s),
            "last layer, per epoch": lambda case: seconds(case.head.epoch_time_s),
            "times as fast": lambda case: _times(case.faster_epoch),
            "whole, times as fast": lambda case: f"{case.faster:,.1f}", "points": lambda case: signed(-case.gain),
        }),
    )  # fmt: skip


def _reason_section(results: Results, found: Sequence[Case]) -> Section:
    intro = "How well a last layer does on fixed features measures how near the source is. "
    if len(results.settings["sources"]) > 1:
        intro += "The sources differ in network and image size too, so the distance is that of the whole. "
    intro += " ".join(KNOWN[target] for target in dict.fromkeys(c.target for c in found) if target in KNOWN)
    return Section("Why", reason(found), intro=intro.strip(), table=table(found, {
        "": lambda case: case.name, "images per class": lambda case: f"{case.train_images / case.classes:,.0f}",
        "largest class": lambda case: f"{100 * case.baseline:.1f} %",
        "fixed features": lambda case: f"{100 * case.head.accuracy.mean:.1f} %",
        "fine-tuning adds": lambda case: signed(case.gain), "pretraining adds": lambda case: signed(case.worth),
    }))  # fmt: skip


# Source and target have the same ten classes, so the head comes along.
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
# A far target with test images enough that choosing a rate by them flatters it by a few tenths of a point at most.
_EVENING = {
    **_LAPTOP,
    "targets": {"clothes": {"name": "fashion-mnist", "samples": 2000}},
    "sources": {"CIFAR-10": {"network": "resnet20", "weights": "resnet20-12fca82f.th", "image_size": 32}},
    "head_rates": [0.001, 0.01, 0.1, 1.0], "scratch_rates": [0.01, 0.1],
    "epochs": 60, "evaluate_every": 5,
}  # fmt: skip
_PAPER = {
    **_LAPTOP,
    "targets": {"flowers": {"name": "decathlon:vgg-flowers"}, "textures": {"name": "decathlon:dtd"}},
    "sources": {"ImageNet": {"network": "torchvision:resnet50", "weights": "torchvision", "image_size": 224}},
    "epochs": 200, "batch": 64, "evaluate_every": 10,
}  # fmt: skip

STUDY = Study(
    name="transfer",
    question="Pretrained weights: fine-tune all of them, or keep them and train the last layer only?",
    hypothesis="Fine-tuning at a low rate is more accurate, the more so the farther the source is from the target; a "
    "fixed feature extractor is much faster and enough where they are near or images are few",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)
