"""The bandwidth between nodes that public runs of ResNet-50 on T4s used, fitted; each placement is also predicted without it.

    python -m benchmarks.between_nodes --measured DIR

Rows: Pollux' `imagenet` with equally many GPUs on two nodes and more. Steps are predicted as `chronograd predict` does, corrected by
the row of one GPU with the same batch; only the bandwidth of the link between nodes is free. The link `ethernet-50g-tcp` has the result.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from chronograd.data.trace_job import trace_job
from chronograd.hardware import catalog
from chronograd.job import from_dict
from chronograd.predict.prediction import predict_step
from chronograd.predict.setting import Setting, setting_of
from chronograd.trace import Trace

NOMINAL = "ethernet-50g"


@dataclass(frozen=True)
class Case:
    """A published step on several nodes. `one_gpu`: published over predicted step of one GPU with the same batch."""

    placement: str
    batch: int
    step_s: float
    one_gpu: float
    trace: Trace
    setting: Setting

    def predicted_s(self, bandwidth_bytes_per_s: float) -> float:
        """Return the step for a bandwidth between nodes, in seconds; the work is corrected, the exchange is not."""
        topology = self.setting.topology
        link = topology.inter.model_copy(update={"bandwidth_bytes_per_s": bandwidth_bytes_per_s})
        setting = replace(self.setting, topology=replace(topology, inter=link))
        return float(predict_step(self.trace, setting, self.one_gpu).seconds)


def cases(measured: Path) -> list[Case]:
    """Return the rows whose placement has equally many GPUs on each of several nodes."""
    with (measured / "pollux" / "step_and_sync_times.csv").open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["app"] == "imagenet" and row["source"] == "placements"]
    one_s = {int(row["local_bsz"]): float(row["step_time_s"]) for row in rows if row["num_replicas"] == "1"}
    chosen = [row for row in rows if len(row["placement"]) > 1 and len(set(row["placement"])) == 1]
    return [_case(row, one_s[int(row["local_bsz"])]) for row in chosen]


def _case(row: dict[str, str], one_s: float) -> Case:
    batch, per_node, count = int(row["local_bsz"]), int(row["placement"][0]), int(row["num_replicas"])
    fields: dict[str, Any] = {
        "network": {"name": "torchvision:resnet50"},
        "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000},
        "training": {"recipe": "sgd-momentum", "batch": batch},
    }
    alone = from_dict({**fields, "cluster": {"device": "t4"}, "backend": "single"})
    cluster = {"device": "t4", "count": count, "per_node": per_node, "link": NOMINAL}
    job = from_dict({**fields, "training": {**fields["training"], "batch": batch * count}, "cluster": cluster, "backend": "ddp"})  # fmt: skip
    one_gpu = one_s / predict_step(trace_job(alone), setting_of(alone)).seconds
    return Case(row["placement"], batch, float(row["step_time_s"]), float(one_gpu), trace_job(job), setting_of(job))


def logs(chosen: Sequence[Case], bandwidth_bytes_per_s: float) -> np.ndarray:
    """Return log(predicted / published) of each case."""
    return np.array([math.log(case.predicted_s(bandwidth_bytes_per_s) / case.step_s) for case in chosen])


def fit(chosen: Sequence[Case]) -> float:
    """Return the bandwidth between nodes, in bytes/s, with the least mean absolute logarithm of the ratio."""
    result = minimize_scalar(
        lambda x: float(np.abs(logs(chosen, math.exp(x))).mean()), bounds=(math.log(1e8), math.log(1e10))
    )
    return math.exp(result.x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, required=True, help="folder of published measurements")
    chosen = cases(parser.parse_args().measured)
    nominal = catalog.link(NOMINAL).bandwidth_bytes_per_s
    best = fit(chosen)
    print(
        f"{len(chosen)} steps of ResNet-50 on T4s; fitted bandwidth between nodes {best / 1e9:.3f} GB/s, of {nominal / 1e9:g} by data sheet"
    )
    print("placement  steps  left-out fit GB/s  error %  bias %   data sheet: error %  bias %")
    for placement in sorted({case.placement for case in chosen}):
        own = [case for case in chosen if case.placement == placement]
        without = fit([case for case in chosen if case.placement != placement])
        there, sheet = np.expm1(logs(own, without)), np.expm1(logs(own, nominal))
        figures = (np.abs(there).mean(), there.mean(), np.abs(sheet).mean(), sheet.mean())
        print(f"{placement:9}  {len(own):5}  {without / 1e9:17.3f}  " + "  ".join(f"{100 * x:+6.1f}" for x in figures))


if __name__ == "__main__":
    main()
