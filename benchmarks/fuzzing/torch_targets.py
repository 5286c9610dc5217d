"""Targets that need torch: checkpoints, weight files, label files."""

from __future__ import annotations

import functools
import io
import json
import pickle
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from benchmarks.fuzzing import damage, pack
from benchmarks.fuzzing.pack import FITTING, Entry
from benchmarks.fuzzing.targets import Target, as_folder
from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.data.labels import read_labels, write_labels
from chronograd.errors import InputError
from chronograd.models.weights import load_pretrained
from chronograd.train import checkpoint, checkpoint_folder
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

NETWORK = "benchmarks.fuzzing.torch_targets:small_network"


def small_network(num_classes: int = 3) -> torch.nn.Module:
    """Return a network with few parameters, so its weight file is small."""
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(4, 2), torch.nn.ReLU(), torch.nn.Linear(2, num_classes)
    )


@functools.cache
def _step() -> TrainingStep:
    """Return a step of a small network, created once; every input restores it."""
    torch.set_num_threads(1)
    job = jobs.from_dict(
        {
            "network": {"name": NETWORK},
            "data": {"name": "synthetic", "shape": [1, 2, 2], "classes": 3, "samples": 8},
            "training": {"recipe": "sgd-momentum", "batch": 2},
        }
    )
    place = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)
    return TrainingStep(job, datasets.load(job.data, 0), place)


@functools.cache
def _network() -> torch.nn.Module:
    return small_network()


# -- checkpoints -------------------------------------------------------------------------------------------


def _checkpoint(folder: Path) -> None:
    newest, *_ = checkpoint_folder.newest_sound(folder)
    if newest is not None:
        progress, _ = checkpoint.restore(newest, _step())
        json.dumps([progress.step + progress.epoch, float(progress.training_time_s), progress.stopped.strip()])
        (progress.best_accuracy or 0.0) + (progress.best_epoch or 0)
        _step().run(0)


def _checkpoint_seeds() -> list[bytes]:
    step = _step()
    step.run(0)
    with tempfile.TemporaryDirectory() as folder:
        path = checkpoint.save(Path(folder), step, Progress(step=4, epoch=1, best_accuracy=0.5, best_epoch=1))
        files = {p.name: p.read_bytes() for p in path.iterdir()}
    state = json.loads(files["state.json"])
    state["sha256"] = dict.fromkeys(state["sha256"], FITTING.decode())
    files["state.json"] = json.dumps(state).encode()
    one = [Entry(f"step-00000004/{name}", data) for name, data in sorted(files.items(), reverse=True)]
    piped = [Entry("step-00000008/state.json", kind="fifo"), *one]
    return [pack.packed(found) for found in (one, piped)]


# -- weights -----------------------------------------------------------------------------------------------


def _weights(folder: Path) -> None:
    """Read each file of the folder as weights, and the folder as a run."""
    errors = []
    for path in (*sorted(folder.iterdir()), folder):
        try:
            load_pretrained(_network(), str(path), "mine")
        except InputError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _lay_out_weights(data: bytes, folder: Path, outside: Path) -> None:
    """Write entries under `pth/` as one archive, like one from torch.save."""
    entries = pack.unpacked(data)
    pack.lay_out([e for e in entries if not e.name.startswith("pth/")], folder, outside)
    own = [e for e in entries if e.name.startswith("pth/")]
    members = {e.name.removeprefix("pth/").replace("\0", ""): e.content for e in own}
    if members:
        with zipfile.ZipFile(folder / "net.pth", "w") as archive:
            for name, content in members.items():
                archive.writestr(f"archive/{name}", content)


def _weights_seeds() -> list[bytes]:
    state = _network().state_dict()
    buffer = io.BytesIO()
    torch.save({"state_dict": state}, buffer)
    with zipfile.ZipFile(buffer) as archive:
        saved = [Entry(f"pth/{name.partition('/')[2]}", archive.read(name)) for name in archive.namelist()]
    plain = save(dict(state))
    sums = json.dumps({"format": "chronograd-checkpoint", "sha256": {"model.safetensors": FITTING.decode()}}).encode()
    run = [
        Entry("checkpoints/step-00000004/model.safetensors", plain),
        Entry("checkpoints/step-00000004/state.json", sums),
    ]
    pickled = [Entry("net.pt", pickle.dumps({"a": 1})), Entry("net.th", b"cos\nsystem\n(S'true'\ntR.")]
    return [pack.packed(e) for e in (saved, [Entry("net.safetensors", plain)], run, pickled)]


# -- labels ------------------------------------------------------------------------------------------------


def _labels(folder: Path) -> None:
    found = read_labels(folder / "labels.npz", 100, 3)
    assert len(found.samples_N) == len(found.labels) > 0
    assert found.samples_N.max() < 100


def _lay_out_labels(data: bytes, folder: Path, outside: Path) -> None:
    """Write entries as members of an archive with fresh checksums, so the archive does not detect a changed member."""
    entries = pack.unpacked(data)
    if not entries:
        (folder / "labels.npz").write_bytes(data)
        return
    with zipfile.ZipFile(folder / "labels.npz", "w") as archive:
        for name, content in {e.name.replace("\0", "") or "x": e.content for e in entries}.items():
            archive.writestr(name, content)


def _labels_seeds() -> list[bytes]:
    found = []
    probability = np.full((3, 3), 1 / 3, np.float32)
    values: Sequence[dict[str, np.ndarray]] = ({"label": np.array([0, 1, 2])}, {"probability": probability})
    with tempfile.TemporaryDirectory() as folder:
        for value in values:
            path = Path(folder) / "labels.npz"
            write_labels(path, np.array([1, 2, 3]), **value)
            found.append(path.read_bytes())
            with zipfile.ZipFile(path) as archive:
                found.append(pack.packed([Entry(n, archive.read(n)) for n in archive.namelist()]))
    return found


BY_NAME = {
    target.name: target
    for target in (
        Target("checkpoint", as_folder, _checkpoint, _checkpoint_seeds, damage.of_pack),
        Target("weights", _lay_out_weights, _weights, _weights_seeds, damage.of_pack),
        Target("labels", _lay_out_labels, _labels, _labels_seeds, damage.of_pack),
    )
}
