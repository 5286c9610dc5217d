"""Scheduling: seconds to simulate 1,000 jobs on 256 GPUs, for each policy.

    python -m benchmarks.scheduling [--jobs 1000] [--gpus 256] [--json]

Jobs arrive as a Poisson process, one a minute, and their speed follows an all-reduce with Optimus' coefficients. Everything but the
making of the jobs is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import numpy as np

from chronograd.predict.speed import OPTIMUS_RESNET50
from chronograd.schedule.events import Conditions, simulate
from chronograd.schedule.jobs import Allocation, Pool, ScheduledJob
from chronograd.schedule.policies import names, policy

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    jobs, pool = workload(arguments.jobs, most=16), Pool(arguments.gpus, gpus_per_node=4)
    found = {}
    for name in names():
        start = time.process_time(), time.perf_counter()
        timetable = simulate(jobs, pool, policy(name), Conditions(), np.random.default_rng(0))
        cpu_s, wall_s = time.process_time() - start[0], time.perf_counter() - start[1]
        found[name] = {"wall_s": wall_s, "cpu_s": cpu_s, "completion_s": float(timetable.completion_s.mean())}
    if arguments.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "aim_s": AIM_S, "policies": found}))
        return
    for name, one in found.items():
        print(f"{name:10} {one['wall_s']:6.2f} s ({one['cpu_s']:.2f} s of CPU; aim {AIM_S:g} s)")


if __name__ == "__main__":
    main()
