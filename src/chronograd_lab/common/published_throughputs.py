"""Published throughputs of training on the devices that studies predict, and their use for a prediction.

A prediction uses the row of one GPU; rows of several GPUs are compared with it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.job import Job, from_dict
from chronograd.predict.carrying import Corrected
from chronograd.predict.prediction import predict, predict_step, rank_work
from chronograd.predict.relatives import CARRIED_EXPONENT
from chronograd.predict.setting import Setting, setting_of
from chronograd.trace import Trace
from chronograd_lab.common.results import Row
from chronograd_lab.common.rows import grouped

TABLE = "published_throughputs.csv"
_WHOLE = ("image_size", "batch_per_gpu", "gpus", "nodes")
# Published batches per GPU are whole numbers, so that batches of strong scaling are only nearly the same.
_SAME_BATCH = 0.03


def published(device: str, network: str) -> list[Row]:
    """Return the rows of a network on a device, in the order of the table, for either form of a ResNet; empty if there are
    none.

    >>> [row["gpus"] for row in published("v100", "resnet50-v1")], published("v100", "lenet5")
    ([1, 8], [])
    """
    return [dict(row) for row in _table() if row["device"] == device and _family(row["network"]) == _family(network)]


def _family(network: str) -> str:
    return network.partition(":")[2].removesuffix("-v1") or network.removesuffix("-v1")


@cache
def _table() -> tuple[Row, ...]:
    text = (resources.files("chronograd_lab.common") / TABLE).read_text(encoding="utf-8")
    lines = csv.DictReader(text.splitlines())
    return tuple(
        {**line, **{key: int(line[key]) for key in _WHOLE}, "images_per_s": float(line["images_per_s"])}
        for line in lines
    )


def one_gpu_steps() -> list[Row]:
    """Return steps of ResNet-18 on CIFAR images on one GPU, by precision and batch, timed by the project, with the earlier
    predictions.

    `step_s` is None if the batch did not fit.
    """
    text = (resources.files("chronograd_lab.common") / "one_gpu_steps.csv").read_text(encoding="utf-8")
    return [
        {key: value if key in ("device", "precision", "software", "date") else float(value) if value else None for key, value in line.items()}
        for line in csv.DictReader(text.splitlines())
    ]  # fmt: skip


def base_row(device: str, network: str) -> Row | None:
    """Return the first row of one GPU, the basis of predictions of the network on the device; None if there is none."""
    return next((row for row in published(device, network) if row["gpus"] == 1), None)


def correction(device: str, network: str) -> Callable[[Job], float] | None:
    """Return the correction of predicted times of a network on a device, from its row of one GPU; None without one.

    The part of a step in which the device waits for the host is not corrected. Images of another size have other operators, so
    they get the correction of a network on another device.
    """
    row = base_row(device, network)
    if row is None:
        return None
    shown, image_size = factor_shown(row), row["image_size"]

    def factor(job: Job) -> float:
        setting, trace = setting_of(job), trace_job(job)
        whole_s = _work_s(trace, setting)
        unhurried = replace(setting, calibration=replace(setting.calibration, host_launch_s=0.0))
        host_share = max(0.0, 1 - _work_s(trace, unhurried) / whole_s)
        of_device = shown if card(job.data).shape[-1] == image_size else shown**CARRIED_EXPONENT
        return float(host_share + (1 - host_share) * of_device)

    return factor


def _work_s(trace: Trace, setting: Setting) -> float:
    """Return the seconds of computation of a rank in a step."""
    return sum(rank_work(trace, setting.batch_per_rank, setting)[1].values())


def factor_shown(row: Row) -> float:
    """Return the published divided by the predicted time of a step: a job of that network, batch and device, on one GPU."""
    job = _job({**row, "gpus": 1})
    measured_s = row["batch_per_gpu"] / row["images_per_s"]
    return float(measured_s / predict_step(trace_job(job), setting_of(job)).seconds)


def _job(row: Row) -> Job:
    """Return the job of a row, on its number of GPUs."""
    size, gpus = row["image_size"], row["gpus"]
    return from_dict(
        {
            "network": {"name": row["network"]},
            "data": {"name": "synthetic", "shape": [3, size, size], "classes": 1000},
            "training": {"recipe": "sgd-momentum", "batch": row["batch_per_gpu"] * gpus},
            "cluster": {"device": row["device"], "count": gpus},
            "backend": "ddp" if gpus > 1 else "single",
        }
    )


def beside_published(device: str, network: str) -> list[Row]:
    """Return the published rows of a network on a device in both kinds of scaling, with predictions corrected by the first row.

    Strong scaling has the rows of the first row's global batch. Weak scaling has the rows of each batch per GPU that one GPU
    has, too. Each `set` of rows has its speed-ups, published (`speed_up`) and predicted, over one GPU.
    """
    rows, factor = [], correction(device, network)
    for row in published(device, network) if factor else []:
        assert factor is not None
        job, batch = _job(row), row["gpus"] * row["batch_per_gpu"]
        predicted_s = predict(trace_job(job), job, shown=Corrected(factor(job))).value("step_time_s")
        rows.append({**row, "batch": batch, "step_time_s": batch / row["images_per_s"], "predicted_s": predicted_s})
    same = [row for row in rows if abs(row["batch"] / rows[0]["batch"] - 1) < _SAME_BATCH]
    weak = {f"weak_{batch}": own for batch, own in grouped(rows, "batch_per_gpu").items()}
    sets = {name: sorted(own, key=lambda row: row["gpus"]) for name, own in {"strong": same, **weak}.items()}
    return [
        {**row, "set": name, "scaling": name.partition("_")[0], "world": row["gpus"],
         "speed_up": row["images_per_s"] / own[0]["images_per_s"],
         "predicted_speed_up": row["batch"] / row["predicted_s"] / (own[0]["batch"] / own[0]["predicted_s"])}
        for name, own in sets.items() if own and own[0]["gpus"] == 1 for row in own
    ]  # fmt: skip


def between_nodes_residual(rows: Sequence[Row]) -> float:
    """Return the published over the predicted step of strong scaling on several nodes, at least 1; 1 without such a row.

    Args:
        rows: of `beside_published`.
    """
    far = [row["step_time_s"] / row["predicted_s"] for row in rows if row["set"] == "strong" and row["nodes"] > 1]
    return float(max([1.0, *far]))
