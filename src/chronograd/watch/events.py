"""TensorBoard events of runs: check whether a run has them, and write them again."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from chronograd.rundir import RunDir, listing


def has_events(path: str | os.PathLike[str]) -> bool:
    """Return whether a run has events that can be continued here."""
    return any(Path(path).glob("**/tensorboard")) and importlib.util.find_spec("tensorboard") is not None


def write_events(run: RunDir) -> list[Path]:
    """Write the events of a run, or of each of its seeds, replacing earlier ones. Returns their folders."""
    from chronograd.watch import tensorboard  # an extra

    runs = [RunDir.open(path) for path in listing.seeds_of(run.path)] or [run]
    return [tensorboard.write_events(one) for one in runs]
