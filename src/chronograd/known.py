"""Results of published training runs: whether a recipe reaches a target, in how many epochs, and up to which batch.

The table is `known_results.toml`. It shows a plan whether a goal is reachable. It provides the recipe of a job if only a
network and a data set are named.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from chronograd.job import Job, Training
from chronograd.record import normal_probability

# Standard deviation of a result without a published one: between seeds, and between implementations of one recipe.
SPREAD = 0.003
# Side of images if neither the recipe nor the data set states it. Costs are compared within one data set only.
USUAL_SIZE = 224
# Families of networks by a part of their names. The first match applies, so ResNeXt does not count as ConvNeXt, or MaxViT as
# ViT.
FAMILIES = {
    "convnext": ("convnext",),
    "regnet": ("regnet",),
    "densenet": ("densenet",),
    "efficientnet": ("efficientnet",),
    "mobilenet": ("mobilenet", "mnasnet", "shufflenet"),
    "swin": ("swin",),
    "maxvit": ("maxvit", "maxxvit", "coatnet"),
    "vit": ("vit_", "deit", "vit-"),
    "vgg": ("vgg", "alexnet"),
    "resnet": ("resnet", "resnext"),
}
SIZES = ("atto", "femto", "pico", "nano", "tiny", "small", "base", "large", "xlarge", "huge")
LETTERS = {"t": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}


@dataclass(frozen=True)
class KnownResult:
    """One published result.

    Attributes:
        name: short name of the recipe. networks: names of this network in jobs. data: name of the set, without a path.
        accuracy: top-1, as a fraction. std: between runs, if published.
        epochs, batch: of the run. largest_batch: largest published batch that reaches the accuracy in the same epochs.
        image_size: side of the training images; None for that of the data set.
        training: the recipe as fields of a job's training.
        optimizer: update rule of the source, such as `lamb`; that of `training` if a job has it.
        beyond: parts of the recipe that a job cannot state. Without them a run ends lower.
        weights: torchvision's name of the resulting weights, if its documentation states the accuracy.
    """

    name: str
    networks: tuple[str, ...]
    data: str
    accuracy: float
    epochs: int
    batch: int
    source: str
    date: str
    tag: str
    training: Mapping[str, Any]
    std: float | None = None
    largest_batch: int | None = None
    image_size: int | None = None
    optimizer: str = ""
    beyond: tuple[str, ...] = ()
    weights: str = ""
    schedule: Training = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Training(**self.fields))
        object.__setattr__(self, "optimizer", self.optimizer or self.schedule.optimizer)

    @property
    def short(self) -> str:
        """Return a name for a sentence that states the epochs itself."""
        return self.name.removesuffix(f", {self.epochs} epochs")

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of a job's training: the recipe, its epochs and its batch."""
        return {**self.training, "epochs": self.epochs, "batch": self.batch}

    def fields_at(self, batch: int) -> dict[str, Any]:
        """Return the fields at another global batch: the rate is multiplied by batch / own batch (Goyal et al. 2017).

        >>> usual("timm:vit_small_patch16_224", "imagenet").fields_at(256)["learning_rate"]
        0.00025
        """
        rate = self.schedule.learning_rate * batch / self.batch
        return {**self.fields, "batch": batch, "learning_rate": rate}

    @property
    def most_samples(self) -> int:
        """Return the largest batch for which the epochs are known to be enough."""
        return self.largest_batch or self.batch

    @property
    def cost(self) -> float:
        """Return the work of the run relative to other recipes of its network: epochs × pixels of an image over the usual
        pixels.
        """
        return self.epochs * ((self.image_size or USUAL_SIZE) / USUAL_SIZE) ** 2

    def probability(self, target: float) -> float:
        """Return the probability that a run reaches an accuracy.

        >>> result = usual("resnet50", "imagenet")
        >>> result.probability(0.75) > 0.99, result.probability(0.78) < 0.01
        (True, True)
        """
        spread = math.hypot(SPREAD, self.std or 0.0)
        return float(normal_probability((self.accuracy - target) / spread))


@dataclass(frozen=True)
class Ceiling:
    """The best published top-1 on a data set. `extra_data`: whether the network was trained on other images before."""

    data: str
    accuracy: float
    extra_data: bool
    source: str
    tag: str


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((resources.files("chronograd") / "known_results.toml").read_text(encoding="utf-8"))


@cache
def _results() -> tuple[KnownResult, ...]:
    rows: list[dict[str, Any]] = [{**recipe, **one} for recipe in _table()["recipe"] for one in recipe["results"]]
    for row in rows:
        del row["results"]
        row |= {key: tuple(row.get(key, ())) for key in ("networks", "beyond")}
    return tuple(KnownResult(**row) for row in rows)


def known(network: str, data: str) -> list[KnownResult]:
    """Return results of a network on a data set, `imagenet:PATH` as `imagenet`, the most accurate first.

    >>> [one.name for one in known("torchvision:resnet50", "imagenet:/data")][:2]
    ['torchvision v2', 'ResNet strikes back A1']
    """
    found = [one for one in _results() if network in one.networks and data.partition(":")[0] == one.data]
    return sorted(found, key=lambda one: -one.accuracy)


def usual(network: str, data: str) -> KnownResult | None:
    """Return the result of the usual recipe of a network on a data set, the first in the table; None if there is none.

    >>> usual("torchvision:resnet50", "imagenet").name
    'torchvision v1'
    """
    set_name = data.partition(":")[0]
    return next((one for one in _results() if network in one.networks and one.data == set_name), None)


def that_reach(network: str, data: str, target: float, least: float = 0.5) -> list[KnownResult]:
    """Return the results that reach an accuracy with a probability of at least `least`, sorted by work.

    For equal work the larger batch comes first.
    """
    enough = [one for one in known(network, data) if one.probability(target) >= least]
    return sorted(enough, key=lambda one: (one.cost, -one.most_samples))


def cheapest(network: str, data: str, target: float, least: float = 0.5) -> KnownResult | None:
    """Return the first of `that_reach`; None if no known recipe reaches the accuracy.

    >>> cheapest("resnet50", "imagenet", 0.77).name, cheapest("resnet50", "imagenet", 0.85)
    ('FFCV rn50, 40 epochs', None)
    """
    return next(iter(that_reach(network, data, target, least)), None)


def neighbours(network: str, data: str) -> list[KnownResult]:
    """Return results of other networks of the same family on a data set, those of the nearest size first.

    Size is the number or word in the name: 26 of `resnet26` is nearer to 34 than to 101. Empty for a network without a known
    family.

    >>> [one.networks[0] for one in neighbours("timm:resnet26", "imagenet")][0]
    'torchvision:resnet34'
    """
    family = family_of(network)
    if family is None:
        return []

    def distance(one: KnownResult) -> float:
        same_library = [name for name in one.networks if name.partition(":")[0] == network.partition(":")[0]]
        return min(abs(_size(network) - _size(name)) for name in same_library or one.networks)

    found = [one for one in _results() if one.data == data.partition(":")[0] and network not in one.networks]
    return sorted(
        (one for one in found if family_of(one.networks[-1]) == family), key=lambda o: (distance(o), -o.accuracy)
    )


def family_of(network: str) -> str | None:
    """Return the family of a network by its name; None if the name does not show it.

    >>> family_of("timm:maxvit_tiny_tf_224"), family_of("torchvision:wide_resnet50_2"), family_of("my_net.py:Net")
    ('maxvit', 'resnet', None)
    """
    library, colon, name = network.partition(":")
    if colon and library not in ("torchvision", "timm"):
        return None
    parts = FAMILIES.items()
    return next((family for family, signs in parts if any(sign in (name or library) for sign in signs)), None)


def _size(network: str) -> float:
    """Return the log of a network's size from its name: the number, such as a depth, or 2 to the rank of its size word."""
    name = re.sub(r"v\d+(?=_|$)", "", network.rpartition(":")[2])
    letter = re.search(r"_([tsblh])(?:_\d+)?$", name)
    words = [LETTERS[letter[1]]] if letter else [part for part in name.split("_") if part in SIZES]
    if words:
        return math.log(2) * SIZES.index(words[0])
    number = re.search(r"(\d+)(mf)?", name)
    return math.log(1 + float(number[1]) / (1000 if number[2] else 1)) if number else 0.0


def ceiling(data: str, *, extra_data: bool = False) -> tuple[float, str] | None:
    """Return the best published top-1 on a data set and its source; None if none is known.

    Args:
        extra_data: include networks trained on other images before, such as pretrained ones. The result may still be one
            without extra data, if that is higher or the only one known.

    >>> ceiling("imagenet"), ceiling("imagenet", extra_data=True)[0]
    ((0.883, 'ViT-H at 448 pixels, PeCo, arXiv 2111.12710, without extra data'), 0.911)
    """
    rows = [Ceiling(**row) for row in _table()["ceiling"] if row["data"] == data.partition(":")[0]]
    best = max((row for row in rows if extra_data or not row.extra_data), key=lambda row: row.accuracy, default=None)
    if best is None:
        return None
    return best.accuracy, f"{best.source}, {'with' if best.extra_data else 'without'} extra data"


def data_of(network: str) -> str | None:
    """Return the data set with known results of a network; None without results.

    >>> data_of("resnet20"), data_of("lenet5")
    ('cifar10', None)
    """
    return next((one.data for one in _results() if network in one.networks), None)


def of_job(job: Job) -> KnownResult | None:
    """Return the best result of the recipe that a job follows, with at most the job's epochs; None if it follows none.

    A job follows a recipe if it has the same update rule, schedule, label smoothing, augmentation and image size. Rate, weight
    decay and batch are not compared: the first is scaled with the last.
    """
    return next((one for one in known(job.network.name, job.data.name) if _follows(job, one)), None)


def _follows(job: Job, result: KnownResult) -> bool:
    own = result.schedule
    names = ("optimizer", "momentum", "schedule", "trainable", "label_smoothing", "augmentation")
    is_size = result.image_size is None or (job.data.image_size or USUAL_SIZE) >= result.image_size
    is_same = all(getattr(job.training, name) == getattr(own, name) for name in names)
    return job.training.epochs >= result.epochs and is_size and is_same
