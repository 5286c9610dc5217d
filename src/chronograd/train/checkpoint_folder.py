"""A run's folder of checkpoints, whatever framework trains: safetensors and JSON, no pickle. Never imports torch.

    checkpoints/step-00000046/
        model.safetensors        parameters and buffers under the PyTorch network's own names
        optimizer.safetensors    state tensors
        ema.safetensors          the running mean of parameters and buffers, where the job keeps one
        target.safetensors       of an agent: the network that its targets are computed with, and what it remembers
        replay.safetensors
        state.json               where the run is, and the sha256 of the files above

Nothing in a checkpoint is ever executed. It is written into a hidden folder, synced, and renamed. The last two are kept,
so a damaged one leaves another. The state of random generators, of the order of samples and of augmentation is not stored:
it is a function of seed, epoch, step and rank (chronograd.train.order), all of which are here or in the job. So is the
schedule.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from chronograd import files
from chronograd.errors import FileFormatError, RunError
from chronograd.files import digest, disk_full
from chronograd.words import how_many

FORMAT = "chronograd-checkpoint"
VERSION = 1
KEEP = 2
MODEL, OPTIMIZER, EMA = "model.safetensors", "optimizer.safetensors", "ema.safetensors"
TARGET, REPLAY = "target.safetensors", "replay.safetensors"
_FILES = {MODEL, OPTIMIZER, EMA, TARGET, REPLAY}

ALL_EPOCHS = "all epochs were trained"  # the one reason to stop that a larger number of epochs removes


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        step: steps done. `epoch`: epochs done.
        training_time_s: time spent in steps; evaluation and checkpoints left out.
        best_accuracy: on the test split, and after which epoch; None before the first evaluation.
        stopped: why no further epoch is to be trained; empty while it goes on.
    """

    step: int = 0
    epoch: int = 0
    training_time_s: float = 0.0
    best_accuracy: float | None = None
    best_epoch: int | None = None
    stopped: str = ""

    def go_on(self, epochs: int) -> str:
        """Let a run that trained all its epochs train up to `epochs`, if these are more. Returns a note on it, or nothing."""
        if self.stopped != ALL_EPOCHS or self.epoch >= epochs:
            return ""
        self.stopped = ""
        return f"the run had ended after epoch {self.epoch} and was then extended to {how_many(epochs, 'epochs')}"

    @classmethod
    def read(cls, data: Any) -> Self:
        """From a checkpoint's state. Raises TypeError, ValueError."""
        progress = cls(**data)
        counts = (progress.step, progress.epoch, progress.best_epoch or 0)
        amounts = (progress.training_time_s, progress.best_accuracy or 0.0)
        if not all(type(n) is int and 0 <= n < 2**53 for n in counts):
            raise ValueError(
                f"it is at step {progress.step!r} of epoch {progress.epoch!r}, best {progress.best_epoch!r}"
            )
        if not all(type(n) in (int, float) and n >= 0 for n in amounts) or not isinstance(progress.stopped, str):
            raise ValueError(f"its progress is {data!r:.200}")
        return progress


def write(folder: Path, progress: Progress, files: Mapping[str, Callable[[Path], None]], state: dict[str, Any]) -> Path:
    """Write a checkpoint and forget all but the last two. Raises RunError if it cannot be written.

    Args:
        files: what writes each file of tensors. `state`: what else is to be in state.json.
    """
    from safetensors import SafetensorError  # also of a full disk; an installation that only reads has no safetensors

    target = folder / f"step-{progress.step:08d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    try:
        aside.mkdir()
        for name, write_file in files.items():
            write_file(aside / name)
        state = {
            "format": FORMAT,
            "version": VERSION,
            "progress": asdict(progress),
            **state,
            "sha256": {name: digest(aside / name) for name in files},
        }
        (aside / "state.json").write_text(json.dumps(state, indent=1))
        for path in (*aside.iterdir(), aside):
            _sync(path)
        if target.is_symlink() or target.exists():  # of the same step, or a damaged one that this run fell back from
            target.rename(
                folder / f"{aside.name}.old"
            )  # so that whoever is killed now leaves nothing that is half removed
        aside.rename(target)
        _sync(folder)
        for old in (*list_checkpoints(folder)[:-KEEP], *folder.glob(".step-*.old")):
            _forget(old)
    except (OSError, SafetensorError) as error:
        cause = error if isinstance(error, OSError) else _system_error(error)
        if cause is not None and (full := disk_full(target, cause)) is not None:
            raise full from None
        raise RunError(f"cannot write checkpoint {target}: {error}", "free some space, then resume the run") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # renamed, if all went well
    return target


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first; whether they are sound is not looked at."""
    return sorted(p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())


def newest_sound(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, and a note for each newer one that is not.

    None if there is no checkpoint at all. Raises FileFormatError if there are some and all are damaged.
    """
    newest, _, notes = _newest(folder)
    return newest, notes


def newest_state(folder: Path | None) -> tuple[Path | None, dict[str, Any]]:
    """The newest checkpoint that is whole, and its state; None and nothing where there is none, or no folder.

    Raises: as `newest_sound`.
    """
    return (None, {}) if folder is None else _newest(folder)[:2]


def _newest(folder: Path) -> tuple[Path | None, dict[str, Any], list[str]]:
    notes: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return path, read_state(path), notes
        except FileFormatError as error:
            notes.append(f"fell back to an earlier checkpoint: {error.message}")
    if notes:
        raise FileFormatError(
            f"every checkpoint in {folder} is damaged; the last one: {notes[0]}",
            f"remove {folder} to train from the start, with the same job",
        )
    return None, {}, []


def read_state(path: Path) -> dict[str, Any]:
    """state.json, after checking that the tensor files are those it was written with. Raises FileFormatError."""
    try:
        state = files.read_json(path / "state.json")
        if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (FORMAT, VERSION):
            raise FileFormatError(f"{path}/state.json is not that of a checkpoint of version {VERSION}")
        expected = state.get("sha256")
        if not isinstance(expected, dict) or not {MODEL, OPTIMIZER} <= expected.keys() <= _FILES:
            raise FileFormatError(f"{path}/state.json does not name the files of a checkpoint")
        for name in expected:
            if expected[name] != digest(path / name):
                raise FileFormatError(f"{path / name} is damaged: its sha256 is not the one it was written with")
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    return state


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Notes of what is different where a run goes on; then weights end up equal only nearly."""
    return [f"resumed with {k} {now[k]} after {then[k]}: not bit-identical" for k in now if now[k] != then[k]]


def _system_error(error: Exception) -> OSError | None:
    """Return the system's error behind one of safetensors, which passes it on as text: `... (os error 28)`."""
    found = re.search(r"os error (\d+)", str(error))
    return None if found is None else OSError(int(found[1]), str(error))


def _forget(path: Path) -> None:
    """Remove a checkpoint if it is there; of a link only the link, never what it points to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
