"""Check that predicted largest batches fit, using the batches that ran in timm's GPU benchmark.

    python -m benchmarks.memory --measured DIR [--limit N] [--json FILE] [--write]
    python -m benchmarks.memory --from FILE --write

timm lowers the batch by a ladder (512, 384, 256, 192, 128, ...) until a network no longer runs out of memory. So the batch of a
row fits, and the next larger rung does not, unless the row has the first rung of its table. A prediction is consistent with a
row if it lies between the two. Half of the networks, chosen by a seed, fit the extra memory of a step as a factor of its
tensors. The other half is scored. --write puts the score into docs/planning.md.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from chronograd.count.cached import cached_trace
from chronograd.errors import ChronogradError
from chronograd.fit.tables import read_table, shuffled
from chronograd.hardware import catalog
from chronograd.predict.memory import footprint, overhead, reserve_bytes

RUNGS = sorted({2**k for k in range(11)} | {3 * 2**k for k in range(9)})
SEED = 0
DEVICE = "rtx3090"  # of the rows
LARGEST_SIGMA = 1.0
PARAMS_ROUNDING_M = 0.02
PAGE = Path(__file__).parents[1] / "docs" / "planning.md"
BEGIN, END = "<!-- python -m benchmarks.memory --write -->\n", "<!-- end of memory -->\n"


@dataclass(frozen=True)
class Bound:
    """Bounds from a row: bytes of the tensors at the batch that ran, and at the next rung, which failed; None if no rung
    failed.

    `capacity` is the memory of the device less the reserve; `envelope` the lines of the footprint, (constant, per sample).
    """

    table: str
    network: str
    mode: str
    ran: int
    failed: int | None
    ran_bytes: float
    failed_bytes: float | None
    capacity: float
    lines: list[list[float]]

    def verdict(self, share: float) -> str:
        """Return the verdict on the largest batch whose tensors fill at most `share` of the capacity."""
        if self.ran_bytes > share * self.capacity:
            return "too low"
        is_high = self.failed_bytes is not None and self.failed_bytes <= share * self.capacity
        return "too high" if is_high else "consistent"

    def largest(self, share: float) -> int:
        return int(min((share * self.capacity - c) // p for c, p in self.lines if p > 0))


def next_rung(batch: int) -> int:
    """Return the next larger batch of timm's ladder.

    >>> next_rung(256), next_rung(384), next_rung(2)
    (384, 512, 3)
    """
    return int(next(rung for rung in RUNGS if rung > batch))


def bounds(folder: Path, limit: int | None) -> Iterator[Bound]:
    """Yield the bounds of every GPU table with a column of batches, in an order that the seed draws."""
    for path in sorted(folder.glob("timm/benchmark-*.csv")):
        table = read_table(path)
        if table.device is None or "cpu" in path.name:
            continue
        device = catalog.device(table.device)
        first = max(row.batch for row in table.rows)
        # Rows that ran at the first rung give only a lower bound of the batch, and a loose one.
        rows = [row for row in shuffled(table.rows, SEED) if row.batch < first]
        for row in rows[:limit]:
            try:
                traced = cached_trace(
                    f"timm:{row.model}",
                    input_shape=(3, row.image_size, row.image_size),
                    mode=table.mode,
                    channels_last=table.channels_last,
                )
                lines = footprint(traced, "sgd-momentum", precision=table.stated_precision)
            except ChronogradError:
                continue
            if row.params_m is not None and abs(traced.params / 1e6 - row.params_m) > PARAMS_ROUNDING_M:
                continue
            failed = next_rung(row.batch)
            at = lines.peak_bytes(np.array([row.batch, failed]))
            yield Bound(
                path.stem, row.model, table.mode, row.batch, failed, float(at[0]), float(at[1]),
                float(device.usable_bytes - reserve_bytes(device)), lines.envelope.tolist(),
            )  # fmt: skip


def fitted(some: Sequence[Bound]) -> tuple[float, float]:
    """Return median and deviation of log(needed / predicted memory), by maximum likelihood: ran <= capacity < failed."""
    most = np.log([one.capacity / one.ran_bytes for one in some])
    least = np.log([one.capacity / (one.failed_bytes or math.inf) for one in some])

    def loss(p: np.ndarray) -> float:
        sigma = min(math.exp(p[1]), LARGEST_SIGMA)
        between = norm.cdf((most - p[0]) / sigma) - norm.cdf((least - p[0]) / sigma)
        return -float(np.sum(np.log(np.maximum(between, 1e-100))))

    found = minimize(loss, [math.log(1.2), math.log(0.2)], method="Nelder-Mead")
    return math.exp(found.x[0]), min(math.exp(found.x[1]), LARGEST_SIGMA)


def halves(some: Sequence[Bound]) -> tuple[list[Bound], list[Bound]]:
    """Return the half to fit and the half to score. All rows of a network are in one half."""
    networks = shuffled(sorted({one.network for one in some}), SEED)
    to_fit = set(networks[: len(networks) // 2])
    return [one for one in some if one.network in to_fit], [one for one in some if one.network not in to_fit]


def score(some: Sequence[Bound]) -> str:
    """Return table cells: rows, consistent, too high, too low; first batches below the failed one, and up to the one that
    ran.
    """
    factors = [overhead(catalog.device(DEVICE), one.mode) for one in some]
    found = [one.verdict(1 / by.median) for one, by in zip(some, factors, strict=True)]
    counts = [found.count(name) for name in ("consistent", "too high", "too low")]
    fits = sum(one.verdict(1 / by.high) != "too high" for one, by in zip(some, factors, strict=True))
    starts = [one.largest(1 / by.high) for one, by in zip(some, factors, strict=True)]
    sure = sum((start // 8 * 8 or start) <= one.ran for one, start in zip(some, starts, strict=True))
    return " | ".join(map(str, (len(some), *counts, fits, sure)))


def report(some: Sequence[Bound]) -> str:
    """Return the rows of the page, and the fit."""
    to_fit, held_out = halves(some)
    lines = ["| batches of timm, RTX 3090 | rows | consistent | too high | too low | start below the batch that failed | start at or below "
             "the batch that ran |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    told = []
    for mode in sorted({one.mode for one in some}):
        for title, part in (("held out", held_out), ("fitted to", to_fit)):
            lines.append(f"| {mode}, {title} | {score([one for one in part if one.mode == mode])} |")
        median, sigma = fitted([one for one in to_fit if one.mode == mode])
        used = overhead(catalog.device(DEVICE), mode)
        told.append(
            f"Fitted in {mode}: half of the networks need {median:.2f} times their tensors, nine of ten at most "
            f"{median * math.exp(norm.ppf(0.9) * sigma):.2f} times; in use {used.median:g} and {used.high:g}."
        )
    return "\n".join([*lines, f"| all, held out | {score(held_out)} |", "", *told]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--limit", type=int, help="number of rows per table, in the order that the seed draws")
    parser.add_argument("--json", type=Path, help="save the bounds from the rows")
    parser.add_argument("--from", dest="saved", type=Path, help="read saved bounds instead of tracing")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(argv)
    if given.saved is not None:
        some = [Bound(**one) for one in json.loads(given.saved.read_text())]
    elif given.measured is not None:
        some = []
        for one in bounds(given.measured, given.limit):
            some.append(one)
            print(one.table, one.network, one.ran, one.failed, one.largest(1.0), flush=True)
            if given.json is not None:
                given.json.write_text("[\n" + ",\n".join(json.dumps(asdict(one)) for one in some) + "\n]\n")
    else:
        parser.error("give --measured or --from")
    table = report(some)
    print(table)
    if given.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
