"""Initial weights of a study: from the user's files, an installed package, a library, or an earlier run of the study."""

from __future__ import annotations

import os

from chronograd.errors import InputError
from chronograd.models import pretrained
from chronograd.models.pretrained import FOLDER_VARIABLE

PRETRAINING = "pretraining"


def weights_file(name: str) -> str:
    """Return the path of a file of weights on this machine (`chronograd weights --list`). Raises InputError if it is missing."""
    path = pretrained.located(name)
    if path is not None:
        return str(path)
    folder, known = os.environ.get(FOLDER_VARIABLE), pretrained.known(name)
    hint = known.how_to_get if known else f"put {name} in a folder and name it in {FOLDER_VARIABLE}"
    what = f"this study starts from weights {name}, and {FOLDER_VARIABLE} names no folder"
    if folder:
        what = f"there are no weights {name} in {folder}, which {FOLDER_VARIABLE} names"
    raise InputError(what, f"{hint}; or run --size smoke, which needs no files")


def source_weights(given: str) -> str:
    """Return `network.weights` for a source: a library's name, a file, or a future run of this study."""
    return given if given in ("torchvision", "timm", PRETRAINING) else weights_file(given)
