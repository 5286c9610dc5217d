"""Speed of the search over layouts, and the regret of its choice.

    python -m benchmarks.large_models.layouts [--measured DIR] [--signed]

Speed: layouts per second whose memory is computed, and seconds of a search for llama-3-70b on 1,024 H100.

Regret: how much longer than the best layout of its group the chosen layout takes, on vTrain's groups with four layouts or more. The rule
of thumb takes the most data parallelism, then the largest micro-batch. Regrets of equal layouts are averaged. The rows are also scored in
two halves of the groups, by a seed, and separately where the best layout is odd: it takes less time per micro-batch than with a smaller one.
`--signed` prints the mean log of predicted / measured, relative to its group, for each degree.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.large_models.step import LEAST_LAYOUTS, Scored
from chronograd.large.layout_asking import ask_layouts
from chronograd.large.layouts import grids_of, used_bytes
from chronograd.large.search import searched
from chronograd.large.step import step_of
from chronograd_lab.common.large_runs import timed

QUESTION: tuple[str, list[str], dict[str, int], str] = (
    "llama-3-70b",
    [],
    {"sequence": 8192, "batch": 1024},
    "1024xh100",
)
SEED = 0
Group = Sequence[Scored]


def speed() -> None:
    """Print the layouts per second of memory, and the seconds of a search."""
    asked = ask_layouts(*QUESTION)
    start = time.perf_counter()
    number = sum(len(used_bytes(grid)) for grid in grids_of(asked.setting, asked.fixed))
    seconds = time.perf_counter() - start
    print(f"memory: {number:,} layouts in {seconds:.2f} s, {number / seconds:,.0f} layouts/s")
    start = time.perf_counter()
    found = searched(asked.setting, asked.fixed)
    seconds = time.perf_counter() - start
    print(f"search: {seconds:.1f} s for {found.legal:,} layouts; {found.fitting:,} fit and {found.timed:,} were timed")


def groups_of(measured: Path) -> list[Group]:
    found: dict[str, list[Scored]] = defaultdict(list)
    for row in timed(measured / "large_models"):
        if row.file == "vtrain":
            found[row.group].append(Scored(row, step_of(row.setting, row.software)))
    return [group for group in found.values() if len(group) >= LEAST_LAYOUTS]


def regret(group: Group, key: Callable[[Scored], object]) -> float:
    """Return the mean regret of the layouts with the least key."""
    least = min(map(key, group))  # type: ignore[type-var]
    chosen = [one.row.measured_s for one in group if key(one) == least]
    return float(np.mean(chosen)) / min(one.row.measured_s for one in group) - 1


CHOICES: dict[str, Callable[[Scored], object]] = {
    "search": lambda one: one.step.step_s,
    "random layout": lambda one: 0,
    "rule of thumb": lambda one: (-one.row.setting.data, -one.row.setting.micro_batch),
}


def line(title: str, groups: Sequence[Group], key: Callable[[Scored], object]) -> str:
    regrets = 100 * np.array([regret(group, key) for group in groups])
    return f"{title:34} {regrets.mean():6.1f} {np.quantile(regrets, 0.9):12.1f} {regrets.max():7.1f} {len(groups):7}"


def halves(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Return a seeded half of the groups, and the other half."""
    order = list(range(len(groups)))
    random.Random(SEED).shuffle(order)
    first = set(order[: len(order) // 2])
    return [groups[i] for i in sorted(first)], [group for i, group in enumerate(groups) if i not in first]


def odd(groups: Sequence[Group]) -> list[bool]:
    """Return for each group whether its best layout takes less time per micro-batch than with a smaller micro-batch.

    No model in which more work takes longer predicts both. The smaller micro-batch may be in another group of the same network.
    """

    def key(one: Scored) -> tuple[object, ...]:
        layout = one.row.setting.layout
        return one.row.setting.model, layout.tensor, layout.pipeline

    def per_micro_batch_s(one: Scored) -> float:
        return one.row.measured_s / (one.row.setting.micro_batches + one.row.setting.layout.pipeline - 1)

    known: dict[tuple[object, ...], list[Scored]] = defaultdict(list)
    for one in (one for group in groups for one in group):
        known[key(one)].append(one)
    best = [min(group, key=lambda one: one.row.measured_s) for group in groups]
    return [
        any(
            other.row.setting.micro_batch < one.row.setting.micro_batch
            and per_micro_batch_s(other) > per_micro_batch_s(one)
            for other in known[key(one)]
        )
        for one in best
    ]


def relative(group: Group) -> list[float]:
    """Return log(predicted / measured) of each layout, minus its mean over the group."""
    errors = [one.log_error for one in group]
    return [error - float(np.mean(errors)) for error in errors]


def signed(groups: Sequence[Group]) -> None:
    """Print the mean relative error of the layouts with each degree."""
    degrees: dict[str, Callable[[Scored], int]] = {
        "tensor": lambda one: one.row.setting.layout.tensor,
        "pipeline": lambda one: one.row.setting.layout.pipeline,
        "data": lambda one: one.row.setting.data,
        "micro-batch": lambda one: one.row.setting.micro_batch,
    }
    pairs = [(one, error) for group in groups for one, error in zip(group, relative(group), strict=True)]
    for name, value in degrees.items():
        for degree in sorted({value(one) for one, _ in pairs}):
            own = [error for one, error in pairs if value(one) == degree]
            print(f"{name} {degree:4}: {100 * np.mean(own):+6.1f} %  {len(own)} layouts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=Path(os.environ.get("CHRONOGRAD_MEASURED", "measured")))
    parser.add_argument("--signed", action="store_true", help="print the errors by degree")
    arguments = parser.parse_args()
    speed()
    groups = groups_of(arguments.measured)
    spread = math.sqrt(2) * float(np.std([error for group in groups for error in relative(group)]))
    print(f"\nregret on vTrain, %{'':14} mean  worst tenth     max  groups")
    for name, key in CHOICES.items():
        print(line(name, groups, key))
    for name, half in zip(("first half", "second half"), halves(groups), strict=True):
        print(line(f"search, {name}", half, CHOICES["search"]))
    are_odd = odd(groups)
    for name, expected in (("search, best is odd", True), ("search, other groups", False)):
        found = [group for group, is_odd in zip(groups, are_odd, strict=True) if is_odd == expected]
        print(line(name, found, CHOICES["search"]))
    print(f"standard deviation of the error of the ratio of two layouts: {spread:.3f}")
    if arguments.signed:
        signed(groups)


if __name__ == "__main__":
    main()
