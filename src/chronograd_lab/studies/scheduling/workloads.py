"""Three workloads: as Optimus describes its own, the published one of Pollux, and twenty runs of our studies.

Optimus: nine jobs arrive within 12,000 s at 13 servers, whose CPUs have places for some 40 containers. Each job trains
synchronously or asynchronously, with parameter servers. Only ResNet-50's speed is published; other jobs are that times a random
factor, and their hours are ours.

Pollux: jobs of the three applications whose steps are in the measured tables, with the published arrivals, sizes and batches, on 64
T4 GPUs in nodes of four. Work and noise scale come from the steps that each batch needed.

Our own: the twenty runs of the study cutout with their measured seconds, on four cores. Two ranks are as much faster than one as the
study strong-and-weak measured.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from chronograd.errors import InputError
from chronograd.predict.batch_size import BatchModel
from chronograd.predict.speed import OPTIMUS_RESNET50, OPTIMUS_RESNET50_ASYNCHRONOUS, SpeedModel
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob, best_goodput

OPTIMUS, POLLUX, OWN = "Optimus", "Pollux", "our own"
# Optimus: jobs, seconds of arrivals (Peng et al., EuroSys 2018, section 6.1, as remembered), and containers of five cores.
OPTIMUS_JOBS = 9
OPTIMUS_ARRIVALS_S = 12_000
OPTIMUS_PLACES = 40
OPTIMUS_MOST = 16
# Ours: the factor of a job's speed (standard deviation of its logarithm), and the hours of a job with one worker and one server.
OPTIMUS_SPREAD, OPTIMUS_HOURS = 0.5, 6.0
# Pollux: steps to the end of training by global batch. Source: the last lines of simulator/traces/APPLICATION/validation-BATCH.csv
# of petuum/adaptdl @de25dcc (Apache-2.0), of runs of the same progress.
POLLUX_STEPS = {
    "cifar10": {128: 39062, 256: 20377, 512: 10615, 1024: 5722, 2048: 3178, 4096: 2011},
    "bert": {12: 14774, 24: 7427, 48: 3732, 96: 1885, 192: 940, 384: 480},
    "imagenet": {200: 576525, 400: 292995, 800: 150231, 1600: 78453, 3200: 42123, 6400: 23972, 12800: 14461},
}
POLLUX_WORKLOADS, POLLUX_GPUS, POLLUX_NODE = 8, 64, 4
POLLUX_TABLE = Path("pollux") / "step_and_sync_times.csv"
# Seconds of the runs of the study cutout at size laptop, two at a time with a thread each; two ranks over one of strong-and-weak.
OWN_SECONDS = (139, 138, 164, 163, 52, 52, 67, 66, 86, 85, 93, 92, 123, 124, 64, 68, 86, 86, 81, 81)
OWN_SPEED_UP = 1.24
OWN_CORES = 4
OWN_BATCH = 64

Workload = tuple[list[ScheduledJob], Pool]


def workload(name: str, seed: int, measured: Path | None = None) -> Workload:
    """Return the jobs and the cluster of a workload. Raises InputError if its measured table is not there."""
    if name == POLLUX:
        return pollux(seed % POLLUX_WORKLOADS + 1, measured)
    return {OPTIMUS: optimus, OWN: own}[name](seed)


def optimus(seed: int) -> Workload:
    """Return nine jobs with parameter servers on a cluster of CPUs."""
    random, jobs = np.random.default_rng(seed), list[ScheduledJob]()
    size, most = Allocation(4, 4), Allocation(OPTIMUS_MOST, OPTIMUS_MOST)
    for i, arrival_s in enumerate(np.sort(random.uniform(0, OPTIMUS_ARRIVALS_S, OPTIMUS_JOBS))):
        known = OPTIMUS_RESNET50 if random.random() < 0.5 else OPTIMUS_RESNET50_ASYNCHRONOUS
        times = float(np.exp(OPTIMUS_SPREAD * random.standard_normal()))
        model = SpeedModel(known.mode, tuple(times * a for a in known.coefficients), known.batch)
        alone_s = 3600 * OPTIMUS_HOURS * float(np.exp(OPTIMUS_SPREAD * random.standard_normal()))
        steps = alone_s * model.steps_per_s(1, 1)
        jobs.append(ScheduledJob.of_model(f"job-{i}", float(arrival_s), steps, model, size, most))
    return jobs, Pool(OPTIMUS_PLACES, is_shared=True, title="container")


def own(seed: int) -> Workload:
    """Return our twenty runs in a random order, which arrive as a Poisson process at four cores."""
    random = np.random.default_rng(seed)
    gap_s = sum(OWN_SECONDS) / len(OWN_SECONDS) / OWN_CORES
    arrivals = np.cumsum(random.exponential(gap_s, len(OWN_SECONDS)))
    jobs = []
    for i, run in enumerate(random.permutation(len(OWN_SECONDS))):
        # A step of one second alone: computation 1/w, exchange a2 (w − 1)/w, so that two ranks take 1/OWN_SPEED_UP.
        model = SpeedModel("all-reduce", (1 / OWN_BATCH, 0, 2 / OWN_SPEED_UP - 1, 0), OWN_BATCH)
        gpus = int(random.choice([1, 2]))
        seconds = float(OWN_SECONDS[run])
        jobs.append(
            ScheduledJob.of_model(
                f"run-{run}", float(arrivals[i]), seconds, model, Allocation(gpus), Allocation(OWN_CORES)
            )
        )
    return jobs, Pool(OWN_CORES, title="core")


def pollux(number: int, measured: Path | None) -> Workload:
    """Return the jobs of a published workload of Pollux on 64 T4 GPUs. Raises InputError without the measured table."""
    if measured is None or not (measured / POLLUX_TABLE).is_file():
        raise InputError("the workload of Pollux needs its measured steps", "set CHRONOGRAD_MEASURED to their folder")
    jobs = list[ScheduledJob]()
    text = resources.files(__package__).joinpath("pollux_jobs.csv").read_text()
    for row in csv.DictReader(line for line in text.splitlines() if not line.startswith("#")):
        if int(row["workload"]) == number:
            app, batch = row["application"], int(row["batch"])
            speeds, goodput = speeds_of(measured, app, batch)
            jobs.append(
                ScheduledJob(
                    f"{app}-{len(jobs)}",
                    float(row["arrival_s"]),
                    batch_model(app).samples(batch),
                    [[0.0], *([rate] for rate in speeds)],
                    Allocation(int(row["gpus"])),
                    goodput,
                )
            )
    return jobs, Pool(POLLUX_GPUS, gpus_per_node=POLLUX_NODE, title="T4")


@functools.cache
def batch_model(app: str) -> BatchModel:
    """Return the steps of an application by batch, fitted with equal weight of relative errors."""
    batches, steps = (np.array(column, float) for column in zip(*POLLUX_STEPS[app].items(), strict=True))
    (least, samples), _ = nnls(np.column_stack([1 / steps, 1 / batches / steps]), np.ones(len(steps)))
    return BatchModel(float(least), float(samples))


@functools.cache
def speeds_of(measured: Path, app: str, batch: int) -> tuple[Sequence[float], Sequence[float]]:
    """Return samples per second on 1 to 64 GPUs at a batch, and the goodput with the best batch."""
    step_s = step_times(measured / POLLUX_TABLE, app)
    gpus = range(1, POLLUX_GPUS + 1)

    def rate(n: int, b: int) -> float:
        return b / step_s(n, b)

    noise_scale = batch_model(app).noise_scale
    batches = [b for b in POLLUX_STEPS[app] if b <= 2 * batch]
    by_batch = [{b: rate(n, b) for b in batches if b >= n} for n in gpus]
    return [rate(n, batch) for n in gpus], best_goodput(by_batch, batch, noise_scale)


def step_times(path: Path, app: str) -> Callable[[int, int], float]:
    """Return a function of GPUs and global batch: seconds of a step, with packed GPUs, between the measured points.

    A local batch above the largest measured one is accumulated over several parts. Only the last one synchronises.
    """
    points: dict[int, dict[int, tuple[float, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            n, nodes = int(row["num_replicas"]), int(row["num_nodes"])
            if row["app"] == app and nodes == math.ceil(n / POLLUX_NODE):
                point = float(row["step_time_s"]), float(row["sync_time_s"])
                points.setdefault(n, {}).setdefault(int(row["local_bsz"]), point)
    counts = sorted(points)

    def at(n: int, local: float) -> np.ndarray:
        batches = sorted(points[n])
        columns = np.array([points[n][b] for b in batches])
        return np.array([np.interp(local, batches, columns[:, i]) for i in (0, 1)])

    def seconds(n: int, batch: int) -> float:
        local = max(1.0, batch / n)
        parts = math.ceil(local / max(points[counts[0]]))
        step, sync = (
            float(np.interp(math.log(n), [math.log(c) for c in counts], column))
            for column in np.array([at(c, local / parts) for c in counts]).T
        )
        return step + (parts - 1) * max(step - sync, 0.0)

    return seconds
