"""Planning: number of settings (device, count, batch, algorithm) per second evaluated from one trace, including the choice for
a goal.

    python -m benchmarks.planning [--network torchvision:resnet50] [--repeats 3] [--json]

The trace is read before the clock starts; everything else is timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time

import numpy as np

from chronograd import job as jobs
from chronograd.count.cached import cached_trace
from chronograd.hardware import catalog
from chronograd.plan.goal import Goal, SamplesToTarget, changes, choose
from chronograd.plan.renting import rent
from chronograd.plan.settings import evaluate
from chronograd.predict.collectives import ALGORITHMS
from chronograd.predict.prediction import predict_step
from chronograd.predict.setting import setting_of

AIM_SETTINGS = 100_000
AIM_S = 2.0
# 90 epochs of ImageNet at batch 256, in three days for a thousand dollars.
EFFORT, GOAL = SamplesToTarget(90 * 1_281_167, 256), Goal(1000.0, 3 * 86400.0)
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def job_of(network: str, **cluster: object) -> jobs.Job:
    """Return a job of the network in fp32; nothing here depends on the sample size."""
    data = {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000}
    return jobs.from_dict({"network": {"name": network}, "data": data, "cluster": cluster})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="torchvision:resnet50")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = cached_trace(arguments.network)
    job = job_of(arguments.network)
    devices = [d for d in catalog.devices() if d.kind == "gpu"]
    per_count = len(devices) * len(BATCHES) * len(ALGORITHMS)
    counts = list(range(1, 1 + -(-AIM_SETTINGS // per_count)))
    seconds: list[float] = []
    choosing: list[float] = []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        table = evaluate(trace, job, devices, counts, BATCHES, ALGORITHMS)
        of_settings = time.perf_counter() - start
        choices = choose(rent(table, devices, job), EFFORT, GOAL)
        chosen = choices.chosen is not None and changes(choices) and choices.pareto_front()
        choosing.append(time.perf_counter() - start - of_settings)
        assert chosen, "no setting meets the goal"
        seconds.append(time.perf_counter() - start)
    best, num = min(seconds), len(table["count"])
    result = {
        "network": arguments.network,
        "operators": len(trace.operators),
        "settings": num,
        "devices": len(devices),
        "counts": len(counts),
        "batches": len(BATCHES),
        "algorithms": len(ALGORITHMS),
        "seconds": best,
        "median_s": statistics.median(seconds),
        "of_it_choosing_s": min(choosing),
        "settings_per_s": num / best,
        "aim": f"{AIM_SETTINGS} in {AIM_S:g} s",
        "largest_difference_from_predict_step": _difference(trace, job, devices, table),
        "processor": platform.processor() or platform.machine(),
    }
    if arguments.json:
        print(json.dumps(result, indent=1))
        return
    for name, value in result.items():
        print(f"{name:38} {value:,.6g}" if isinstance(value, float) else f"{name:38} {value}")


def _difference(trace, job, devices, table, samples: int = 50) -> float:  # type: ignore[no-untyped-def]
    """Return the largest relative difference between the step time and a single prediction, over random settings."""
    worst = 0.0
    for i in np.random.default_rng(0).choice(len(table["count"]), samples, replace=False):
        count, batch = int(table["count"][i]), int(table["batch_per_rank"][i])
        fields = [f"cluster.count={count}", f"training.batch={batch * count}"]
        algorithm = ALGORITHMS[table["algorithm"][i]]
        step = predict_step(trace, setting_of(jobs.changed(job, fields), algorithm, devices[table["device"][i]]))
        worst = max(worst, abs(table["step_time_s"][i] / step.seconds - 1))
    return worst


if __name__ == "__main__":
    main()
