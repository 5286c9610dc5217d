"""Generated seeds for fuzzing: a small trace, a small run directory."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from benchmarks.fuzzing.pack import Entry
from chronograd.trace import ZERO, Affine, Operator, Storage, Tensor, Trace


def small_trace() -> Trace:
    """Return a trace of one linear layer, forward and backward, and its update."""
    trace = Trace("net", "training", "sum", [])
    trace.input_shapes = [(Affine(0, 1), Affine(10, 0))]
    trace.storages = [
        Storage(Affine(800, 0), "parameter", -1),
        Storage(Affine(0, 40), "input", -1),
        Storage(Affine(0, 80), "activation", 0, 1),
        Storage(Affine(800, 0), "gradient", 1),
    ]
    trace.tensors = [
        Tensor(0, (Affine(10, 0), Affine(20, 0)), "float32", "weight"),
        Tensor(1, (Affine(0, 1), Affine(10, 0)), "float32"),
        Tensor(2, (Affine(0, 1), Affine(20, 0)), "float32"),
        Tensor(3, (Affine(10, 0), Affine(20, 0)), "float32"),
    ]
    trace.inputs, trace.outputs, trace.modules = [1], [2], {"": "Linear"}
    macs, moved = Affine(0, 200), Affine(800, 40)
    forward = Operator("forward", "gemm", "mm", "", 0, (1, 0), (2,), {}, macs, ZERO, moved, Affine(0, 80))
    convolution = {"in_channels": 2, "out_channels": 4, "groups": 1, "kernel": [3, 3]}
    trace.operators = [
        forward,
        replace(forward, phase="backward", inputs=(1, 2), outputs=(3,), forward=0),
        replace(forward, kind="conv_3x3", name="convolution", attributes=convolution),
        replace(forward, kind="attention", attributes={"head_dim": 8, "keys": 16}),
    ]
    return trace


def run_entries() -> list[Entry]:
    """Return the entries of a small complete run."""
    job = "network: {name: lenet5}\ndata: {name: digits}\ntraining: {batch: 8, epochs: 1}\n"
    parts = {"input_s": 0.1, "forward_s": 0.2, "backward_s": 0.3, "update_s": 0.1}
    clock = {"epoch": 1, "seconds": 0.7, "step_time_s": 0.7, "loss": 2.5, "samples": 8, **parts}
    steps: list[dict[str, Any]] = [
        {"attempt": 1, "event": "start", "step": 0, "device": "cpu", "device_name": "c", "threads": 4, "cores": 2}
        | {"time": 12.5, "process_time": 9.5, "busy_s": 1.5, "host": "a", "gpus_given": ""},
        {"attempt": 1, "event": "ready", "step": 0, "time": 13.5, "queued_s": 0.1},
        {
            "attempt": 1,
            "event": "work",
            "step": 0,
            "dataset_samples": 64,
            "rank_batch": 4,
            "steps_per_epoch": 8,
            "params": 9,
        }
        | {"gradient_bytes": 36},
        {"attempt": 1, "event": "end", "step": 2, "time": 15.5, "queued_s": 0.2, "user_s": 1.5, "system_s": 0.5},
        {"attempt": 1, "event": "what_if_threads", "step": 0, "threads": 4, "seconds": 0.4, "fair_threads": 1}
        | {"fair_seconds": 0.2},
        {"attempt": 1, "event": "what_if_batch", "step": 0, "times": 4, "seconds": 0.4, "larger_seconds": 1.2},
        {"attempt": 1, "step": 1, "mode": "parts", **clock},
        {"attempt": 1, "step": 2, "mode": "no_exchange", **clock},
        {"attempt": 1, "event": "epoch", "step": 2, "epoch": 1, "epoch_time_s": 1.4, "seconds": 1.4, "train_loss": 2.5}
        | {"test_loss": 2.4, "test_accuracy": 0.3},
        {"attempt": 1, "event": "memory", "step": 2, "memory_peak_bytes": 1000, "source": "rss"},
        {
            "attempt": 1,
            "event": "epoch_timing",
            "step": 0,
            "epoch_time_s": 1,
            "epoch_compute_time_s": 1,
            "num_steps": 2,
        },
        {"attempt": 1, "event": "note", "step": 0, "text": "n"},
        {"attempt": 1, "event": "features", "step": 0, "seconds": 0.5},
        {"attempt": 1, "event": "error", "step": 0, "time": 1.5, "text": "ValueError: x"},
    ]
    lines = "\n".join(map(json.dumps, steps)).encode()
    note = {"job_id": "7", "submitted": 1.5, "options": {"time": "1:00", "extra": ["--x"]}}
    return [
        Entry("job.yaml", job.encode()),
        Entry(
            "environment.json", b'{"cores": 2, "versions": {"torch": "2.11"}, "created": "2026-11-21T10:00:00+00:00"}'
        ),
        Entry("steps.0.jsonl", lines),
        Entry("steps.1.jsonl", lines),
        Entry("slurm.json", json.dumps(note).encode()),
        Entry("slurm.exit", b"1 0"),
        Entry("usage.0.jsonl", b'{"real_s": 1, "user_s": 2, "system_s": 0.5}'),
        Entry("checkpoints/step-00000002", kind="dir"),
    ]
