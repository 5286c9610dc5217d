"""Records with numbers that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chronograd.record import STEP_PARTS, Curve, Quantity, Record, Tables

JOB = {
    "task": "classification",
    "network": {"name": "resnet20"},
    "data": {"name": "digits"},
    "training": {"recipe": "sgd-momentum", "epochs": 4, "batch": 64, "target_accuracy": 0.95, "seed": 0},
}


def make(kind: str, count: int = 1, device: str = "local", **fields: object) -> Record:
    record = Record.model_validate(
        {
            "kind": kind,
            "title": f"resnet20, {count} × {device}",
            "job": JOB,
            "cluster": {"device": device, "count": count},
            "backend": "single" if count == 1 else "ddp",
            "versions": {"torch": "2.11.0"},
            "created": "2026-01-02T03:04:05+00:00",
            **fields,
        }
    )
    record.put("mfu", Quantity.missing("1", "no peak is known"))
    return record


def make_step(kind: str, count: int, forward: float, backward: float, spread: float = 0.1) -> Record:
    """Return a record of a step with forward and backward only, and `64 / step` samples per second."""
    record = make(kind, count)

    def around(value: float, unit: str) -> Quantity:
        low, high = value * (1 - spread), value * (1 + spread)
        return Quantity(value=value, unit=unit, low=low, high=high, n=20, source="test")

    parts = dict.fromkeys(STEP_PARTS, 0.0) | {"forward_s": forward, "backward_s": backward}
    for name, value in parts.items():
        record.put(name, around(value, "s"))
    record.put("step_time_s", around(forward + backward, "s"))
    record.put("throughput_samples_per_s", around(64 / (forward + backward), "sample/s"))
    return record


def make_training(accuracies: list[float], reached_s: float | None = None) -> Record:
    epochs = [float(i + 1) for i in range(len(accuracies))]
    record = make("measured")
    record.curves["training"] = Curve(
        columns={"epoch": list(epochs), "seconds": [10 * e for e in epochs], "test_accuracy": list(accuracies)}
    )
    steps = [float(i) for i in range(1, 101)]
    record.curves["loss"] = Curve(columns={"step": list(steps), "loss": [1 / s for s in steps]})
    record.put("test_accuracy", Quantity(value=accuracies[-1], unit="1", source="test split"))
    record.put("epochs", Quantity(value=len(epochs), unit="count"))
    record.put("training_time_s", Quantity(value=10 * epochs[-1], unit="s"))
    if reached_s is None:
        record.put("time_to_accuracy_s", Quantity.missing("s", "the target was not reached"))
    else:
        record.put("time_to_accuracy_s", Quantity(value=reached_s, unit="s"))
    return record


def make_plan(device: str, count: int, time_s: float | None, cost_usd: float | None) -> Record:
    record = make("predicted", count, device)
    for name, unit, value in (("training_time_s", "s", time_s), ("cost_usd", "usd", cost_usd)):
        if value is None:
            record.put(name, Quantity.missing(unit, "does not fit"))
        else:
            record.put(name, Quantity(value=value, unit=unit, low=value / 2, high=value * 2))
    return record


@pytest.fixture
def step() -> Callable[..., Record]:
    return make_step


@pytest.fixture
def training() -> Callable[..., Record]:
    return make_training


@pytest.fixture
def planned() -> Callable[..., Record]:
    return make_plan


@pytest.fixture
def predicted() -> dict[int, Record]:
    """Return steps of 100 and 50 ms."""
    return {1: make_step("predicted", 1, 0.04, 0.06), 2: make_step("predicted", 2, 0.02, 0.03)}


@pytest.fixture
def measured() -> dict[int, Record]:
    """Return steps of 80 and 100 ms, so one prediction is 25 % too high and the other 50 % too low."""
    return {1: make_step("measured", 1, 0.03, 0.05), 2: make_step("measured", 2, 0.04, 0.06)}


@pytest.fixture
def everything(predicted: dict[int, Record], measured: dict[int, Record]) -> dict[str, Record]:
    """Return the records of a complete loop."""
    predicted[1].tables = Tables(
        by_kind=[
            {"kind": "conv_3x3", "time_s": 0.06, "flops": 9e9, "bytes": 1e8, "share": 0.6},
            {"kind": "norm", "time_s": 0.04, "flops": 0, "bytes": 2e8, "share": 0.4},
        ]
    )
    records = {f"predicted-{n}": r for n, r in predicted.items()}
    records |= {f"measured-{n}": r for n, r in measured.items()}
    records["trained"] = make_training([0.5, 0.8, 0.9, 0.96], 40.0)
    for device, base, price in (("k80", 4000.0, 0.5), ("h100", 100.0, 4.0)):
        for count in (1, 2, 4):
            time_s = base / count
            records[f"{device}-{count}"] = make_plan(device, count, time_s, time_s / 3600 * price * count)
    return records
