"""Scheduling: a published cluster and its simulation, and seconds to simulate 1,000 jobs on 256 GPUs for each policy.

    python -m benchmarks.scheduling [--jobs 1000] [--gpus 256] [--json FILE]

The cluster is 32 V100 that ran 120 jobs under three policies; its tables are in CHRONOGRAD_MEASURED. The timed jobs
arrive as a Poisson process, one a minute, and their speed follows an all-reduce with Optimus' coefficients. Everything but the making of
the jobs is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from chronograd.predict.speed import OPTIMUS_RESNET50
from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.policies import names, policy
from chronograd_lab.common.published_runs import MEASURED_VARIABLE, measured_folder
from chronograd_lab.common.results import Row
from chronograd_lab.studies.scheduling import cluster

AIM_S = 10.0


def workload(count: int, most: int, seed: int = 0) -> list[ScheduledJob]:
    """Return random jobs of 1 to 8 requested workers, whose hours are log-normal."""
    random = np.random.default_rng(seed)
    arrivals, model = np.cumsum(random.exponential(60.0, count)), OPTIMUS_RESNET50.all_reduce()
    return [
        ScheduledJob.of_model(
            f"job-{i}", float(arrivals[i]), float(random.lognormal(6, 1)), model, Allocation(int(random.choice([1, 2, 4, 8]))),
            Allocation(most), work_sigma=0.2, speed_sigma=0.1,
        )
        for i in range(count)
    ]  # fmt: skip


def timed(count: int, gpus: int) -> dict[str, dict[str, float]]:
    """Return by policy: seconds of a simulation, and the mean completion of its jobs."""
    jobs, pool = workload(count, most=16), Pool(gpus, gpus_per_node=4)
    times: dict[str, dict[str, float]] = {}
    for name in names():
        start = time.process_time(), time.perf_counter()
        timetable = simulate(jobs, pool, policy(name), Conditions(), np.random.default_rng(0))
        cpu_s, wall_s = time.process_time() - start[0], time.perf_counter() - start[1]
        times[name] = {"wall_s": wall_s, "cpu_s": cpu_s, "completion_s": float(timetable.completion_s.mean())}
    return times


def others(measured: Path | None) -> dict[str, dict[str, float]]:
    """Return the simulated mean completion and makespan of the published jobs under the policies that did not run."""
    jobs, pause_s = cluster.jobs(measured), cluster.pause_s(measured)
    schedules = {name: cluster.simulated(name, jobs, pause_s) for name in names() if name not in cluster.POLICIES}
    return {
        name: {"completion_s": float(schedule.completion_s.mean()), "makespan_s": schedule.makespan_s}
        for name, schedule in schedules.items()
    }


def show(rows: Sequence[Row]) -> None:
    """Print the published cluster: measured, simulated, error, and the error of its authors' simulator."""
    print(f"120 jobs on 32 V100, a pause of {rows[0]['pause_s']:.1f} s fitted on {rows[0]['policy']}")
    print(f"{'policy':8}{'':12}{'physical':>10}{'simulated':>10}{'error':>8}{'authors':>9}")
    for row in rows:
        for measure in ("completion", "makespan"):
            errors = f"{row[f'{measure}_error']:+8.1%}{row[f'authors_{measure}_error']:+9.1%}"
            print(
                f"{row['policy']:8}{measure:12}{row[f'physical_{measure}_s']:10.0f}{row[f'{measure}_s']:10.0f}{errors}"
            )
    for measure in ("completion", "makespan"):
        off = [float(row[f"{measure}_error"]) for row in rows]
        print(f"{measure}: mean error {np.abs(off).mean():.1%}, bias {np.mean(off):+.1%}")
    for row in rows:
        print(
            f"{row['policy']:8} a job {row['job_error']:.0%} off on average (bias {row['job_bias']:+.0%}); GPU time of the run over that "
            f"of its table {row['gpu_time']:.2f}; unfair jobs {row['unfair']:.0%}, physical {row['physical_unfair']:.0%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, object] = {"machine": platform.processor() or platform.machine(), "aim_s": AIM_S}
    measured = measured_folder()
    if measured is None:
        print(f"{MEASURED_VARIABLE} names no folder: the published cluster is left out")
    else:
        rows = cluster.rows(measured)
        show(rows)
        result |= {"cluster": rows, "other_policies": others(measured)}
    times = timed(arguments.jobs, arguments.gpus)
    for name, row in times.items():
        print(f"{name:10} {row['wall_s']:6.2f} s ({row['cpu_s']:.2f} s of CPU; aim {AIM_S:g} s)")
    if arguments.json:
        arguments.json.write_text(json.dumps({**result, "policies": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
