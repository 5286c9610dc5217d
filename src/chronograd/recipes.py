"""Recipes: named functions that return the fields of a training configuration.

A job file names one (`training.recipe`) and overrides fields. A new recipe is a new function here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chronograd.errors import NotFoundError

Recipe = Callable[[], dict[str, Any]]


def sgd() -> dict[str, Any]:
    """Plain stochastic gradient descent with a constant learning rate."""
    return {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0, "schedule": "constant"}


def sgd_momentum() -> dict[str, Any]:
    """SGD with momentum 0.9 and weight decay 1e-4, learning rate 0.1, constant."""
    return {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "schedule": "constant"}


def sgd_one_cycle() -> dict[str, Any]:
    """SGD with Nesterov momentum; the rate rises for a fifth of the run, then falls to zero, both linearly.

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
    """The CIFAR recipe of He et al. 2015, section 4.2: 0.1, divided by ten after 1/2 and 3/4 of the run."""
    return {
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "schedule": "multi_step",
        "milestones": [0.5, 0.75],
        "gamma": 0.1,
    }


def adamw() -> dict[str, Any]:
    """AdamW at 1e-3 with weight decay 0.01 and a cosine schedule after a tenth of warm-up."""
    return {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "schedule": "cosine",
        "warmup": 0.1,
    }


RECIPES: dict[str, Recipe] = {
    "sgd": sgd,
    "sgd-momentum": sgd_momentum,
    "sgd-one-cycle": sgd_one_cycle,
    "cifar-resnet": cifar_resnet,
    "adamw": adamw,
}


def recipe(name: str) -> dict[str, Any]:
    """Fields of a recipe by name. Raises NotFoundError.

    >>> recipe("sgd-momentum")["momentum"]
    0.9
    """
    if name not in RECIPES:
        raise NotFoundError("recipe", name, RECIPES)
    return RECIPES[name]()
