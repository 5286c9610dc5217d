"""The source of an export: the network of a run with its trained weights, or one by name, and its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from chronograd import job as jobs
from chronograd.count.calls import Called
from chronograd.count.network import call_of
from chronograd.data import catalogue, datasets
from chronograd.data.augment import normalise
from chronograd.data.datasets import Dataset
from chronograd.data.normalisation import scale_shift
from chronograd.data.published import DatasetCard
from chronograd.data.text import is_drawn
from chronograd.deploy.parity import BOXES, Samples
from chronograd.errors import InputError, JobError, RunError
from chronograd.job import Job
from chronograd.models import pretrained, registry
from chronograd.models.pretrained import Pretrained
from chronograd.models.weights import load_pretrained
from chronograd.rundir import RunDir
from chronograd.train.inputs import InputSplit, input_of

# The largest pixel value of a set that is not on disk: all but `digits` have eight bits, and `digits` is always available.
TOP = 255
CPU = torch.device("cpu")


@dataclass(frozen=True)
class ExportSource:
    """A network with its weights, on the CPU and in evaluation mode.

    Attributes:
        name: of the run or network, as the user wrote it. weights: their description.
        dataset: its training data, if on disk; else `why_no_data`.
        network: a `Called` if it takes its own inputs rather than samples of a data set.
    """

    name: str
    job: Job
    network: nn.Module
    weights: str
    card: DatasetCard
    dataset: Dataset | None
    why_no_data: str

    @property
    def own_inputs(self) -> Called | None:
        """Return the network if it takes its own inputs."""
        return self.network if isinstance(self.network, Called) else None

    @property
    def is_text(self) -> bool:
        return self.job.is_text

    @property
    def is_detector(self) -> bool:
        """Return whether it returns scores and boxes, before non-maximum suppression."""
        return BOXES in getattr(self.network, "output_names", ())

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes: those of the data set, or of listed weights if the data are synthetic."""
        listed = self._listed.classes if self._listed is not None else None
        return listed if listed is not None and len(listed) == self.card.num_classes else self.card.class_names

    @property
    def _listed(self) -> Pretrained | None:
        """Return the facts about the weights if they are listed, and the data are synthetic and state nothing."""
        is_synthetic = self.dataset is None and self.job.data.name == "synthetic"
        return pretrained.known(Path(self.job.network.weights or "").name) if is_synthetic else None

    @property
    def top(self) -> int:
        """Return the largest value of a pixel."""
        return TOP if self.dataset is None else self.dataset.top

    def scale_shift(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return scale and shift of the input, `pixel * scale - shift` per channel; None if they depend on missing pixels."""
        if self.own_inputs is not None:
            return None
        if self.dataset is not None:
            return self.dataset.scale_C, self.dataset.shift_C
        kind, channels = self.job.data.normalisation, self.card.shape[0]
        if kind == "own" and self._listed is not None and self._listed.normalisation is not None:
            kind = self._listed.normalisation
        return None if kind == "own" else scale_shift(kind, (0.0,) * channels, (1.0,) * channels, TOP)

    def preprocessing(self) -> Preprocessing:
        """Return the normalisation as a module. Raises InputError for text, and if it is unknown."""
        if self.own_inputs is not None:
            raise InputError(f"{self.name} has its own inputs, and no images of a data set", "leave preprocessing out")
        if self.is_text:
            raise InputError(f"{self.name} takes tokens, which need no preprocessing", "leave preprocessing out")
        both = self.scale_shift()
        if both is None:
            raise InputError(
                f"images of {self.job.data.name} are normalised by their own mean and deviation, and {self.why_no_data}",
                "write data.normalisation=imagenet, signed, unit or raw, as the weights need it; or leave preprocessing out",
            )
        return Preprocessing(*both)

    def random(self, count: int, preprocessing: Preprocessing | None, seed: int = 0) -> Samples:
        """Draw random samples: normal numbers, whole numbers in the range of a pixel, or uniform tokens of the vocabulary."""
        if self.own_inputs is not None:
            values = self.own_inputs.values(count, seed)
            return Samples("random", values, values)
        drawn = torch.Generator().manual_seed(seed)
        shape = (count, *self.card.shape)
        if self.is_text:
            fed = torch.randint(0, self.card.num_classes, shape, generator=drawn)
        elif preprocessing is not None:
            fed = torch.randint(0, self.top + 1, shape, generator=drawn, dtype=torch.uint8)
            return Samples("random", fed, preprocessing.reference(fed))
        else:
            fed = torch.randn(shape, generator=drawn)
        return Samples("random", fed, fed)

    def real(self, count: int, preprocessing: Preprocessing | None) -> Samples | None:
        """Return the first samples of the test split; None if it is not available."""
        if self.dataset is None:
            return None
        seen = self.test_input()
        numbers = np.arange(min(count, len(seen)))
        raw = seen.gather(numbers)
        prepared = seen.prepare(raw)
        return Samples(self.job.data.name, prepared if preprocessing is None else raw, prepared)

    def test_input(self) -> InputSplit:
        """Return the test split as input of the network. The data set must be on disk."""
        assert self.dataset is not None
        return input_of(self.dataset.test, self.dataset, CPU)

    def train_input(self) -> InputSplit:
        """Return the training split as input of the network, not augmented. The data set must be on disk."""
        assert self.dataset is not None
        return input_of(self.dataset.train, self.dataset, CPU)


class Preprocessing(nn.Module):
    """Normalisation of whole-numbered pixels to the network's input, `pixel * scale - shift` per channel."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale_C: Sequence[float], shift_C: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale_C, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("shift", torch.tensor(shift_C, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        return pixels_NCHW.to(torch.float32) * self.scale - self.shift

    def reference(self, pixels_NCHW: Tensor) -> Tensor:
        """Return the same from the function that training uses."""
        return normalise(pixels_NCHW, self.scale.flatten(), self.shift.flatten())


class Preprocessed(nn.Module):
    """A network after its preprocessing."""

    def __init__(self, preprocessing: Preprocessing, network: nn.Module) -> None:
        super().__init__()
        self.preprocessing, self.network = preprocessing, network
        self.output_names = getattr(network, "output_names", None)

    def forward(self, pixels_NCHW: Tensor) -> Tensor:
        return self.network(self.preprocessing(pixels_NCHW))  # type: ignore[no-any-return]


def of_run(run: RunDir, fields: Sequence[str] = ()) -> ExportSource:
    """Return the network of a run with its newest weights; fields of its data may change, such as data.test_samples.

    Raises: JobError for another field; as `load_pretrained` where the run has no sound checkpoint.
    """
    others = [field for field in fields if not field.strip().startswith("data.")]
    if others:
        raise JobError(
            f"cannot change {others[0]!r} here: `export` exports the network of {run.path.name}",
            "write data.FIELD=VALUE, such as data.test_samples=1000",
        )
    asked = jobs.changed(run.job(), fields) if fields else run.job()
    return _source(asked, str(run.path), str(run.path), is_own=True)


def of_job(asked: Job, name: str) -> ExportSource:
    """Return the network of a job with its initial weights, or those of `network.weights`."""
    return _source(asked, name, asked.network.weights, is_own=False)


def _source(asked: Job, name: str, weights: str | None, is_own: bool) -> ExportSource:
    card = datasets.card(asked.data)
    datasets.check_task(asked, card)
    torch.manual_seed(asked.training.seed)
    is_own_input = asked.data.name == jobs.INPUTS
    network = registry.build(
        asked.network.name,
        asked.network.options,
        input_shape=None if is_own_input else card.shape,
        num_classes=card.num_classes or None,
    )
    loaded = f"initial weights of seed {asked.training.seed}"
    if weights is not None:
        loaded = load_pretrained(network, weights, asked.network.name).source
        loaded = loaded.replace(weights, Path(weights).name)  # the local folder does not concern others
    network = network.requires_grad_(False).eval()
    if is_own_input:
        call = call_of(network, asked.network.inputs, asked.network.name)
        return ExportSource(
            name,
            asked,
            Called(network, call).eval(),
            loaded,
            card,
            None,
            "no data set has samples of this network's inputs",
        )
    dataset, why_not = _dataset(asked, is_own)
    return ExportSource(name, asked, network, loaded, card, dataset, why_not)


def _dataset(asked: Job, is_own: bool) -> tuple[Dataset | None, str]:
    """Return the data set of a job, or why there is none. A randomly drawn set counts only for a run that was trained on it."""
    name = asked.data.name
    if (name == "synthetic" or is_drawn(asked.data)) and not is_own:
        return None, f"{name} is drawn at random, like random inputs"
    if name in catalogue.sets():
        return None, catalogue.without_data(name).message
    try:
        return datasets.load(asked.data, asked.training.seed), ""
    except RunError as error:
        return None, error.message
