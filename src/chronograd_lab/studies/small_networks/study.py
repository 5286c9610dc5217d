"""Small networks: accuracy of a small CNN and of the heads of large networks on small images.

Why can a head on a frozen ImageNet trunk end at chance? The recipe is that of the Keras examples: Adadelta, first a head on a
frozen trunk, then everything at a low rate. The causes are then tried individually and together on a network with available
ImageNet weights.

Facts of Keras that the causes are named after:
    Adadelta has a default rate of 0.001 since TensorFlow 2; M. Zeiler's own form, arXiv 1212.5701, is a rate of 1
    EfficientNet normalises inside and takes 0 … 255; ResNet50 takes 0 … 255 less the mean of ImageNet, as caffe does
    a frozen batch norm trained with the statistics of the batch before TensorFlow 2 (keras pull request 9965)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from chronograd import trust
from chronograd.answer import Table
from chronograd.count.cached import cached_trace
from chronograd.count.layers import summary
from chronograd.data import datasets
from chronograd.errors import InputError
from chronograd.figure import Bar, Bars, Figure, Lines, Mark
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.units import seconds
from chronograd_lab.common.arms import Arm, Trained, accuracy_table, job_of, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import (
    Spread,
    distinct,
    grouped,
    matching,
    mean,
    shown,
    signed,
    spread,
)
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.weights import PRETRAINING, source_weights
from chronograd_lab.common.written import Block, key

SCRATCH, HEAD, TUNED = "from scratch", "head on a frozen trunk", "then all unfrozen"
MOBILENET, EFFICIENTNET = "MobileNet with ImageNet weights", "EfficientNet-Lite0 with ImageNet weights"
KERAS_INPUT = "chronograd_lab.studies.small_networks.keras_input"
# The networks of the report as the product names them, with the report's numbers.
REPORT: dict[str, dict[str, Any]] = {
    "small CNN": {"reference": "small-cnn", "total": 1_626_442, "trained": 1_626_442, "accuracy": 0.737},
    "EfficientNet-B0": {"reference": "efficientnet-b0-keras", "total": 4_062_381, "trained": 12_810, "accuracy": 0.100},
    "ResNet-50": {"reference": "resnet50-keras", "total": 23_628_902, "trained": 41_190, "accuracy": 0.108},
}
# Names in the page.
STAGES = {SCRATCH: "scratch", HEAD: "head", TUNED: "tuned"}
COLORS = {SCRATCH: "grey", HEAD: "vermilion", TUNED: "accent"}
INPUTS = {"raw": "0 … 255, scaled by the network", "unit": "0 … 1, scaled twice"}
RANGES = {"imagenet": "normalised as ImageNet", "own": "normalised", "unit": "0 … 1", "raw": "0 … 255"}


# -- the networks --------------------------------------------------------------------------------------


def network_job(settings: Settings, name: str, stage: str, weights: str | None) -> Job:
    """Return the job of a stage of a network. `weights`: the initial ones."""
    own = settings["networks"][name]
    return _job(
        settings, own["network"], weights, {"normalisation": own["normalisation"], **own.get("data", {})}, recipe="adadelta",
        learning_rate=settings["tuning_rate"] if stage == TUNED else settings["rate"],
        epochs=settings["epochs"][stage], trainable="head" if stage == HEAD else "all", **own.get("training", {}),
    )  # fmt: skip


def _job(settings: Settings, network: str, weights: str | None, data: Row, epochs: int, **training: Any) -> Job:
    training = {"evaluate_every": epochs, "channels_last": True, **training}
    return job_of(settings, network, weights, data, epochs=epochs, **training)


def parameter_rows() -> list[Row]:
    """Count the parameters of the report's networks as Keras does, in parts, and those that train with a frozen trunk."""
    from chronograd.models.registry import build
    from chronograd.models.weights import head_of

    rows = []
    for name, own in REPORT.items():
        counted = summary(cached_trace(own["reference"], {}, input_shape=(3, 32, 32)))
        network = build(own["reference"], num_classes=10, device="meta")
        trained = network if name == "small CNN" else head_of(network)[1]
        num_trained = sum(p.numel() for p in trained.parameters())
        counts = {"total": counted.params_keras, "parts": counted.params_keras_parts, "trained": num_trained}
        rows.append({"network": name, **counts})
    return rows


# -- the causes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadSetup:
    """The settings of a head that is trained on a frozen trunk. The learning rate is that of Adadelta."""

    normalisation: str
    norm: str
    image_size: int
    rate: float
    is_pretrained: bool = True

    @property
    def name(self) -> str:
        trunk = "" if self.is_pretrained else ", untrained"
        return f"{self.normalisation}, {self.norm}, {self.image_size}, {self.rate:g}{trunk}"

    @classmethod
    def of(cls, row: Row) -> HeadSetup:
        return cls(*(row[name] for name in ("normalisation", "norm", "image_size", "rate", "is_pretrained")))

    def wrongs(self, right: HeadSetup) -> list[str]:
        """Return the differences from another setting, in words."""
        wrongs = {
            f"input {RANGES[self.normalisation]}": self.normalisation != right.normalisation,
            "batch statistics": self.norm != right.norm,
            f"{_square(self.image_size)} images": self.image_size != right.image_size,
            f"rate {self.rate:g}": self.rate != right.rate,
            "untrained trunk": self.is_pretrained != right.is_pretrained,
        }
        return [wrong for wrong, is_there in wrongs.items() if is_there]


def _square(side: int) -> str:
    return f"{side}×{side}"


def right(settings: Settings) -> HeadSetup:
    """Return the right setting: first input range, stored statistics, largest images, highest rate."""
    own = settings["diagnosis"]
    return HeadSetup(own["normalisations"][0], "stored", max(own["image_sizes"]), max(own["rates"]))


def one_wrong(settings: Settings) -> list[HeadSetup]:
    """Return the right setting with one thing changed."""
    own, good = settings["diagnosis"], right(settings)
    return [
        *(replace(good, normalisation=n) for n in own["normalisations"][1:]),
        replace(good, norm="batch"),
        *(replace(good, image_size=s) for s in sorted(own["image_sizes"], reverse=True)[1:]),
        *(replace(good, rate=r) for r in own["rates"] if r != good.rate),
        replace(good, is_pretrained=False),
    ]


def grid(settings: Settings) -> list[HeadSetup]:
    """Return every input range, statistics and rate at the smallest images; one of them has everything wrong."""
    own = settings["diagnosis"]
    return [
        HeadSetup(normalisation, norm, min(own["image_sizes"]), rate)
        for norm in own["norms"]
        for normalisation in own["normalisations"]
        for rate in own["rates"]
    ]


def causes(settings: Settings) -> list[HeadSetup]:
    """Return all settings to try, each once; the long ones first."""
    own, good = settings["diagnosis"], right(settings)
    sizes = [replace(good, normalisation=n, image_size=s) for n in own["normalisations"] for s in own["image_sizes"]]
    small = replace(good, image_size=min(own["image_sizes"]), is_pretrained=False)
    untrained = [replace(small, norm=norm) for norm in own["norms"]]
    tried = dict.fromkeys([good, *one_wrong(settings), *sizes, *grid(settings), *untrained])
    return sorted(tried, key=lambda s: (-s.image_size, s.norm != "batch"))


def tried(settings: Settings) -> list[HeadSetup]:
    """Return the settings to try on EfficientNet-Lite0; the long ones first."""
    return sorted((HeadSetup(*one) for one in settings["efficientnet"]["tried"]), key=lambda one: -one.image_size)


def cause_job(settings: Settings, setting: HeadSetup, weights: str, part: str = "diagnosis") -> Job:
    """Return the job of a setting on the network of a part of the settings, `diagnosis` or `efficientnet`."""
    own = settings[part]
    data = {"image_size": setting.image_size, "normalisation": setting.normalisation, "skip": own.get("skip", 0)}
    return _job(
        settings, own["network"], weights if setting.is_pretrained else None, data, own["epochs"], recipe="adadelta",
        learning_rate=setting.rate, trainable="head", freeze_norm=False if setting.norm == "batch" else None,
    )  # fmt: skip


def pretraining_job(settings: Settings) -> Job:
    """Return the job that trains the trunk of the diagnosis if no weights are available."""
    own, good = settings["diagnosis"], right(settings)
    data = {"image_size": good.image_size, "normalisation": good.normalisation, **own[PRETRAINING]["data"]}
    return _job(settings, own["network"], None, data, recipe="fine-tuning", **own[PRETRAINING]["training"])


# -- conduct -------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Train the first stage of each network; then unfreeze heads and try the causes.

    `restored` is the accuracy of an unfrozen network with the earlier batch-norm statistics. `mismatched` is that of a head
    trained on the statistics of each batch and tested with those of the weights.
    """
    trust.allow(KERAS_INPUT)
    networks, diagnosis, further = settings["networks"], settings["diagnosis"], settings["efficientnet"]
    starts, notes = _starts(settings)
    weights = source_weights(diagnosis["weights"])

    def arm(network: str, stage: str, start: str | None, own_seeds: Sequence[int]) -> Arm:
        job = network_job(settings, network, stage, start)
        return Arm(f"{network}: {stage}", job, {"network": network, "stage": stage}, own_seeds)

    first = [
        arm(name, HEAD if own["has_trunk"] else SCRATCH, starts[name], range(own.get("seeds", settings["seeds"])))
        for name, own in networks.items()
        if name in starts
    ]
    if weights == PRETRAINING:
        (run,) = runner.train({PRETRAINING: pretraining_job(settings)}).values()
        weights = starts["efficientnet"] = str(run.path)
    trained = train_arms(runner, first)
    heads = {(one.arm.known["network"], one.seed): one for one in trained if one.arm.known["stage"] == HEAD}
    tuned = [arm(network, TUNED, str(head.run.path), [seed]) for (network, seed), head in heads.items()]
    of_causes = [
        Arm(setting.name, cause_job(settings, setting, weights), asdict(setting), range(diagnosis["seeds"]))
        for setting in causes(settings)
    ]
    of_efficientnet = [
        Arm(f"EfficientNet: {one.name}", cause_job(settings, one, start, "efficientnet"), asdict(one), range(further["seeds"]))
        for start in filter(None, [starts.get("efficientnet")])
        for one in tried(settings)
    ]  # fmt: skip
    runs, rows = [one.row(restored=None) for one in trained], []
    for one in train_arms(runner, [*of_causes, *tuned]):
        known = one.arm.known
        if "stage" in known:
            runs.append(one.row(restored=_restored(runner, one, str(heads[known["network"], one.seed].run.path))))
        else:
            has_two = known["norm"] == "batch" and known["is_pretrained"]
            rows.append(one.row(mismatched=accuracy_with_stored(one.run, weights) if has_two else None))
    other = [one.row() for one in train_arms(runner, of_efficientnet)]
    card = datasets.card(first[0].job.data)
    sizes = {"train_images": card.train_size, "test_images": card.test_size, "classes": card.num_classes}
    found = {"runs": runs, "causes": rows, "efficientnet": other, "parameters": parameter_rows(), "data": [sizes]}
    return runner.results(settings, rows=found, notes=notes)


def _starts(settings: Settings) -> tuple[dict[str, str | None], list[str]]:
    """Return the initial weights of the networks and of `efficientnet`, and a note on each whose file is not available."""
    starts, missing = dict[str, str | None](), dict[str, str]()
    for name, own in {**settings["networks"], "efficientnet": settings["efficientnet"]}.items():
        try:
            starts[name] = own["weights"] and source_weights(own["weights"])
        except InputError:
            missing[own["weights"]] = name if name in settings["networks"] else missing.get(own["weights"], name)
    return starts, [
        f"{name} was not run: its weights {file} are not on this machine (`chronograd weights --list`)"
        for file, name in missing.items()
    ]


def _restored(runner: StudyRunner, tuned: Trained, head: str) -> float | None:
    """Return the accuracy of the first seed with the batch-norm statistics of before."""
    if tuned.seed:
        return None
    return float(runner.derived(tuned.run, "restored", lambda: accuracy_with_stored(tuned.run, head)))


def accuracy_with_stored(run: RunDir, weights: str) -> float:
    """Return the test accuracy of a run's parameters with the batch-norm statistics of other weights of the same network."""
    import torch

    from chronograd.models.weights import load_pretrained
    from chronograd.train.inputs import ImageInput
    from chronograd.train.methods.teacher import network_of, softmax_of

    job = run.job()
    found = datasets.load(job.data, job.training.seed)
    trained, stored = network_of(run), network_of(run)
    load_pretrained(stored, weights, job.network.name)
    statistics = dict(stored.named_buffers())
    with torch.no_grad():
        for name, buffer in trained.named_buffers():
            buffer.copy_(statistics[name])
    images = ImageInput(found.test, found, next(trained.parameters()).device)
    is_right = softmax_of(trained, images).argmax(1) == found.test_labels_N.numpy()
    return float(is_right.mean())


# -- results ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """The accuracies of a diagnosis, by setting, and the accuracy of chance."""

    rows: Sequence[Row]
    chance: float
    test_images: int

    @classmethod
    def of(cls, results: Results) -> Found:
        (data,) = results.rows["data"]
        return cls(results.rows["causes"], 1 / data["classes"], data["test_images"])

    @property
    def mark(self) -> Mark:
        return Mark("y", 100 * self.chance, "chance")

    def settings(self) -> list[HeadSetup]:
        return list(dict.fromkeys(map(HeadSetup.of, self.rows)))

    def accuracy(self, setting: HeadSetup, column: str = "accuracy") -> Spread:
        return Spread.of([row[column] for row in self.rows if HeadSetup.of(row) == setting])

    def limit(self) -> float:
        """Return chance plus two standard errors of the number of test images."""
        return float(self.chance + 2 * (self.chance * (1 - self.chance) / self.test_images) ** 0.5)

    def is_chance(self, accuracy: Spread) -> bool:
        return accuracy.mean <= self.limit()


# -- the page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    found = Found.of(results)
    further = replace(found, rows=results.rows["efficientnet"])
    heads = {setting: found.accuracy(setting) for setting in found.settings()}
    mixed = [setting for setting in heads if setting.norm == "batch" and setting.is_pretrained]
    small = [setting for setting in heads if setting in grid(results.settings)]
    networks: dict[str, dict[str, Any]] = {}
    for (network, stage), own in grouped(results.rows["runs"], "network", "stage").items():
        known = networks.setdefault(key(network.partition(" with ")[0]), {})
        known |= {STAGES[stage]: spread(own), "end": spread(own), "restored": mean(own, "restored")}
        known["train_loss"] = mean(own, "train_loss")
    return {
        "networks": networks,
        "heads": {key(setting.name.replace(", ", "_")): accuracy for setting, accuracy in heads.items()},
        "mismatched": {key(s.name.replace(", ", "_")): found.accuracy(s, "mismatched") for s in mixed},
        "report": {key(name): own for name, own in REPORT.items()},
        "is_count_equal": all(map(_is_counted, results.rows["parameters"])),
        "efficientnet": {
            key(setting.name.replace(", ", "_")): further.accuracy(setting) for setting in further.settings()
        },
        "worst_alone": min(one_wrong(results.settings), key=lambda s: heads[s].mean).name,
        "chance": found.chance,
        "limit": found.limit(),
        "small": len(small),
        "small_at_chance": sum(found.is_chance(heads[s]) for s in small),
        "data": results.rows["data"][0],
        "epochs": results.settings["epochs"][SCRATCH],
    }


def blocks(results: Results) -> dict[str, Block]:
    found = Found.of(results)
    unfrozen = {"What unfreezing changes": Block(_unfreezing(results.rows["runs"]))}
    further = {"What makes a pretrained network work": _efficientnet(results)} if results.rows["efficientnet"] else {}
    return {
        "The report": Block(_report(results)),
        "The networks": _networks(results, found),
        **further,
        **(unfrozen if matching(results.rows["runs"], stage=TUNED) else {}),
        "One thing wrong at a time": _one_wrong(results, found),
        "Input range and resolution": _resolution(results, found),
        "Statistics of batch norm": Block(_norm(results, found)),
        "All together, on small images": Block(_together(results, found)),
        "The usual mistakes with Keras": Block(_keras(results, found)),
    }


def _networks(results: Results, found: Found) -> Block:
    rows, networks = results.rows["runs"], distinct(results.rows["runs"], "network")
    series = []
    for stage in STAGES:
        by_network = grouped(matching(rows, stage=stage), "network")
        if by_network:
            xs = [float(networks.index(name)) for name in by_network]
            series.append(points(stage, xs, list(map(spread, by_network.values())), COLORS[stage], is_joined=False))
    ticks = [float(i) for i in range(len(networks))]
    panel = Lines("", "test accuracy, %", series, [found.mark], from_zero=True, x_ticks=ticks, x_names=networks)
    in_order = [row for own in grouped(rows, "network").values() for row in own]
    more = {"trained parameters": ("trained_params", "{:,.0f}".format), "training time": ("seconds", seconds)}
    return Block(accuracy_table(in_order, {"network": "network", "stage": "stage"}, more), Figure([panel]))


def _unfreezing(rows: Sequence[Row]) -> Table:
    """Return the effect of an epoch of all layers on a head trained on a frozen trunk, the largest change first."""
    changes = []
    for network in distinct(rows, "network", stage=TUNED):
        head, tuned = (spread(rows, network=network, stage=stage) for stage in (HEAD, TUNED))
        restored = shown(mean(rows, "restored", network=network, stage=TUNED), lambda r: f"{100 * r:.2f} %")
        cells = [network, head.percent(), tuned.percent(), restored, str(tuned.n)]
        changes.append((-abs(tuned.mean - head.mean), cells))
    columns = [
        "network",
        "head on a frozen trunk",
        "then all unfrozen",
        "unfrozen, with the earlier statistics",
        "seeds",
    ]
    return listed(columns, [cells for _, cells in sorted(changes, key=lambda change: change[0])])


def _one_wrong(results: Results, found: Found) -> Block:
    good = right(results.settings)
    base = found.accuracy(good)
    tried = {", ".join(s.wrongs(good)): found.accuracy(s) for s in one_wrong(results.settings)}
    body = [["nothing", *base.cells(), ""]]
    body += [[n, *a.cells(), signed(100 * (a.mean - base.mean))] for n, a in tried.items()]
    return Block(
        listed(["wrong", "test accuracy", "seeds", "percentage points"], body),
        _bars("wrong", {"nothing": base, **tried}),
    )


def _bars(what: str, accuracies: Mapping[str, Spread]) -> Figure:
    """Draw accuracies in percent, with ± one standard deviation."""
    bars = []
    for label, a in accuracies.items():
        low, high = (None, None) if a.std is None else (100 * a.low, 100 * a.high)
        bars.append(Bar(label, "measured", {"": 100 * a.mean}, low, high, f"{100 * a.mean:.1f}"))
    return Figure([Bars("test accuracy, %", what, bars, {"": "teal"})])


def _is_counted(row: Row) -> bool:
    """Return whether both counts of a network equal the report's."""
    return all(row[count] == REPORT[row["network"]][count] for count in ("total", "trained"))


def _report(results: Results) -> Table:
    """Return the parameters of the report's networks, its numbers for them, and its accuracies."""
    body = []
    for row in results.rows["parameters"]:
        own, parts = REPORT[row["network"]], " + ".join(f"{n:,} {part}" for part, n in row["parts"].items() if n)
        counts = [f"{row['total']:,}", parts, f"{row['trained']:,}"]
        body.append([row["network"], *counts, "yes" if _is_counted(row) else "no", f"{100 * own['accuracy']:.1f} %"])
    columns = ["network", "parameters", "of these", "trained in the first stage"]
    columns += ["same as the report", "report's test accuracy"]
    return Table(columns, body, {1, 3, 5})


def _efficientnet(results: Results) -> Block:
    """Return EfficientNet-Lite0's accuracies in the order of the settings."""
    found = replace(Found.of(results), rows=results.rows["efficientnet"])
    body, bars = [], {}
    for one in (HeadSetup(*given) for given in results.settings["efficientnet"]["tried"]):
        accuracy, name = found.accuracy(one), INPUTS.get(one.normalisation, one.normalisation)
        at_chance = "yes" if found.is_chance(accuracy) else "no"
        body.append([name, _square(one.image_size), f"{one.rate:g}", *accuracy.cells(), at_chance])
        bars[f"{name}, {_square(one.image_size)}, rate {one.rate:g}"] = accuracy
    columns = ["input", "images", "rate of Adadelta", "test accuracy", "seeds", "at chance"]
    return Block(listed(columns, body, text=2), _bars("setting", bars))


def _resolution(results: Results, found: Found) -> Block:
    good, own = right(results.settings), results.settings["diagnosis"]
    sizes = sorted(own["image_sizes"])
    by_range = {
        n: [found.accuracy(replace(good, normalisation=n, image_size=s)) for s in sizes] for n in own["normalisations"]
    }
    ticks = [float(s) for s in sizes]
    series = [points(RANGES[n], ticks, spreads) for n, spreads in by_range.items()]
    panel = Lines("side of the images", "test accuracy, %", series, [found.mark], from_zero=True, x_ticks=ticks)
    body = [[RANGES[n], *(a.percent() for a in spreads)] for n, spreads in by_range.items()]
    return Block(listed(["input", *map(_square, sizes)], body), Figure([panel]))


def _norm(results: Results, found: Found) -> Table:
    good, known = right(results.settings), found.settings()
    body = []
    for batch in known:
        stored = replace(batch, norm="stored")
        if batch.norm != "batch" or batch.rate != good.rate or stored not in known:
            continue
        mismatched = found.accuracy(batch, "mismatched").percent() if batch.is_pretrained else "–"
        trunk = "pretrained" if batch.is_pretrained else "untrained"
        cells = [found.accuracy(stored).percent(), found.accuracy(batch).percent(), mismatched]
        body.append([trunk, RANGES[batch.normalisation], _square(batch.image_size), *cells])
    return listed(["trunk", "input", "images", "stored", "batch", "mismatched"], body, text=3)


def _together(results: Results, found: Found) -> Table:
    own = results.settings["diagnosis"]
    side = min(own["image_sizes"])
    body = [
        [RANGES[n], norm, *(found.accuracy(HeadSetup(n, norm, side, rate)).percent() for rate in own["rates"])]
        for n in own["normalisations"]
        for norm in own["norms"]
    ]
    return listed(["input", "statistics", *(f"rate {rate:g}" for rate in own["rates"])], body, text=2)


def _keras(results: Results, found: Found) -> Table:
    """Return the usual mistakes with Keras, each with its closest experiment and the change of accuracy that it causes."""
    small = replace(right(results.settings), image_size=min(results.settings["diagnosis"]["image_sizes"]))
    lite = HeadSetup("raw", "stored", small.image_size, 1.0)
    closest: list[tuple[str, str, HeadSetup, HeadSetup]] = [
        ("Adadelta left at its default rate", "0.001 since TensorFlow 2; 1 before", small, replace(small, rate=0.001)),
        (
            "0 … 1 into EfficientNet", "it takes 0 … 255 and scales inside; here: the same, with EfficientNet-Lite0",
            lite, replace(lite, normalisation="unit"),
        ),
        (
            "raw images into ResNet50",
            "it takes 0 … 255 less ImageNet's mean, in BGR; here: 0 … 255 in place of a normalised input",
            small, replace(small, normalisation="raw"),
        ),
        (
            "frozen batch norm before TensorFlow 2", "trained on batch statistics, tested with stored ones",
            small, replace(small, norm="batch"),
        ),
    ]  # fmt: skip
    body = []
    for mistake, fact, good, wrong in closest:
        own = found if good == small else replace(found, rows=results.rows["efficientnet"])
        if {good, wrong} <= set(own.settings()):
            accuracy = own.accuracy(wrong, "mismatched" if wrong.norm == "batch" else "accuracy")
            body.append([mistake, fact, accuracy.percent(), signed(100 * (accuracy.mean - own.accuracy(good).mean))])
    return listed(
        ["mistake", "what Keras expects, and what was run", "test accuracy", "percentage points"], body, text=2
    )


# The pretrained trunk has the same ten classes, so its head is used, too.
_SMOKE = {
    "data": "digits", "samples": 200, "test_samples": None, "image_size": 8,
    "networks": {
        "small CNN": {"network": "small-cnn", "has_trunk": False, "weights": None, "normalisation": "unit"},
        "ResNet-8": {"network": "resnet8", "has_trunk": True, "weights": None, "normalisation": "own"},
    },
    "rate": 1.0, "tuning_rate": 1e-5, "epochs": {SCRATCH: 3, HEAD: 2, TUNED: 1}, "batch": 50, "seeds": 1,
    "diagnosis": {
        "network": "resnet8", "weights": PRETRAINING, "normalisations": ["own", "raw"], "norms": ["stored"],
        "image_sizes": [8], "rates": [1.0, 0.001], "epochs": 3, "skip": 900, "seeds": 1,
        PRETRAINING: {"data": {"samples": 900}, "training": {"epochs": 3, "batch": 50, "learning_rate": 0.05}},
    },
    "efficientnet": {"network": "resnet8", "weights": PRETRAINING, "tried": [["own", "stored", 8, 1.0]], "epochs": 1, "seeds": 1},
}  # fmt: skip
_SMALL_CNN = {"network": "small-cnn", "has_trunk": False, "weights": None, "normalisation": "unit"}
_DIAGNOSIS = {"normalisations": ["imagenet", "unit", "raw"], "norms": ["stored", "batch"], "rates": [1.0, 0.001]}
_MOBILENET = {"network": "mobilenet-v1-0.25", "weights": "mobilenetV1X0.25_pretrain.tar"}
_LITE0 = {"network": f"{KERAS_INPUT}:efficientnet_lite0", "weights": "efficientnet-lite0-57934424.pth"}
# From everything wrong to everything right; then one thing wrong at 128 x 128.
_TRIED = [
    ["unit", "stored", 32, 0.001], ["raw", "stored", 32, 0.001], ["unit", "stored", 32, 1.0], ["raw", "stored", 32, 1.0],
    ["raw", "stored", 64, 1.0], ["raw", "stored", 128, 1.0], ["unit", "stored", 128, 1.0], ["raw", "stored", 128, 0.001],
]  # fmt: skip
_LAPTOP: dict[str, Any] = {
    "data": "cifar10", "samples": 2000, "test_samples": 2000, "image_size": 32,
    "networks": {
        MOBILENET: {"has_trunk": True, "normalisation": "imagenet", **_MOBILENET},
        EFFICIENTNET: {"has_trunk": True, "normalisation": "raw", **_LITE0},
        "small CNN": _SMALL_CNN,
    },
    "rate": 1.0, "tuning_rate": 1e-5, "epochs": {SCRATCH: 6, HEAD: 10, TUNED: 1}, "batch": 64, "seeds": 3,
    "diagnosis": {**_MOBILENET, **_DIAGNOSIS, "image_sizes": [32, 64, 128], "epochs": 6, "seeds": 2},
    "efficientnet": {**_LITE0, "tried": _TRIED, "epochs": 10, "seeds": 2},
}  # fmt: skip
# The small CNN on all images, as in the report; the explanation of the heads needs no more images than before.
_ALL = {**_SMALL_CNN, "data": {"samples": None, "test_samples": None}}
_REPORTED = {"training": {"batch": 128, "evaluate_every": 1}, "seeds": 1}
_EVENING = {
    **_LAPTOP,
    "networks": {
        **_LAPTOP["networks"],
        "small CNN": _ALL,
        "small CNN, batch 128": {**_ALL, **_REPORTED},
        "small CNN, batch 128, dropout": {**_ALL, **_REPORTED, "network": f"{KERAS_INPUT}:small_cnn_with_dropout"},
    },
    "epochs": {SCRATCH: 12, HEAD: 10, TUNED: 1},
}  # fmt: skip
_EFFICIENTNET = {"network": "efficientnet-b0-keras", "weights": "torchvision"}
_LARGE = {"has_trunk": True, "weights": None, "normalisation": "imagenet"}
_PAPER = {
    "data": "cifar10", "samples": None, "test_samples": None, "image_size": 32,
    "networks": {
        # torchvision's ResNet-50, because its weights do not fit ours.
        "ResNet-50": {**_LARGE, "network": "torchvision:resnet50", "weights": "torchvision"},
        "EfficientNet-B0": {**_LARGE, **_EFFICIENTNET},
        "small CNN": _SMALL_CNN,
    },
    "rate": 1.0, "tuning_rate": 1e-5, "epochs": {SCRATCH: 12, HEAD: 10, TUNED: 10}, "batch": 128, "seeds": 3,
    "diagnosis": {**_EFFICIENTNET, **_DIAGNOSIS, "image_sizes": [32, 64, 128, 224], "epochs": 10, "seeds": 3},
    "efficientnet": {**_LITE0, "tried": _TRIED, "epochs": 10, "seeds": 3},
}  # fmt: skip

STUDY = Study(
    name="small-networks",
    question="How accurate are a small CNN and the heads of large networks on small images, and why can a head on a "
    "frozen ImageNet trunk end at chance?",
    hypothesis="A small CNN from scratch is well above chance. A frozen ImageNet trunk at 32×32 suffers from its input range, "
    "its batch-norm statistics and its resolution. Each effect can be shown alone",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "evening": _EVENING, "paper": _PAPER},
    conduct=conduct,
    published="evening",
    values=values,
    blocks=blocks,
)
