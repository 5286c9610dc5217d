"""Writer of the packaged curves of fine-tuning from the published table of the PEFT library.

python -m benchmarks.large_models.fine_tuning --measured DIR
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from chronograd.files import write_aside
from chronograd.forecast import fine_tuning

TASK = "MetaMathQA"


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["task"] == TASK]


def packaged(folder: Path) -> dict[str, Any]:
    """Return the packaged table: one entry per run, with its accuracies and the seconds of steps between evaluations."""
    curves = _rows(folder / "peft_curves.csv")
    runs = []
    for row in _rows(folder / "peft.csv"):
        own = [point for point in curves if point["run"] == row["run"]]
        runs.append(
            {
                "name": row["run"].replace("--llama-3.2-3B-", " "),
                "method": row["method"],
                "trainable_params": int(row["trainable_params"]),
                "memory_bytes": int(row["memory_reserved_max_bytes"]),
                "test_accuracy": round(float(row["test_accuracy"]), 4),
                "accuracies": [float(point["valid_metric"]) for point in own],
                "seconds": [round(float(point["train_time_s"]), 1) for point in own],
            }
        )
    steps = sorted({int(point["step"]) for point in curves})
    return {"source": fine_tuning.SOURCE, "licence": "Apache-2.0", "steps": steps, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measured", type=Path, required=True)
    data = packaged(parser.parse_args().measured / "large_models")
    runs = ",\n".join(json.dumps(run) for run in data.pop("runs"))
    write_aside(fine_tuning.PATH, f'{json.dumps(data)[:-1]}, "runs": [\n{runs}\n]}}\n')


if __name__ == "__main__":
    main()
