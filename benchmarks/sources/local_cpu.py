"""Our CPUs: steps predicted after `chronograd calibrate` and timed by `benchmarks.cpu`. This module reads its results."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.cpu import AIM, has_paces, is_of, judged
from benchmarks.sources import Row, row_of

FOLDER = Path(__file__).parents[1] / "results"
MACHINES = {"an EPYC's two cores": "cpu-epyc"}
RULES = {
    "unseen": "calibrate, then 24 unseen networks at batch 8",
    "host": "calibrate, then six small networks at batch 1 to 64",
}


def rows(folder: Path) -> list[Row]:
    """Return the rows of our machines. Ignores `folder`: the results are stored with the benchmark."""
    kept = [(title, group, FOLDER / name / f"{group}.json") for title, name in MACHINES.items() for group in RULES]
    return [
        row for title, group, path in kept if path.exists() for row in _rows(title, group, json.loads(path.read_text()))
    ]


def _rows(title: str, group: str, kept: dict[str, Any]) -> list[Row]:
    """Return the rows of one machine and group of cases: as timed, and scaled to the speed of the calibration if stored."""
    found = []
    environment = kept["environment"]
    kinds = ("1 process", "2 processes") if group == "unseen" else ("eager", "compiled")
    for mode, kind, is_at_pace in product(
        ("inference", "training"), kinds, (False, True) if has_paces(kept) else (False,)
    ):
        own = [case for case in judged(kept, is_at_pace) if mode in case["case"] and is_of(kind, case["case"])]
        if not own:
            continue
        right = sum(case["is_right"] for case in own)
        found.append(
            row_of(
                f"{title}, {mode}, {kind}",
                RULES[group] + ", at the speed of the calibration" * is_at_pace,
                AIM,
                [case["case"] for case in own],
                [case["predicted"] / case["measured"] for case in own],
                [case["is_inside"] for case in own],
                note=f"{environment['processor']}, {environment['cores']} cores; {right} of {len(own)} within 10 % or "
                f"within the spread of {len(kept['rounds'])} rounds{', at the speed of the calibration' * is_at_pace}",
            )
        )
    return found
