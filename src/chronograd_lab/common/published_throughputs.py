"""Published throughputs of training on the devices that studies predict, and their use for a prediction.

A prediction uses the row of one GPU; rows of several GPUs are compared with it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import resources

from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.job import Job, from_dict
from chronograd.predict.prediction import predict_step, rank_work
from chronograd.predict.relatives import CARRIED_EXPONENT
from chronograd.predict.setting import Setting, setting_of
from chronograd.trace import Trace
from chronograd_lab.common.results import Row

TABLE = "published_throughputs.csv"
_WHOLE = ("image_size", "batch_per_gpu", "gpus", "nodes")


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
    size = row["image_size"]
    job = from_dict(
        {
            "network": {"name": row["network"]},
            "data": {"name": "synthetic", "shape": [3, size, size], "classes": 1000},
            "training": {"recipe": "sgd-momentum", "batch": row["batch_per_gpu"]},
            "cluster": {"device": row["device"]},
        }
    )
    measured_s = row["batch_per_gpu"] / row["images_per_s"]
    return float(measured_s / predict_step(trace_job(job), setting_of(job)).seconds)
