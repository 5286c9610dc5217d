"""The default training of a job if the user names only a network and its data.

It is a published recipe of the network on that data set. Without one, a folder of pictures is fine-tuned from pretrained
weights. Otherwise, the training has the update rule and schedule of a published recipe of the same family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chronograd import known
from chronograd.data.datasets import card
from chronograd.errors import ChronogradError, MissingExtraError
from chronograd.job import Data, Training
from chronograd.known import KnownResult

# A recipe is used for a goal if a run of it reaches the goal with this probability.
ENOUGH = 0.8
USUAL_BATCH = 256
# Recipes of a family are compared on the data set with the most published recipes.
COMMON = "imagenet"
# Batch and epochs of fine-tuning, up to this number of pictures. Assumed: with small batches, a few hundred pictures give some
# hundred steps. PyTorch's transfer learning tutorial trains 244 pictures for 25 epochs.
FINE_TUNING = ((1_000, 16, 20), (10_000, 32, 15), (float("inf"), 64, 10))
# Assumed factors of the epochs and the learning rate of fine-tuning for training from random weights.
FROM_SCRATCH = (3, 10)


@dataclass(frozen=True)
class Usual:
    """A default training.

    Attributes:
        training: fields of a job's training.
        words: its source, such as `as in P. Goyal et al.`.
        has_epochs: whether its epochs come from a source.
        image_size: side of the training images of a recipe; None for that of the data set.
        weights: the `network.weights` to start from, if they are on this machine.
        notes: sentences that a user must know before training.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    words: str = "default; no recipe of this network is known"
    has_epochs: bool = False
    image_size: int | None = None
    weights: str | None = None
    notes: tuple[str, ...] = ()


def usual_training(network: str, data: Data, target: float | None = None, can_download: bool = False) -> Usual:
    """Return the default training of a network on a data set.

    Args:
        can_download: pretrained weights count as available even if they are not on this machine.
        target: accuracy to reach: selects the recipe with the least work that reaches it, else the most accurate one. Without a
            target it is the usual recipe.
    """
    result = _recipe(network, data.name, target)
    if result is not None and target is None and result.batch > USUAL_BATCH:
        # Without a target: the recipe at a global batch of one device, and images of the usual size.
        return Usual(result.fields_at(USUAL_BATCH), f"as in the recipe {result.short}", has_epochs=True)
    if result is not None:
        return Usual(result.fields, f"as in the recipe {result.short}", has_epochs=True, image_size=result.image_size)
    if data.name.startswith("folder:"):
        return fine_tuning(network, data, can_download)
    near = known.neighbours(network, data.name) or [
        *known.known(network, COMMON),
        *known.neighbours(network, COMMON),
    ]
    if near:
        return Usual(near[0].training, f"as for {near[0].networks[0]} in the recipe {near[0].short}")
    if len(data.shape or ()) == 1:
        return Usual({"recipe": "adamw"}, "default of language models")
    return Usual()


def _recipe(network: str, data: str, target: float | None) -> KnownResult | None:
    if target is None:
        return known.usual(network, data)
    reaches = known.cheapest(network, data, target, ENOUGH) or known.cheapest(network, data, target)
    return reaches or next(iter(known.known(network, data)), None)


def fine_tuning(network: str, data: Data, can_download: bool = False) -> Usual:
    """Return fine-tuning of all layers, with batch and epochs for the number of pictures; without weights, longer training."""
    pictures = _num_pictures(data)
    batch, epochs = next((batch, epochs) for most, batch, epochs in FINE_TUNING if pictures <= most)
    batch = max(1, min(batch, pictures // 4))
    rate = 0.01 * batch / 64
    training = {"recipe": "fine-tuning", "batch": batch, "epochs": epochs, "learning_rate": round(rate, 6),
                "augmentation": {"resized_crop": 0.5, "flip": True}}  # fmt: skip
    library, is_cached = _pretrained(network)
    if library is not None and (is_cached or can_download):
        words = f"fine-tuning from pretrained weights of {library}"
        return Usual(training, words, has_epochs=True, weights=library)
    longer, faster = FROM_SCRATCH
    training |= {"epochs": longer * epochs, "learning_rate": round(faster * rate, 6)}
    why = (
        f"{library} has pretrained weights of {network}, but they are not on this machine: write network.weights={library} to "
        "download them"
        if library is not None
        else f"no pretrained weights of {network} are known: choose torchvision:NAME or timm:NAME, or write network.weights=FILE"
    )
    note = f"Training starts from random weights, which needs far more pictures than fine-tuning; {why}."
    return Usual(training, "from random weights", has_epochs=True, notes=(note,))


def _num_pictures(data: Data) -> int:
    """Return the number of training pictures of a folder; 1,000 if it is not on this machine."""
    try:
        return card(data).train_size
    except ChronogradError:
        return 1_000


def _pretrained(network: str) -> tuple[str | None, bool]:
    """Return the library with pretrained weights of a network, and whether they are on this machine."""
    try:
        from chronograd.models.weights import default_weights

        found = default_weights(network)
        return (found.weights, found.path is not None) if found is not None else (None, False)
    except (ImportError, MissingExtraError, ValueError):
        library = network.partition(":")[0]
        return (library if library in ("torchvision", "timm") else None), False


def optimizer_words(training: Training) -> str:
    """Return the name of the update rule of a training.

    >>> optimizer_words(Training()), optimizer_words(Training(recipe="adamw"))
    ('SGD with momentum 0.9', 'AdamW')
    """
    if training.optimizer != "sgd":
        return {"adamw": "AdamW", "adadelta": "Adadelta", "rmsprop": "RMSProp"}[training.optimizer]
    return f"SGD with momentum {training.momentum:g}" if training.momentum else "SGD"
