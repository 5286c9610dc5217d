"""What a data set is, without its data; and where data sets lie on disk."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER_VARIABLE = "CHRONOGRAD_DATA"


@dataclass(frozen=True)
class DatasetCard:
    """What a data set is.

    Attributes:
        shape: of one image as a network gets it: channels, height, width.
        train_size: training images used, after `data.samples`, `data.skip` and `data.labels`.
        source: who published it, or the folder it is read from.
    """

    name: str
    shape: tuple[int, int, int]
    num_classes: int
    class_names: tuple[str, ...]
    train_size: int
    test_size: int
    source: str


def data_folder() -> Path:
    """Where data sets lie on disk: $CHRONOGRAD_DATA, else the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("chronograd")) / "data"
