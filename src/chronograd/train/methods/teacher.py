"""Teacher and student: a teacher labels images without labels, and a student learns from the best of each class.

The four steps of I. Z. Yalniz et al., Billion-scale semi-supervised learning, arXiv 1905.00546:

    1. train a teacher on labelled images                      chronograd train teacher.yaml
    2. select its P best classes of each unlabelled image,     chronograd label RUN ...
       and for each class the K images with the best scores
    3. train a student on those                                chronograd train student.yaml data.labels=FILE
    4. fine-tune the student on the labelled images            chronograd train tune.yaml network.weights=RUN

An image may be selected for several classes. A class has fewer than K images if fewer have it among their P best.

Shapes: N images, K classes; P best classes of an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chronograd.errors import InputError
from chronograd.job import Data, Job
from chronograd.rundir import RunDir
from chronograd.words import how_many

if TYPE_CHECKING:
    import torch

    from chronograd.data.datasets import Dataset
    from chronograd.train.inputs import InputSplit

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Selection:
    """The selected images, each with its class; an image may come more than once.

    `score` is the teacher's probability of that class.
    """

    sample: Array
    label: Array
    score: Array

    def times(self) -> Array:
        """Return the number of classes of each distinct selected image."""
        return np.asarray(np.unique(self.sample, return_counts=True)[1])


def select(
    samples: Array, probability_NK: Array, top_classes: int, per_class: int, is_balanced: bool = True
) -> Selection:
    """Select the `per_class` images with the best scores of each class, among those that have it in their `top_classes`
    best.

    Classes come in order, best images first. Ties go to the earlier image, and within an image to the earlier class.

    Args:
        samples: numbers of the N images. top_classes: P. per_class: maximum number for each class.
        is_balanced: if false, select the same total number by score alone, of any class.

    Raises: InputError for numbers below 1 or more classes than exist.

    >>> kept = select(np.array([7, 8, 9]), np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), 1, 1)
    >>> kept.sample.tolist(), kept.label.tolist()
    ([7, 9], [0, 1])
    """
    num_images, num_classes = probability_NK.shape
    if not 1 <= top_classes <= num_classes or per_class < 1:
        raise InputError(
            f"cannot select {how_many(per_class, 'images')} per class of the {top_classes} best classes",
            f"write at least 1 for each, and at most the {how_many(num_classes, 'classes')} there are",
        )
    label = np.argsort(-probability_NK, axis=1, kind="stable")[:, :top_classes].ravel()
    image = np.repeat(np.arange(num_images), top_classes)
    score = probability_NK[image, label]
    if not is_balanced:
        best = np.argsort(-score, kind="stable")[: per_class * num_classes]
        image, label, score = image[best], label[best], score[best]
    order = np.lexsort((-score, label))
    label = label[order]
    place_in_class = np.arange(len(label)) - np.searchsorted(label, label)
    if is_balanced:
        order, label = order[place_in_class < per_class], label[place_in_class < per_class]
    return Selection(samples[image[order]], label.astype(np.int64), score[order])


def probabilities(
    run: RunDir, data: Data, seed: int | None = None, split: Literal["train", "test"] = "train"
) -> tuple[Array, Array]:
    """Classify the images of a data set with a trained network: samples (N,) and probabilities (N, K).

    The images are normalised as in the network's training. The labels of `data` are not used. Arithmetic is float32.

    Args:
        seed: of `datasets.load`; the run's own by default.
        split: samples of the training split have their published numbers, and each comes once. Those of the test split are
            numbered among the test images of `data`.

    Raises: InputError for images of another shape than the network was trained on, and for a network with outputs that are not
    finite; as `datasets.load`, and as `load_pretrained` where the run has no sound checkpoint.
    """
    return probabilities_of(network_of(run), run.job(), run.path.name, data, seed, split)


def probabilities_of(
    network: torch.nn.Module,
    job: Job,
    name: str,
    data: Data,
    seed: int | None = None,
    split: Literal["train", "test"] = "train",
) -> tuple[Array, Array]:
    """Do the same for a network in evaluation mode with the weights of a job; errors call it `name`."""
    from chronograd.data import datasets
    from chronograd.data.normalisation import scale_shift
    from chronograd.train.inputs import ImageInput

    shape = datasets.card(job.data).shape
    seed = job.training.seed if seed is None else seed
    images = datasets.load(data, seed)
    if shape != images.card.shape:
        raise InputError(
            f"{name} was trained on images of {_shown(shape)}; these are {_shown(images.card.shape)}",
            f"write data.image_size={shape[2]}" if shape[0] == images.card.shape[0] else "name another data set",
        )
    kind = job.data.normalisation
    is_other = kind == "own" and (data, seed) != (job.data, job.training.seed)
    own = datasets.load(job.data, job.training.seed) if is_other else images
    scale_C, shift_C = scale_shift(kind, own.mean_C, own.std_C, images.top)
    device = next(network.parameters()).device
    part = images.train if split == "train" else images.test
    seen = ImageInput(part, replace(images, scale_C=scale_C, shift_C=shift_C), device, job.training.channels_last)
    samples = images.train_samples_N if split == "train" else np.arange(len(part))
    positions = np.sort(np.unique(samples, return_index=True)[1])
    probability_NK = softmax_of(network, seen, positions)
    if not np.isfinite(probability_NK).all():
        raise InputError(f"the outputs of {name} are not finite", "train it again at a lower learning rate")
    return samples[positions], probability_NK


def network_of(run: RunDir) -> torch.nn.Module:
    """Return the network of a run with its newest weights, in evaluation mode, on a GPU if possible."""
    from chronograd.data import datasets
    from chronograd.train.heads import network_with

    job = run.job()
    card = datasets.card(job.data)
    return network_with(job, str(run.path), card.shape, card.num_classes)[0]


def softmax_of_run(run: RunDir, dataset: Dataset, split: Literal["train", "test"]) -> Array:
    """Return probabilities (N, K) for all images of a split, normalised as in the run."""
    from chronograd.train.inputs import ImageInput

    network = network_of(run)
    part = dataset.train if split == "train" else dataset.test
    device = next(network.parameters()).device
    return softmax_of(network, ImageInput(part, dataset, device, run.job().training.channels_last))


def softmax_of(network: torch.nn.Module, seen: InputSplit, positions: Array | None = None) -> Array:
    """Return probabilities (N, K) for all samples of an input, or those at N positions; float32."""
    import torch

    from chronograd.train.inputs import in_chunks

    device = next(network.parameters()).device
    wanted = np.arange(len(seen)) if positions is None else positions
    with torch.no_grad():
        rows = [torch.softmax(network(images).float(), dim=1).cpu() for _, images in in_chunks(seen, wanted, device)]
    return np.asarray(torch.cat(rows).numpy())


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
