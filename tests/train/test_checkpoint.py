"""Checkpoints are exact, contain no pickle, and are never used if damaged."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import resource
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from chronograd import job as jobs
from chronograd.data import datasets
from chronograd.errors import DiskFullError, FileFormatError
from chronograd.files import digest
from chronograd.job import Job
from chronograd.train import checkpoint, checkpoint_folder
from chronograd.train.checkpoint_folder import Progress
from chronograd.train.rank_context import RankContext
from chronograd.train.step import TrainingStep

PLACE = RankContext(rank=0, world_size=1, device=torch.device("cpu"), threads=1)


@pytest.fixture(autouse=True)
def _networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def make_job(**training: object) -> Job:
    return jobs.from_dict(
        {
            "network": {"name": "tiny_networks:random"},
            "data": {"name": "synthetic", "shape": [1, 8, 8], "classes": 10, "samples": 64},
            "training": {"batch": 16, "epochs": 2, **training},
        }
    )


def make_step(job: Job) -> TrainingStep:
    return TrainingStep(job, datasets.load(job.data, job.training.seed), PLACE)


def state_of(step: TrainingStep) -> dict[str, torch.Tensor]:
    tensors, _ = checkpoint.optimizer_state(step.optimizer)
    return {k: v.clone() for k, v in {**step.network.state_dict(), **tensors}.items()}


@pytest.mark.parametrize("recipe", ["sgd", "sgd-one-cycle", "adamw"])
def test_restored_state_equals_the_saved_one(tmp_path: Path, recipe: str) -> None:
    job = make_job(recipe=recipe)
    trained = make_step(job)
    for index in range(3):
        trained.run(index)
    saved = Progress(step=4, epoch=1, training_time_s=1.5, best_accuracy=0.5, best_epoch=1)
    path = checkpoint.save(tmp_path, trained, saved)
    fresh = make_step(job)
    assert checkpoint.restore(path, fresh) == (saved, [])
    before, after = state_of(trained), state_of(fresh)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_changed_thread_count_is_reported(tmp_path: Path) -> None:
    step = make_step(make_job())
    path = checkpoint.save(tmp_path, step, Progress(step=4, epoch=1))
    step.place = replace(PLACE, threads=3)
    assert checkpoint.restore(path, step)[1] == ["resumed with threads 3 after 1: not bit-identical"]


def test_checkpoint_contains_no_pickle(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, make_step(make_job()), Progress())
    assert sorted(p.name for p in path.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    json.loads((path / "state.json").read_text())
    with safe_open(path / "model.safetensors", framework="pt") as tensors:
        assert "1.weight" in set(tensors.keys())


def _save_with_room_for(num_bytes: int, folder: Path) -> None:
    """Save with a file size limit: Python ignores SIGXFSZ, so writing beyond it fails like on a full disk."""
    step = make_step(make_job())
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))
    checkpoint.save(folder, step, Progress(step=8, epoch=2))


@pytest.mark.slow
@pytest.mark.parametrize("num_bytes", [100, 10_000])  # less than any file; less than the weights
def test_full_disk_preserves_the_previous_checkpoint(tmp_path: Path, num_bytes: int) -> None:
    before = checkpoint.save(tmp_path, make_step(make_job()), Progress(step=4, epoch=1))
    assert num_bytes < (before / "model.safetensors").stat().st_size
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
        pytest.raises(
            DiskFullError, match=r"cannot write .*step-00000008: the limit of a file's size is reached"
        ) as caught,
    ):
        pool.submit(_save_with_room_for, num_bytes, tmp_path).result()
    assert caught.value.hint == "raise the limit (`ulimit -f unlimited`)"
    assert list(tmp_path.iterdir()) == [before]


def test_old_checkpoints_are_removed(tmp_path: Path) -> None:
    step = make_step(make_job())
    for number in (4, 8, 12):
        checkpoint.save(tmp_path, step, Progress(step=number))
    assert [p.name for p in checkpoint_folder.list_checkpoints(tmp_path)] == ["step-00000008", "step-00000012"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("harm", ["truncate", "flip", "remove"])
def test_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path: Path, name: str, harm: str) -> None:
    step = make_step(make_job())
    step.run(0)
    older = checkpoint.save(tmp_path, step, Progress(step=4, epoch=1))
    newer = checkpoint.save(tmp_path, step, Progress(step=8, epoch=2))
    damage(newer / name, harm)
    chosen, _, notes = checkpoint_folder.newest_sound(tmp_path)
    assert chosen == older
    assert len(notes) == 1
    assert str(newer) in notes[0]
    damage(older / name, harm)
    with pytest.raises(FileFormatError, match="every checkpoint"):
        checkpoint_folder.newest_sound(tmp_path)


def test_newest_valid_state(tmp_path: Path) -> None:
    assert checkpoint_folder.newest_sound(tmp_path) == checkpoint_folder.newest_sound(None) == (None, {}, [])
    step = make_step(make_job())
    older = checkpoint.save(tmp_path, step, Progress(step=4, epoch=1))
    damage(checkpoint.save(tmp_path, step, Progress(step=8, epoch=2)) / "state.json", "remove")
    newest, state, _ = checkpoint_folder.newest_sound(tmp_path)
    assert (newest, state["progress"]["step"]) == (older, 4)


def test_replaced_checkpoint_is_never_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent writes its last step before and after the evaluation. A kill in between leaves a complete one or none."""
    step = make_step(make_job())
    checkpoint.save(tmp_path, step, Progress(step=4))
    removed, remove = [], checkpoint_folder.shutil.rmtree

    def watched(path: Path, **options: bool) -> None:
        removed.append(path.name)
        assert checkpoint_folder.newest_sound(tmp_path)[0] == tmp_path / "step-00000004"
        remove(path, **options)

    monkeypatch.setattr(checkpoint_folder.shutil, "rmtree", watched)
    checkpoint.save(tmp_path, step, Progress(step=4, epoch=1))
    assert removed
    assert all(name.startswith(".") for name in removed)
    assert checkpoint_folder.newest_sound(tmp_path)[1]["progress"]["epoch"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004"]


def damage(path: Path, harm: str) -> None:
    data = bytearray(path.read_bytes())
    if harm == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "flip":
        data[0] ^= 0xFF
        path.write_bytes(data)
    else:
        path.unlink()


def test_crafted_checkpoint_is_not_executed(tmp_path: Path) -> None:
    """Replace the weights by a pickle with a matching checksum: it is refused and not executed."""
    step = make_step(make_job())
    path = checkpoint.save(tmp_path, step, Progress(step=4, epoch=1))
    harmed = tmp_path / "harmed"

    class Harm:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (harmed,)

    (path / "model.safetensors").write_bytes(pickle.dumps(Harm()))
    state = json.loads((path / "state.json").read_text())
    state["sha256"]["model.safetensors"] = digest(path / "model.safetensors")
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(FileFormatError):
        checkpoint.restore(path, step)
    assert not harmed.exists()


def test_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, make_step(make_job()), Progress(step=4, epoch=1))
    other = jobs.changed(make_job(), ["network.name=tiny_networks:plain"])
    with pytest.raises(FileFormatError, match="do not belong to this network"):
        checkpoint.restore(path, make_step(other))
