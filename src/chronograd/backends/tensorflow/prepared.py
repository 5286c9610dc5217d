"""Input of a TensorFlow rank without torch: images, labels and weights as plain arrays in the run directory.

    prepared/
        train.npy, test.npy     images as whole numbers, uint8, NHWC
        train_labels.npy        class numbers, or rows of probabilities
        test_labels.npy
        weights.safetensors     initial weights, under the torch network's names and in its layout
        start.json              the data set's card and normalisation, and the checkpoint to continue from

`prepare` writes them once, in the launching process, which has torch. `read` runs in the ranks, which do not have it.
The files are removed once the run has its record.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chronograd import door, files
from chronograd.data.published import DatasetCard
from chronograd.errors import RunError
from chronograd.job import Job
from chronograd.rundir import RunDir
from chronograd.train import checkpoint_folder

if TYPE_CHECKING:
    from chronograd.data.datasets import Dataset
    from chronograd.data.images import Images

Array = np.ndarray[Any, Any]
# Images at a time, so that a set in files takes little memory.
WRITTEN_AT_ONCE = 256
START = "start.json"
ARRAYS = ("train.npy", "train_labels.npy", "test.npy", "test_labels.npy", "weights.safetensors")


@dataclass(frozen=True)
class Prepared:
    """Data and start of a run, without torch. N images, K classes.

    Attributes:
        train, test: uint8 of shape (N, H, W, C), mapped from their files.
        train_labels: int64 of shape (N,), or float32 probabilities of shape (N, K).
        scale_C, shift_C: the network gets `pixel * scale - shift`.
        weights: by the names of the torch network, in its layout.
        loaded: description of the weights that the job loaded, or empty.
        checkpoint: the folder to continue from, or None; `checkpoint_notes`: newer checkpoints that were skipped.
    """

    card: DatasetCard
    train: Array
    train_labels: Array
    test: Array
    test_labels_N: Array
    scale_C: tuple[float, ...]
    shift_C: tuple[float, ...]
    notes: tuple[str, ...]
    weights: dict[str, Array]
    loaded: str
    checkpoint: Path | None
    checkpoint_notes: tuple[str, ...]


def folder(run: RunDir) -> Path:
    return run.path / "prepared"


def prepare(job: Job, run: RunDir) -> None:
    """Write the input of the ranks, and their start: the newest sound checkpoint if there is one.

    Raises RunError where it cannot be written; as datasets.load, models.registry.build and newest_sound.
    """
    newest, _, notes = checkpoint_folder.newest_sound(run.checkpoints)
    target = folder(run)
    try:
        if not (target / START).exists():  # written last: without it the rest may be incomplete
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            start = _write(job, run, target)
        else:
            start = json.loads(files.read_bytes(target / START))
        start["checkpoint"] = newest.name if newest is not None else None
        start["checkpoint_notes"] = notes
        files.write_json(target / START, start)
    except OSError as error:
        raise RunError(f"cannot write the data of the run to {target}: {error}", "free some space") from error


def read(run: RunDir) -> Prepared:
    """Read the files of `prepare`; images stay in their files until they are used."""
    from safetensors.numpy import load_file

    source = folder(run)
    try:
        start = json.loads(files.read_bytes(source / START))
        for name in ARRAYS:
            door.check(source / name, "prepared data", expects=("any",))
        card = start["card"]
        return Prepared(
            card=DatasetCard(**{**card, "shape": tuple(card["shape"]), "class_names": tuple(card["class_names"])}),
            train=np.load(source / "train.npy", mmap_mode="r"),
            train_labels=np.load(source / "train_labels.npy"),
            test=np.load(source / "test.npy", mmap_mode="r"),
            test_labels_N=np.load(source / "test_labels.npy"),
            scale_C=tuple(start["scale_C"]),
            shift_C=tuple(start["shift_C"]),
            notes=tuple(start["notes"]),
            weights=load_file(source / "weights.safetensors"),
            loaded=start["loaded"],
            checkpoint=run.checkpoints / start["checkpoint"] if start["checkpoint"] else None,
            checkpoint_notes=tuple(start["checkpoint_notes"]),
        )
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"the prepared data in {source} cannot be read: {error}", f"remove {source}, resume") from None


def remove(run: RunDir) -> None:
    """Remove the data when training is over."""
    shutil.rmtree(folder(run), ignore_errors=True)


def _write(job: Job, run: RunDir, target: Path) -> dict[str, Any]:
    from chronograd.data import datasets

    dataset = datasets.load(job.data, job.training.seed)
    _write_images(target / "train.npy", dataset.train)
    _write_images(target / "test.npy", dataset.test)
    np.save(target / "train_labels.npy", dataset.train_labels.numpy())
    np.save(target / "test_labels.npy", dataset.test_labels_N.numpy())
    return {
        "card": asdict(dataset.card),
        "scale_C": [float(v) for v in dataset.scale_C],
        "shift_C": [float(v) for v in dataset.shift_C],
        "notes": list(dataset.notes),
        "loaded": _write_weights(job, run, dataset, target / "weights.safetensors"),
    }


def _write_weights(job: Job, run: RunDir, dataset: Dataset, path: Path) -> str:
    """Write the weights from which the PyTorch backends would start. Return a description of the loaded weights."""
    import torch
    from safetensors.torch import save_file

    from chronograd.train.rank_context import RankContext
    from chronograd.train.step import initial_network

    place = RankContext(0, 1, torch.device("cpu"), 1)
    network, loaded = initial_network(job, dataset, place, run.given_weights)
    state = network.state_dict()
    save_file({n: t.detach().contiguous(memory_format=torch.contiguous_format) for n, t in state.items()}, path)
    return loaded


def _write_images(path: Path, images: Images) -> None:
    """Write images in order, chunk by chunk. A full disk then is an error; with a mapped file it would end the process."""
    channels, height, width = images.shape
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(images), height, width, channels)}
    samples = np.arange(len(images))
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, len(samples), WRITTEN_AT_ONCE):
            images.prefetch(samples[start + WRITTEN_AT_ONCE : start + 2 * WRITTEN_AT_ONCE])
            chunk = images.batch(samples[start : start + WRITTEN_AT_ONCE])
            stream.write(chunk.permute(0, 2, 3, 1).cpu().numpy().tobytes())
