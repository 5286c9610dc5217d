"""What published training runs reached: whether a recipe gets to a target, in how many epochs, and up to which batch.

The table is `known_results.toml`. It tells a plan whether a goal is reached, and gives a job its recipe where only a network and
a data set were named.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from scipy.special import ndtr

from chronograd.job import Job, Training

# Of a result without a published spread: between seeds, and between implementations of one recipe.
SPREAD = 0.003


@dataclass(frozen=True)
class KnownResult:
    """One published result.

    Attributes:
        networks: names of jobs that mean this network. data: name of the set, without a path.
        accuracy: top-1, as a fraction. std: between runs, where it is published.
        epochs, batch: of the run. largest_batch: with which the same epochs were seen to reach it.
        training: fields of a job's training that are the recipe.
        weights: torchvision's name of what it trained, where its documentation states the accuracy.
    """

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
    weights: str = ""
    schedule: Training = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", Training(**self.fields))

    @property
    def fields(self) -> dict[str, Any]:
        """Of a job's training: the recipe, its epochs and its batch."""
        return {**self.training, "epochs": self.epochs, "batch": self.batch}

    @property
    def most_samples(self) -> int:
        """The largest batch at which the epochs are known to be enough."""
        return self.largest_batch or self.batch

    def probability(self, target: float) -> float:
        """That a run of it reaches an accuracy.

        >>> best = known("resnet50", "imagenet")[0]
        >>> best.probability(0.75) > 0.99, best.probability(0.78) < 0.01
        (True, True)
        """
        spread = math.hypot(SPREAD, self.std or 0.0)
        return float(ndtr((self.accuracy - target) / spread))


@cache
def _results() -> tuple[KnownResult, ...]:
    text = (resources.files("chronograd") / "known_results.toml").read_text(encoding="utf-8")
    rows = tomllib.loads(text)["result"]
    return tuple(KnownResult(**{**row, "networks": tuple(row["networks"])}) for row in rows)


def known(network: str, data: str) -> list[KnownResult]:
    """Results of a network on a data set, `imagenet:PATH` as `imagenet`, the most accurate first.

    >>> known("torchvision:resnet50", "imagenet:/data")[0].largest_batch
    8192
    """
    found = [one for one in _results() if network in one.networks and data.partition(":")[0] == one.data]
    return sorted(found, key=lambda one: -one.accuracy)


def data_of(network: str) -> str | None:
    """The data set on which results of a network are known; None where there are none.

    >>> data_of("resnet20"), data_of("lenet5")
    ('cifar10', None)
    """
    return next((one.data for one in _results() if network in one.networks), None)


def of_job(job: Job) -> KnownResult | None:
    """The best result of the recipe that a job follows: its update rule and its schedule, for as many epochs or more.

    Rate, batch and augmentation are not compared: the first is scaled with the second, and the third moves the accuracy by
    less than the schedule does.
    """
    return next((one for one in known(job.network.name, job.data.name) if _follows(job.training, one)), None)


def _follows(training: Training, result: KnownResult) -> bool:
    own = result.schedule
    names = ("optimizer", "momentum", "schedule", "trainable")
    return training.epochs >= result.epochs and all(getattr(training, name) == getattr(own, name) for name in names)
