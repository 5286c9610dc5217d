"""Shared parts of the fault benchmarks: the job, and the check of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chronograd.job import Job, changed, from_dict
from chronograd.rundir import RunDir
from chronograd.rundir.steps import merged
from chronograd.train.checkpoint_folder import list_checkpoints

EPOCHS, STEPS_PER_EPOCH = 4, 12
STEPS = EPOCHS * STEPS_PER_EPOCH
TIMEOUT_S = 15.0


# Overrides of `make_job` for backends with sharded parameters; tensor_parallel trains a decoder.
SHARDED_JOBS = {
    "fsdp": ["backend=fsdp"],
    "tensor_parallel": [
        "backend=tensor_parallel",
        "network={name: llama-7b, options: {layers: 2, width: 32, heads: 4, ffn: 48, vocab: 20, sequence: 12}}",
        "data={name: tokens, shape: [12], classes: 20, samples: 195}",
        "task=language",
        "training.augmentation={}",
    ],
}


def make_job(*overrides: str) -> Job:
    """Return a job with batch norm, momentum and augmentation, so a resumed run differs if any state is lost."""
    job = from_dict(
        {
            "network": {"name": "resnet20"},
            "data": {"name": "synthetic", "shape": [3, 8, 8], "classes": 10, "samples": 16 * STEPS_PER_EPOCH + 3},
            "training": {
                "recipe": "sgd-one-cycle",
                "batch": 16,
                "epochs": EPOCHS,
                "augmentation": {"crop": 1, "flip": True},
            },
            "cluster": {"device": "cpu", "count": 2, "threads": 1, "max_restarts": 4, "timeout_s": TIMEOUT_S},
            "backend": "ddp",
        }
    )
    return changed(job, list(overrides))


def outcome(run: RunDir, expected: Sequence[bytes] | None, steps: int, error: str) -> dict[str, Any]:
    """Return the outcome of a job."""
    logs = list(run.logs().values())
    logs = logs if expected is not None else [merged(logs)]
    is_right = all([line.step for line in log.steps] == list(range(1, steps + 1)) for log in logs)
    row: dict[str, Any] = {"ended": run.is_finished, "right_steps": is_right, "error": error}
    row["attempts"] = max(log.attempts for log in logs) if logs else 0
    if not run.is_finished:
        return {**row, "right": False}
    record = run.record()
    for name in ("redone_steps", "redone_s", "lost_s", "wall_time_s", "training_time_s"):
        row[name] = record[name].value
    if expected is not None:
        row["same_weights"] = final_bytes(run) == expected
    return {**row, "right": is_right and row.get("same_weights", True)}


def final_bytes(run: RunDir) -> list[bytes]:
    newest = list_checkpoints(run.checkpoints)[-1]
    return [path.read_bytes() for path in sorted(newest.glob("*.safetensors"))]
