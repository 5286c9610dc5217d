"""A run's folder of checkpoints, for every framework: safetensors and JSON, no pickle. Never imports torch.

    checkpoints/step-00000046/
        model.safetensors        parameters and buffers under the PyTorch network's own names
        optimizer.safetensors    state tensors; of sharded parameters, those of rank 0
        optimizer.1.safetensors  state tensors of rank 1, and so on (see chronograd.train.shards)
        ema.safetensors          the running mean of parameters and buffers, if the job has one
        target.safetensors       for an agent: its target network,
        replay.safetensors       and its replay memory
        state.json               progress of the run, and the sha256 of the files above

Nothing in a checkpoint is ever executed. It is written into a hidden folder, synced, and renamed. The last two remain,
so that one is left if the other is damaged. A checkpoint does not store the state of random generators, of the order of
samples or of augmentation. They are functions of seed, epoch, step and rank (chronograd.train.order). So is the
schedule.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
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
_SHARD = re.compile(r"optimizer\.[1-9]\d{0,5}\.safetensors")

ALL_EPOCHS = "all epochs were trained"  # the only reason to stop that more epochs remove


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        step: completed steps. `epoch`: completed epochs.
        training_time_s: time spent in steps, without evaluation and checkpoints.
        best_accuracy: on the test split, and its epoch; None before the first evaluation.
        stopped: why training ended; empty while it continues.
    """

    step: int = 0
    epoch: int = 0
    training_time_s: float = 0.0
    best_accuracy: float | None = None
    best_epoch: int | None = None
    stopped: str = ""

    def go_on(self, epochs: int) -> str:
        """Let a run that trained all its epochs continue to `epochs`, if that is more. Return a note, or an empty text."""
        if self.stopped != ALL_EPOCHS or self.epoch >= epochs:
            return ""
        self.stopped = ""
        return f"the run had ended after epoch {self.epoch} and was then extended to {how_many(epochs, 'epochs')}"

    @classmethod
    def read(cls, data: Any) -> Self:
        """Read the state of a checkpoint. Raises TypeError, ValueError."""
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
    """Write a checkpoint and remove all but the last two. Raises RunError if it cannot be written.

    Args:
        files: a writer for each file of tensors. `state`: further content of state.json.
    """
    path = target(folder, progress)
    aside = unfinished(folder, progress, os.getpid())
    try:
        with reported(path):
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
            for written in (*aside.iterdir(), aside):
                _sync(written)
            if path.is_symlink() or path.exists():  # an older one of the same step, or a damaged one
                path.rename(folder / f"{aside.name}.old")  # so that a kill at this moment leaves nothing half removed
            aside.rename(path)
            _sync(folder)
            for old in (*list_checkpoints(folder)[:-KEEP], *folder.glob(".step-*.old")):
                _forget(old)
    finally:
        shutil.rmtree(aside, ignore_errors=True)  # already renamed, if all went well
    return path


def target(folder: Path, progress: Progress) -> Path:
    """Return the folder of a complete checkpoint."""
    return folder / f"step-{progress.step:08d}"


def unfinished(folder: Path, progress: Progress, process: int) -> Path:
    """Return the hidden folder in which a process writes a checkpoint until it is complete."""
    return folder / f".{target(folder, progress).name}.{process}"


def shard_name(rank: int) -> str:
    """Return the file with the optimizer's state tensors of a rank."""
    return f"optimizer.{rank}.safetensors" if rank else OPTIMIZER


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Raise RunError for an error in writing a checkpoint."""
    from safetensors import SafetensorError  # raised for a full disk, too; a read-only installation has no safetensors

    try:
        yield
    except (OSError, SafetensorError) as error:
        cause = error if isinstance(error, OSError) else _system_error(error)
        if cause is not None and (full := disk_full(path, cause)) is not None:
            raise full from None
        raise RunError(f"cannot write checkpoint {path}: {error}", "free some space, then resume the run") from error


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first, without checking that they are sound."""
    return sorted(p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())


def newest_sound(folder: Path | None) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Return the newest sound checkpoint, its state, and a note for each newer, damaged one.

    Returns None and an empty state if there is no checkpoint or no folder. Raises FileFormatError if all are damaged.
    """
    notes: list[str] = []
    for path in reversed(list_checkpoints(folder) if folder is not None else ()):
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
    """Read state.json, after checking the digests of the tensor files. Raises FileFormatError."""
    try:
        state = files.read_json(path / "state.json")
        if not isinstance(state, dict) or (state.get("format"), state.get("version")) != (FORMAT, VERSION):
            raise FileFormatError(f"{path}/state.json is not that of a checkpoint of version {VERSION}")
        expected = state.get("sha256")
        if not isinstance(expected, dict) or not _is_complete(expected.keys()):
            raise FileFormatError(f"{path}/state.json does not name the files of a checkpoint")
        for name in expected:
            if expected[name] != digest(path / name):
                raise FileFormatError(f"{path / name} is damaged: its sha256 is not the one it was written with")
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} is damaged: {error}") from None
    return state


def _is_complete(names: Collection[str]) -> bool:
    """Return whether these may be the files of a checkpoint."""
    return {MODEL, OPTIMIZER} <= {*names} and all(name in _FILES or _SHARD.fullmatch(name) for name in names)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return notes on what differs where a run continues. Weights then end up only nearly equal."""
    return [f"resumed with {k} {now[k]} after {then[k]}: not bit-identical" for k in now if now[k] != then[k]]


def _system_error(error: Exception) -> OSError | None:
    """Return the system error behind one of safetensors, which passes it on as text: `... (os error 28)`."""
    found = re.search(r"os error (\d+)", str(error))
    return None if found is None else OSError(int(found[1]), str(error))


def _forget(path: Path) -> None:
    """Remove a checkpoint if it exists; of a link only the link, never its target."""
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
