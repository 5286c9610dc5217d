"""Functions that the cells of all problems use. `pE_K.py` has the cells of problem K of exercise E.

A line `# %% QUESTION Comment.` begins a cell that answers a question. Such a cell needs only the first cell of its file.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from chronograd.answer import Answer, Table
from chronograd.errors import InputError
from chronograd.job import Data
from chronograd_lab.common.results import Results, Settings
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.exercises.cells import DATA
from chronograd_lab.studies import find

LOGS = Path("logs")  # next to a notebook: logs of others that a study reads, and those of the runs here
RUNS = Path("runs")
SMALL = "smoke"
_REPORTED: set[str] = set()  # studies whose missing data are reported
_TRAINED: dict[tuple[Path, str, str], Results] = {}  # by folder, study and changes


def results(study: str) -> Results:
    """Return the results of a study."""
    return Results.load(DATA / f"{study}.json")


def trained(study: str, **changes: Any) -> Results:
    """Train a study at its small size, by the function that made its `results`. Finished runs in the folder `runs` stay.

    Cells that ask for the same study share its results.

    Args:
        changes: of the settings of the small size, such as fewer learning rates.
    """
    asked = Path.cwd(), study, json.dumps(changes, sort_keys=True)
    if asked not in _TRAINED:
        _TRAINED[asked] = _conducted(study, changes)
    return _TRAINED[asked]


def _conducted(study: str, changes: Settings) -> Results:
    conducted = find(study)
    size = results(study).size
    missing = [name for name in data_names(conducted.sizes[size]) if not _is_available(name)]
    if missing and study not in _REPORTED:
        print(
            f"Size {size} needs {', '.join(missing)}, not available here. Size {SMALL} generates its data or has packaged ones."
        )
    _REPORTED.add(study)
    runner = StudyRunner(RUNS / study, study, SMALL, print)
    return conducted.conduct(runner, {**conducted.sizes[SMALL], **changes})


def data_names(settings: Mapping[str, Any], parent: str = "") -> Iterator[str]:
    """Yield the data sets that the settings of a study name."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from data_names(value, key)
        elif isinstance(value, str) and (key == "data" or (key == "name" and parent not in ("network", "student"))):
            yield value


def _is_available(data: str) -> bool:
    from chronograd.data import datasets

    try:
        datasets.card(Data(name=data))
    except InputError:
        return False
    return True


@cache
def _page(study: str) -> Answer:
    return find(study).page_or_plain(results(study))


def evidence(study: str, title: str) -> Any:
    """Return the figure of a section of a study's page, or its table if it has no figure."""
    from chronograd.report import plots

    section = next(section for section in _page(study).sections if section.title == title)
    if section.figure is not None:
        return plots.draw(section.figure)
    return section.table if section.table is not None else Table((), ())


def plot(lines: Mapping[str, Mapping[Any, Any]], x: str, y: str, scale: str = "linear") -> None:
    """Draw lines with their names in a new figure. A line maps x to y."""
    axes = plt.subplots()[1]
    for name, line in lines.items():
        axes.plot(list(line), list(line.values()), ".-", label=name)
    axes.set(xlabel=x, ylabel=y, xscale=scale, yscale=scale)
    axes.legend()


def image(png: str) -> np.ndarray:
    """Return a stored picture, shape (height, width, RGB or grey), from 0 to 1."""
    return np.array(plt.imread(io.BytesIO(base64.b64decode(png))))


def show(images: Mapping[str, np.ndarray], columns: int = 4) -> None:
    """Draw images with their names in a new figure."""
    plt.figure(figsize=(10, 5))
    for number, (name, pixels) in enumerate(images.items(), 1):
        axes = plt.subplot(-(-len(images) // columns), columns, number, title=name)
        axes.imshow(pixels, cmap="gray")
        axes.axis("off")
