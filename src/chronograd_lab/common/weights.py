"""Initial weights of a study: from the user's files, a library, or an earlier run of the study."""

from __future__ import annotations

import os
from pathlib import Path

from chronograd.errors import InputError

WEIGHTS_VARIABLE = "CHRONOGRAD_WEIGHTS"
PRETRAINING = "pretraining"


def weights_file(name: str) -> str:
    """Return the path of a file of weights in the folder CHRONOGRAD_WEIGHTS. Raises InputError if it does not exist."""
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
    """Return `network.weights` for a source: a library's name, a file, or a future run of this study."""
    return given if given in ("torchvision", "timm", PRETRAINING) else weights_file(given)
