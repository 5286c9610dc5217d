"""`calibrate links`: what collectives take between the processes of this machine, and the α and β behind it.

Real processes over gloo, or over NCCL where there is a GPU for each. The α and β of all-reduces become a link file of
the user's own, which `predict` reads in place of the catalogue's.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Link, Source
from chronograd.measure import environment
from chronograd.measure.workers import run_workers
from chronograd.predict.collectives import ALPHA_BETA, bandwidths

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
MESSAGE_BYTES = (4_096, 32_768, 262_144, 1_048_576, 4_194_304, 16_777_216)
LOOPBACK = "loopback"


@dataclass(frozen=True)
class Timed:
    """One collective of one size: median and middle 80 % of its repeats, on the slowest rank each time.

    Attributes:
        bytes: on each rank: what is reduced or sent; of all_gather what each ends with, of reduce_scatter what each brings.
        algbw, busbw: bytes / seconds, and times the factor of the collective (nccl-tests, PERFORMANCE.md); bytes/s.
    """

    collective: str
    world: int
    bytes: int
    seconds: float
    low: float
    high: float
    n: int
    algbw: float
    busbw: float

    def row(self) -> dict[str, str | int | float]:
        return asdict(self)


def measure_step_sigma_log(world: int = 2, seconds: float = 8.0) -> float:
    """Spread of the same work on ranks that begin together, as the standard deviation of its log.

    From how much longer the slowest rank takes: of n normals the largest has its median at z = Φ⁻¹(½^(1/n)), so
    σ = log(median of the largest / median of all) / z.
    """
    results = _run(world, ("nothing",), [4 * world], seconds, lambda share, name: None)
    seconds_RN = np.array([result["rows"][0]["seconds"] for result in results])
    excess = float(np.median(seconds_RN.max(axis=0)) / np.median(seconds_RN))
    return max(0.0, math.log(excess) / float(ndtri(0.5 ** (1 / world))))


@dataclass(frozen=True)
class Fit:
    """t = a(n)·α + b(n)·S/B of one collective; `error` is the median of |fitted / measured - 1|."""

    collective: str
    latency_s: float
    bandwidth_bytes_per_s: float
    error: float
    n: int


def measure_links(
    worlds: Sequence[int] = (2,),
    collectives: Sequence[str] = COLLECTIVES,
    message_bytes: Sequence[int] = MESSAGE_BYTES,
    seconds_each: float = 0.4,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> list[Timed]:
    """Time collectives between processes of this machine, with one thread each.

    Args:
        worlds: numbers of processes. `seconds_each`: for one collective of one size.
    Raises: InputError for a world below 2 or an unknown collective, RunError if a process fails.
    """
    for world in worlds:
        if world < 2:
            raise InputError(f"a collective over {world} process", "ask for 2 or more, such as --world 2,4")
    for name in collectives:
        if name not in COLLECTIVES:
            raise InputError(f"no collective {name!r}", f"use {', '.join(COLLECTIVES)}")
    found: list[Timed] = []
    for i, world in enumerate(worlds):

        def report(share: float, name: str, i: int = i, world: int = world) -> None:
            progress((i + share) / len(worlds), f"{world} processes: {name}")

        found += _of_world(world, collectives, message_bytes, seconds_each, report)
    return found


def _of_world(
    world: int,
    collectives: Sequence[str],
    message_bytes: Sequence[int],
    seconds_each: float,
    report: Callable[[float, str], None],
) -> list[Timed]:
    sizes = [size // (4 * world) * 4 * world for size in message_bytes]
    results = _run(world, collectives, sizes, seconds_each, report)
    found = []
    for rows in zip(*(result["rows"] for result in results), strict=True):
        slowest = np.max([row["seconds"] for row in rows], axis=0)
        low, middle, high = (float(v) for v in np.quantile(slowest, [0.1, 0.5, 0.9]))
        name, size = rows[0]["collective"], rows[0]["bytes"]
        found.append(
            Timed(
                name, world, size, middle, low, high, len(slowest), *map(float, bandwidths(name, size, middle, world))
            )
        )
    return found


def _run(
    world: int,
    collectives: Sequence[str],
    sizes: Sequence[int],
    seconds_each: float,
    report: Callable[[float, str], None],
) -> list[dict[str, Any]]:
    """What each rank timed."""
    with tempfile.TemporaryDirectory() as folder:
        common = [str(world), str(Path(folder) / "store"), str(seconds_each)]
        asked = [",".join(collectives), ",".join(map(str, sizes))]
        ranks = [[str(rank), *common, *asked] for rank in range(world)]
        return run_workers("chronograd.measure.links_worker", ranks, report, len(collectives) * len(sizes))


def fit(rows: Sequence[Timed], collective: str = "all_reduce") -> Fit:
    """α (s) and B (bytes/s) of one collective by relative least squares over sizes and worlds, neither below zero.

    Raises InputError if no row is of it.
    """
    own = [row for row in rows if row.collective == collective]
    if not own:
        raise InputError(f"no {collective} was timed", f"time it: --collective {collective}")
    seconds = np.array([row.seconds for row in own])
    matrix = np.array([ALPHA_BETA[collective](row.bytes, row.world) for row in own], dtype=float) / seconds[:, None]
    (alpha, per_byte), _ = nnls(matrix, np.ones(len(own)))
    error = float(np.median(np.abs(matrix @ (alpha, per_byte) - 1)))
    return Fit(collective, float(alpha), 1 / max(float(per_byte), 1e-15), error, len(own))


def link_of(found: Fit, worlds: Sequence[int]) -> Link:
    """The link of this machine's processes, named `loopback` as in the catalogue."""
    source = Source(
        of=("latency_s", "bandwidth_bytes_per_s"),
        source=f"measured by chronograd calibrate links on {environment.processor_name()}: all-reduce over "
        f"{' and '.join(map(str, worlds))} processes, {found.n} sizes; fit off by {100 * found.error:.0f} % in the median",
        date=datetime.now(UTC).date().isoformat(),
        tag="measured",
    )
    return Link(
        name=LOOPBACK,
        title="Processes of this machine, gloo over the loopback interface",
        latency_s=found.latency_s,
        bandwidth_bytes_per_s=found.bandwidth_bytes_per_s,
        source=(source,),
    )


def save(link: Link) -> Path:
    """Keep a link as one of this user's own, in place of the catalogue's of that name."""
    path = catalog.user_link_path(link.name)
    link.save(path)
    return path
