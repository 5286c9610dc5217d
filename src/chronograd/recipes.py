"""Recipes: named functions that return the fields of a training configuration.

A job file names one (`training.recipe`) and overrides fields. A new recipe is a new function here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any

from chronograd.errors import NotFoundError

Recipe = Callable[[], dict[str, Any]]


def sgd() -> dict[str, Any]:
    """Return plain stochastic gradient descent with a constant learning rate."""
    return {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}


def sgd_momentum() -> dict[str, Any]:
    """Return SGD with momentum 0.9 and weight decay 1e-4, learning rate 0.1, constant."""
    return {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "constant"}


def sgd_one_cycle() -> dict[str, Any]:
    """Return SGD with Nesterov momentum; the rate rises for a fifth of the run, then falls to zero, both linearly.

    Source: L. N. Smith and N. Topin, Super-Convergence, 2017; weight decay 5e-4 as in DAWNBench entries.
    """
    return {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "schedule": "one_cycle",
    }


def cifar_resnet() -> dict[str, Any]:
    """Return the CIFAR recipe of He et al. 2015, section 4.2: rate 0.1, divided by ten after 1/2 and 3/4 of the run."""
    return {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "multi_step",
        "milestones": [0.5, 0.75],
        "gamma": 0.1,
    }


def imagenet_step() -> dict[str, Any]:
    """Return the ImageNet recipe of torchvision's reference: batch 256, 90 epochs, rate 0.1, divided by ten after 1/3 and 2/3.

    Crops of 8 to 100 % of the area, and flips. Source: references/classification of pytorch/vision.
    """
    return {
        **cifar_resnet(),
        "milestones": [0.3333, 0.6667],
        "batch": 256,
        "epochs": 90,
        "augmentation": {"resized_crop": 0.08, "flip": True},
    }


def cifar_augmented() -> dict[str, Any]:
    """Return the recipe of He et al. with the augmentation of the same section: crops after a padding of 4, and flips."""
    return {**cifar_resnet(), "augmentation": {"crop": 4, "flip": True}}


def cutout() -> dict[str, Any]:
    """Return the CIFAR-10 recipe of DeVries and Taylor, arXiv 1708.04552: a 16 × 16 square cut out; batch 128, 200 epochs.

    The rate drops to a fifth after 60, 120 and 160 epochs.
    """
    return {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "schedule": "multi_step",
        "milestones": [0.3, 0.6, 0.8],
        "gamma": 0.2,
        "batch": 128,
        "epochs": 200,
        "augmentation": {"crop": 4, "flip": True, "cutout": 16},
    }


def batch_augmentation() -> dict[str, Any]:
    """Return the recipe for ResNet-44 on CIFAR-10 of Hoffer et al., arXiv 1901.09335: batch 64, 100 epochs, cutout.

    The number of copies is left to the job. The source's rate drops after 81, 122 and 164 of 200 epochs. We assume that these
    points scale with the length of the run.
    """
    return {
        **cifar_resnet(),
        "milestones": [0.405, 0.61, 0.82],
        "batch": 64,
        "epochs": 100,
        "augmentation": {"crop": 4, "flip": True, "cutout": 16},
    }


def fine_tuning() -> dict[str, Any]:
    """Return fine-tuning: all layers from pretrained weights at a low rate; batch 64, 200 epochs, a tenth after 60, 120 and
    180.
    """
    return {**cifar_resnet(), "learning_rate": 0.01, "milestones": [0.3, 0.6, 0.9], "batch": 64, "epochs": 200}


def feature_extraction() -> dict[str, Any]:
    """Return the training of a new last layer on a fixed network, at a high rate, with the schedule of fine-tuning."""
    return {**fine_tuning(), "learning_rate": 0.1, "trainable": "head"}


def adadelta() -> dict[str, Any]:
    """Return Adadelta as Zeiler published it: rate 1, rho 0.95; arXiv 1212.5701."""
    return {"optimizer": "adadelta", "learning_rate": 1.0, "momentum": 0.95, "weight_decay": 0.0}


def fast_cifar() -> dict[str, Any]:
    """Return our fastest training to 94 % on CIFAR-10, for `resnet9`: one cycle, bf16, channels-last, EMA.

    Network and schedule after D. Page, How to train your ResNet, 2018 (24 epochs, batch 512).
    """
    return {
        **sgd_one_cycle(),
        "learning_rate": 0.4,
        "batch": 512,
        "epochs": 24,
        "label_smoothing": 0.2,
        "precision": "bf16",
        "channels_last": True,
        "ema_decay": 0.99,
        "augmentation": {"crop": 4, "flip": True, "cutout": 8},
    }


def adamw() -> dict[str, Any]:
    """Return AdamW at 1e-3 with weight decay 0.01 and a cosine schedule after a tenth of warm-up."""
    return {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "warmup": 0.1,
    }


def large_model() -> dict[str, Any]:
    """Return AdamW in bf16 mixed precision, the usual training of large models."""
    return {**adamw(), "precision": "bf16"}


def adam() -> dict[str, Any]:
    """Return Adam at a constant 1e-3: AdamW without decay."""
    return {"optimizer": "adamw", "learning_rate": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "schedule": "constant"}


def dqn() -> dict[str, Any]:
    """Return RMSProp with minibatches of 32, as in Mnih et al. 2015 on Atari; 200 epochs of 250,000 steps are their 200M
    frames.
    """
    return {
        "optimizer": "rmsprop",
        "learning_rate": 2.5e-4,
        "momentum": 0.95,
        "weight_decay": 0.0,
        "schedule": "constant",
        "batch": 32,
        "epochs": 200,
    }


RECIPES: dict[str, Recipe] = {
    "sgd": sgd,
    "sgd-momentum": sgd_momentum,
    "sgd-one-cycle": sgd_one_cycle,
    "cifar-resnet": cifar_resnet,
    "cifar-augmented": cifar_augmented,
    "imagenet-step": imagenet_step,
    "cutout": cutout,
    "batch-augmentation": batch_augmentation,
    "fine-tuning": fine_tuning,
    "feature-extraction": feature_extraction,
    "fast-cifar": fast_cifar,
    "adamw": adamw,
    "large-model": large_model,
    "adam": adam,
    "adadelta": adadelta,
    "dqn": dqn,
}

# Fields of a job's section `reinforcement`, by algorithm, that differ from the 2015 paper.
_ALGORITHMS = (resources.files("chronograd") / "algorithms.toml").read_text(encoding="utf-8")
ALGORITHMS: dict[str, dict[str, Any]] = tomllib.loads(_ALGORITHMS)
# Schaul et al. 2016, arXiv:1511.05952, table 3: values that differ from proportional replay, 0.6 and 0.4.
REPLAYS: dict[str, dict[str, Any]] = {"rank": {"priority_exponent": 0.7, "importance_exponent": 0.5}}
# Algorithms with several processes.
DISTRIBUTED = ("gorila", "apex")


def recipe(name: str) -> dict[str, Any]:
    """Return the fields of a recipe by name. Raises NotFoundError.

    >>> recipe("sgd-momentum")["momentum"]
    0.9
    """
    if name not in RECIPES:
        raise NotFoundError("recipe", name, RECIPES)
    return RECIPES[name]()
