"""Weights that a study starts from: files that the user has, a library's, or those of a run of its own."""

from __future__ import annotations

import os
from pathlib import Path

from chronograd.errors import InputError

WEIGHTS_VARIABLE = "CHRONOGRAD_WEIGHTS"
PRETRAINING = "pretraining"


def weights_file(name: str) -> str:
    """Path of a file of weights in the folder that CHRONOGRAD_WEIGHTS names. Raises InputError if it is not there."""
    folder = os.environ.get(WEIGHTS_VARIABLE)
    if not folder:
        raise InputError(
            f"this study starts from weights {name}, and {WEIGHTS_VARIABLE} names no folder",
            f"put {name} in a folder and name it in {WEIGHTS_VARIABLE}, or run --size smoke, which needs no files",
        )
    path = Path(folder).expanduser() / name
    if not path.is_file():
        raise InputError(
            f"there are no weights {name} in {folder}, which {WEIGHTS_VARIABLE} names",
            "put the file there, or run --size smoke, which needs no files",
        )
    return str(path)


def source_weights(given: str) -> str:
    """What `network.weights` is for a source: a library's name, a file, or a run of this study that is yet to come."""
    return given if given in ("torchvision", "timm", PRETRAINING) else weights_file(given)
