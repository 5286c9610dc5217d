"""Functions that the cells of all problems use. `pE_K.py` has the cells of problem K of exercise E.

A line `# %% QUESTION Comment.` begins a cell that answers a question. Such a cell needs only the first cell of its file.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from chronograd_lab.common.results import Results
from chronograd_lab.exercises.cells import DATA


def results(study: str) -> Results:
    """Return the results of a study."""
    return Results.load(DATA / f"{study}.json")


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
