"""Check that `predict` accepts the FSDP configurations that ran on 80 GB cards, as published by llm-foundry.

    python -m benchmarks.fsdp_memory --measured DIR

All rows ran, so "does not fit" is always wrong. A row that ran does not bound the largest batch, so a prediction that is too
low passes. MPT is traced as GPT-2 with its depth, width, heads and vocabulary, without dropout; its ALiBi has no learned
positions.
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from pathlib import Path

from chronograd import job as jobs
from chronograd.count.cached import cached_trace
from chronograd.hardware import catalog
from chronograd.predict.memory import footprint_of_job, overhead, reserve_bytes

# Layers, width and heads: MosaicML's MPT configurations.
MPT = {
    "mpt-125m": (12, 768, 12), "mpt-350m": (24, 1024, 16), "mpt-760m": (24, 1536, 12), "mpt-1b": (24, 2048, 16),
    "mpt-3b": (32, 2560, 20), "mpt-7b": (32, 4096, 32), "mpt-13b": (40, 5120, 40), "mpt-30b": (48, 7168, 56),
    "mpt-70b": (80, 8192, 64),
}  # fmt: skip
VOCABULARY = 50_368


def job_of(row: dict[str, str]) -> jobs.Job:
    layers, width, heads = MPT[row["model"]]
    ranks = int(row["num_gpus"])
    return jobs.from_dict(
        {
            "network": {
                "name": "gpt2-small",
                "options": {"layers": layers, "width": width, "heads": heads, "dropout": 0.0},
            },
            "data": {
                "name": "synthetic",
                "shape": [int(row["seq_length"])],
                "classes": VOCABULARY,
                "samples": 1_000_000,
            },
            "training": {
                "recipe": "adamw",
                "batch": int(row["micro_batch"]) * ranks,
                "precision": "bf16",
                "zero_stage": 3,
                "activation_checkpointing": "blocks" if row["activation_checkpointing"] == "1" else "none",
            },
            "cluster": {"device": "a100-80", "count": ranks},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measured", type=Path, required=True, help="published tables")
    with (parser.parse_args().measured / "large_models" / "llm_foundry.csv").open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["gpu"] == "a100_80gb" and row["sharding"] == "FULL_SHARD"]
    device = catalog.device("a100-80")
    room, factors = device.usable_bytes - reserve_bytes(device), overhead(device, "training")
    verdicts: Counter[str] = Counter()
    for row in rows:
        job = job_of(row)
        trace = cached_trace(
            job.network.name, job.network.options, input_shape=job.data.shape, num_classes=job.data.classes
        )
        needed = footprint_of_job(trace, job).at(int(row["micro_batch"])).total
        verdict = (
            "does not fit"
            if needed > room
            else "may not fit, by the median factor"
            if needed * factors.median > room
            else "may not fit, by the high factor"
            if needed * factors.high > room
            else "fits"
        )
        verdicts[verdict] += 1
        print(f"{row['model']:9} {row['seq_length']:>6} x {row['micro_batch']:>3} {needed / 2**30:6.1f} GiB  {verdict}")
    print(
        f"{len(rows)} configurations that ran: " + ", ".join(f"{verdict} {n}" for verdict, n in verdicts.most_common())
    )


if __name__ == "__main__":
    main()
