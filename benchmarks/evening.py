"""Predicted cost of a larger size of a study, from its jobs, without running them.

    python -m benchmarks.evening

Hours on two cores follow from the measured time of one image, forward and backward, on one thread. Hours on an H200 are
predicted for steps alone, with consecutive runs in bf16 with CUDA graphs. They leave out start-up, input and evaluation, which
dominate short runs. The hours go to src/chronograd_lab/common/costs.csv. The study's page and docs/studies/README.md print them.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from chronograd.data.datasets import card
from chronograd.data.trace_job import trace_job
from chronograd.errors import ChronogradError
from chronograd.files import write_aside
from chronograd.job import Job, changed, from_dict
from chronograd.predict.prediction import predict
from chronograd.rundir import RunDir
from chronograd_lab.common import study as study_module
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, settings_of
from chronograd_lab.studies import studies

COSTS = Path(study_module.__file__).with_name("costs.csv")
GPU = "h200"
# Milliseconds of one thread of an AMD EPYC, for forward and backward of one 32 × 32 image. Measured on 2026-11-25 and 26.
# Jobs in bf16 have channels last.
MS_PER_IMAGE = {
    "fp32": {"resnet8": 1.2, "resnet20": 3.2, "resnet44": 7.3, "resnet9": 20.0},
    "bf16": {"resnet20": 2.0, "resnet44": 4.8},
}
_ON_GPU = (
    f"cluster.device={GPU}", "training.precision=bf16", "training.channels_last=true", "training.compile=cuda-graphs",
)  # fmt: skip


class Listing(StudyRunner):
    """Launcher that runs nothing: collects its jobs, and returns their future run directories."""

    def __init__(self, folder: Path, study: str, size: str) -> None:
        super().__init__(folder, study, size, lambda text: None)
        self.jobs: list[Job] = []

    def train(self, experiments: Any) -> dict[str, RunDir]:
        self.jobs += experiments.values()
        return {name: RunDir(self.path(name)) for name in experiments}


def jobs(study: Study, size: str) -> list[Job]:
    """Return every job of a size of a study that only trains. Stops when the study reads the result of a training."""
    settings = settings_of(study, size)
    with tempfile.TemporaryDirectory() as folder:
        listing = Listing(Path(folder), study.name, size)
        with contextlib.suppress(ChronogradError, OSError):
            study.conduct(listing, settings)
    return listing.jobs


def steps(job: Job) -> float:
    return float(job.training.epochs) * (card(job.data).train_size // job.training.batch)


def core_s(job: Job) -> float:
    """Return the seconds of one core for a job's training, from the measured network that is nearest to its network in FLOPs.

    An image of another size costs in proportion to its FLOPs.
    """
    image = trace_job(job).flops(1)
    costs = {name: (_flops_of_image(name), 1e-3 * ms) for name, ms in MS_PER_IMAGE[job.training.precision].items()}
    near = (
        job.network.name
        if job.network.name in costs
        else min(costs, key=lambda name: abs(math.log(costs[name][0] / image)))
    )
    measured_flops, measured_s = costs[near]
    return steps(job) * job.training.images_per_step * measured_s * image / measured_flops


@cache
def _flops_of_image(network: str) -> float:
    """Return the FLOPs of a training step on one 32 × 32 image."""
    data = {"name": "synthetic", "shape": [3, 32, 32], "classes": 10}
    return float(trace_job(from_dict({"network": {"name": network}, "data": data})).flops(1))


def core_hours(study: Study, size: str) -> float:
    """Return the hours of one core that is busy all the time, without start-up and evaluation."""
    return float(sum(map(core_s, jobs(study, size))) / 3600)


def hours_on_a_gpu(study: Study, size: str) -> float:
    step_s: dict[str, float] = {}
    total_s = 0.0
    for job in jobs(study, size):
        there = changed(job, _ON_GPU)
        kind = f"{job.network.name} {card(job.data).shape} {job.training.images_per_step}"
        if kind not in step_s:
            step_s[kind] = predict(trace_job(there), there).value("step_time_s")
        total_s += steps(job) * step_s[kind]
    return total_s / 3600


def main() -> None:
    lines = [
        "# Hours of larger sizes of studies: one core, from the measured cost of an image, and the steps alone on an H200, predicted.",
        "# Written by python -m benchmarks.evening.",
        "study,size,core_hours,h200_hours",
    ]
    for name, study in studies().items():
        for one in study.not_run:
            lines.append(f"{name},{one.size},{core_hours(study, one.size):.3g},{hours_on_a_gpu(study, one.size):.2g}")
            print(f"{lines[-1]}  ({len(jobs(study, one.size))} runs)", flush=True)
    write_aside(COSTS, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
