"""Memory, traffic and loss of ranks with sharded parameters on this CPU, next to the prediction and to one process.

    python -m benchmarks.sharded --json benchmarks/results/sharded.json
    python -m benchmarks.sharded --table --json benchmarks/results/sharded.json

Backends fsdp (ZeRO 2 and 3) and tensor_parallel run on two and four processes with gloo. Memory is the peak of the rank with the most, from
the allocator's events in a step after the clock. Traffic is the sum of the sizes that one step gives to collectives. Losses are
compared with those of one process, after steps 1 and 20. Batch norm has other statistics on each rank, so its network has no such row.
This benchmark measures no times, so other programs may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chronograd.count.cached import cached_trace
from chronograd.job import Job, changed, from_dict
from chronograd.launch import jobs
from chronograd.measure import environment
from chronograd.measure.result import Timing
from chronograd.predict.memory import footprint_of_job
from chronograd.predict.sharding import sent_bytes

LLAMA, RESNET, VIT = "decoder", "resnet20", "vision transformer"
STEPS = 24
NETWORKS: dict[str, dict[str, Any]] = {
    LLAMA: {
        "network": {
            "name": "llama-7b",
            "options": {"layers": 4, "width": 256, "heads": 4, "ffn": 688, "vocab": 512, "sequence": 64},
        },
        "data": {"name": "tokens", "shape": [64], "classes": 512, "samples": 8 * STEPS},
        "training": {"recipe": "adamw", "batch": 8, "learning_rate": 0.001},
    },
    RESNET: {
        "network": {"name": "resnet20"},
        "data": {"name": "synthetic", "shape": [3, 32, 32], "classes": 10, "samples": 32 * STEPS},
        "training": {"recipe": "sgd-momentum", "batch": 32},
    },
    VIT: {
        "network": {"name": "timm:vit_tiny_patch16_224", "options": {"img_size": 64, "depth": 4}},
        "data": {"name": "synthetic", "shape": [3, 64, 64], "classes": 10, "samples": 16 * STEPS},
        "training": {"recipe": "adamw", "batch": 16, "learning_rate": 0.001},
    },
}


def make_job(network: str, *overrides: str) -> Job:
    job = from_dict({**NETWORKS[network], "cluster": {"device": "cpu", "threads": 1}})
    return changed(job, ["training.epochs=1", *overrides])


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield networks and overrides of their jobs."""
    for ranks in (2, 4):
        for network in NETWORKS:
            for stage in (2, 3):
                yield network, ["backend=fsdp", f"cluster.count={ranks}", f"training.zero_stage={stage}"]
        yield LLAMA, ["backend=tensor_parallel", f"cluster.count={ranks}"]


def losses(job: Job, out: Path) -> list[float]:
    return [
        float(loss or 0) for loss in jobs.train(job, out=out, launcher="local").record().curves["loss"].columns["loss"]
    ]


def row(network: str, job: Job, expected: Sequence[float], folder: Path) -> dict[str, Any]:
    """Measure and train one job, and predict it."""
    record = jobs.measure(job, Timing(1, 1), flops_per_step=1.0, out=folder / "measured", launcher="local").record()
    trace = cached_trace(
        job.network.name, job.network.options, input_shape=job.data.shape, num_classes=job.data.classes
    )
    found: dict[str, Any] = {
        "network": network,
        "backend": job.backend,
        "ranks": job.cluster.count,
        "zero_stage": job.training.zero_stage,
        "memory_bytes": record.value("memory_peak_bytes"),
        "predicted_memory_bytes": footprint_of_job(trace, job).at(job.images_per_rank).total,
        "sent_bytes": record.value("sent_bytes"),
        "predicted_sent_bytes": sent_bytes(trace, job),
    }
    if network != RESNET:
        got = losses(job, folder / "trained")
        # A line has the loss before its update, so lines 2 and 21 have the losses after steps 1 and 20.
        found |= {f"loss_after_{step}": abs(got[step] - expected[step]) for step in (1, 20)}
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| network | backend | ranks | memory, measured | predicted | error | sent per step, measured | predicted | loss, after 1 step | after 20 |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in rows:
        error = one["predicted_memory_bytes"] / one["memory_bytes"] - 1
        backend = one["backend"] + (f", ZeRO {one['zero_stage']}" if one["zero_stage"] else "")
        apart = [f"{one[name]:.1e}" if name in one else "–" for name in ("loss_after_1", "loss_after_20")]
        memory = [f"{one[name] / 2**20:.2f} MiB" for name in ("memory_bytes", "predicted_memory_bytes")]
        sent = [f"{one[name]:,.0f} B" for name in ("sent_bytes", "predicted_sent_bytes")]
        cells = [one["network"], backend, str(one["ranks"]), *memory, f"{error:+.1%}", *sent, *apart]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True, help="file of the results")
    parser.add_argument("--table", action="store_true", help="print the results in the file, run nothing")
    arguments = parser.parse_args()
    if not arguments.table:
        own, rows = environment.environment(), list[dict[str, Any]]()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            single = {network: losses(make_job(network), folder / network) for network in NETWORKS}
            for number, (network, overrides) in enumerate(cases()):
                rows.append(row(network, make_job(network, *overrides), single[network], folder / str(number)))
                print(json.dumps(rows[-1]), flush=True)
        result = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": {key: own[key] for key in ("processor", "cores", "versions")},
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(table(json.loads(arguments.json.read_text())["rows"]))


if __name__ == "__main__":
    main()
