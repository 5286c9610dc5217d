"""`calibrate links`: the times of collectives between the processes of this machine, and the α and β fitted to them.

It runs real processes over gloo, or over NCCL if there is a GPU for each. The α and β of all-reduces become a link file of the
user, which `predict` reads instead of the catalogue's.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.special import ndtri

from chronograd.calibrate.workers import Progress, WorkerSeat, part_of, run_workers
from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Link, Source
from chronograd.measure import environment
from chronograd.predict.collectives import ALPHA_BETA, Topology, all_reduce_s, bandwidths
from chronograd.predict.scaling import buffers_s
from chronograd.record import Z80
from chronograd.words import how_many

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
MESSAGE_BYTES = (4_096, 32_768, 262_144, 1_048_576, 4_194_304, 16_777_216)
LOOPBACK = "loopback"
# Between hosts each message follows a pause, as in training: at 100 Mbit/s, 256 KiB of tokens refill in 21 ms.
REST_S = 0.05
# A third parameter always fits better, so we accept a burst only if it removes most of the squared error.
_BURST_GAIN = 4.0
# The best relative error of the formula, combined with each message's own spread.
_FIT_ERROR = 0.05


@dataclass(frozen=True)
class TimedCollective:
    """One collective of one size: median and 80 % interval of its repeats, on the slowest rank each time.

    Attributes:
        bytes: size on each rank: of the reduced or sent message; for all_gather of the output, for reduce_scatter of the input.
        algbw, busbw: bytes / seconds, and that times the factor of the collective (nccl-tests, PERFORMANCE.md); bytes/s.
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


def measure_ranks(seconds: float) -> tuple[float, float]:
    """Measure how the same work varies between two ranks that start together, and how much longer it takes after a wait.

    Returns: first, the standard deviation of the log of its time, derived from the slowest rank. The largest of n normals has
        its median at z = Φ⁻¹(½^(1/n)), so σ = log(median of the largest / median of all) / z. Second, its median after the
        ranks waited for each other over that without a wait, at least 1. An idle core starts late and slowly, most of all if
        the host of a virtual machine had given it to other guests.
    """
    results = _run(2, ("nothing", "nothing_waited_for"), [8], seconds / 2)
    waited_RN, straight_RN = (np.array([result["rows"][i]["seconds"] for result in results]) for i in range(2))
    excess = float(np.median(waited_RN.max(axis=0)) / np.median(waited_RN))
    sigma_log = math.log(excess) / float(ndtri(0.5 ** (1 / 2)))
    return max(0.0, sigma_log), max(1.0, float(np.median(waited_RN) / np.median(straight_RN)))


def measure_exchange(link: Link) -> tuple[float, float]:
    """Measure the seconds that an exchange of DistributedDataParallel costs in addition to the transfer.

    Returns: first, seconds per gradient and per buffer, which are copied to messages and back. They come from steps of many small layers
        with and without their exchange, minus its collectives by α and β. Second, seconds per meeting of the ranks (a bucket,
        the broadcast of buffers): from steps of layers that compute, minus the former cost. Ranks arrive at different times,
        and a rank that waits for a message wakes up late; back-to-back collectives do not show this.
    """
    results = _run(2, ("module", "module_apart", "working", "working_apart"), [8], 1.0)
    slowest = [float(np.median(np.max([r["rows"][i]["seconds"] for r in results], axis=0))) for i in range(4)]
    return exchange_costs(slowest, Topology(2, 2, link, link))


def exchange_costs(seconds: Sequence[float], topology: Topology) -> tuple[float, float]:
    """Return the result of `measure_exchange` from measured steps.

    Args:
        seconds: steps of many small layers with and without their exchange, then of layers that compute, with and without.
    """
    from chronograd.calibrate.links_worker import STACK, WORKING, Stack

    def beside(stack: Stack, whole: float, apart: float) -> float:
        sent = all_reduce_s("ring", stack.gradient_bytes, topology) + buffers_s(stack.buffer_bytes, topology)
        return whole - apart - float(sent)

    tensor_s = max(0.0, beside(STACK, *seconds[:2])) / (STACK.gradients + STACK.buffers)
    rest_s = beside(WORKING, *seconds[2:]) - tensor_s * (WORKING.gradients + WORKING.buffers)
    return tensor_s, max(0.0, rest_s) / 2


@dataclass(frozen=True)
class Fit:
    """Fit of one collective: t = a(n)·α + max(0, b(n)·S - burst)/B; `error` is the median of |fitted / measured - 1|."""

    collective: str
    latency_s: float
    bandwidth_bytes_per_s: float
    error: float
    n: int
    burst_bytes: float = 0.0


def measure_links(
    worlds: Sequence[int] = (2,),
    collectives: Sequence[str] = COLLECTIVES,
    message_bytes: Sequence[int] = MESSAGE_BYTES,
    seconds_each: float = 0.4,
    progress: Progress = lambda share, text: None,
    seats: Sequence[WorkerSeat] = (),
) -> list[TimedCollective]:
    """Time collectives between processes of this machine, with one thread each.

    Args:
        worlds: numbers of processes. `seconds_each`: time per collective and size.
        seats: where the processes run, if not here; `worlds` is then their number.
    Raises: InputError for a world below 2 or an unknown collective, RunError if a process fails.
    """
    for world in worlds:
        if world < 2:
            raise InputError(
                f"a collective needs 2 processes or more, not {world}", "ask for 2 or more, such as --world 2,4"
            )
    for name in collectives:
        if name not in COLLECTIVES:
            raise InputError(f"unknown collective {name!r}", f"use {', '.join(COLLECTIVES)}")
    timed: list[TimedCollective] = []
    for i, world in enumerate(worlds):
        sizes = [size // (4 * world) * 4 * world for size in message_bytes]
        report = part_of(progress, i, len(worlds), f"{how_many(world, 'processes')}: ")
        results = _run(world, collectives, sizes, seconds_each, report, seats)
        for rows in zip(*(result["rows"] for result in results), strict=True):
            name, size = rows[0]["collective"], rows[0]["bytes"]
            slowest = np.max([row["seconds"] for row in rows], axis=0)
            low, middle, high = (float(v) for v in np.quantile(slowest, [0.1, 0.5, 0.9]))
            rates = map(float, bandwidths(name, size, middle, world))
            timed.append(TimedCollective(name, world, size, middle, low, high, len(slowest), *rates))
    return timed


def _run(
    world: int,
    collectives: Sequence[str],
    sizes: Sequence[int],
    seconds_each: float,
    report: Progress = lambda share, name: None,
    seats: Sequence[WorkerSeat] = (),
) -> list[dict[str, Any]]:
    """Run the processes and return the timings of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = "env://" if seats else f"file://{Path(folder) / 'store'}"
        common = [str(world), meeting, str(seconds_each)]
        asked = [",".join(collectives), ",".join(map(str, sizes)), str(REST_S if seats else 0.0)]
        ranks = [[str(rank), *common, *asked] for rank in range(world)]
        count = len(collectives) * len(sizes)
        return run_workers("chronograd.calibrate.links_worker", ranks, report, count, seats=seats)


def fit(rows: Sequence[TimedCollective], collective: str = "all_reduce", has_burst: bool = False) -> Fit:
    """Fit α (s) and B (bytes/s) of one collective by relative least squares over sizes and worlds, both at least 0.

    Args:
        has_burst: also fit the bytes that pass without delay, which only messages after a pause show. Small messages then vary
            many-fold, so each is weighted by its own spread in addition to the relative error.
    Raises: InputError if no row has this collective.
    """
    own = [row for row in rows if row.collective == collective]
    if not own:
        raise InputError(f"no {collective} was timed", f"time it: --collective {collective}")
    seconds = np.array([row.seconds for row in own])
    spread = np.array([row.high - row.low for row in own]) / (2 * Z80) if has_burst else 0.0
    scale = np.hypot(seconds, spread / _FIT_ERROR)
    messages, sent = np.array([ALPHA_BETA[collective](row.bytes, row.world) for row in own], dtype=float).T

    def fitted(burst: float) -> tuple[float, np.ndarray, np.ndarray]:
        matrix = np.stack([messages, np.maximum(sent - burst, 0.0)], axis=1)
        (alpha, per_byte), residual = nnls(matrix / scale[:, None], seconds / scale)
        return float(residual) ** 2, np.array([alpha, per_byte]), matrix

    bursts = np.geomspace(4096, float(sent.max()) / 2, 200) if has_burst else ()
    burst = min(bursts, key=lambda burst: fitted(burst)[0], default=0.0)
    if fitted(burst)[0] * _BURST_GAIN > fitted(0.0)[0]:
        burst = 0.0
    _, (alpha, per_byte), matrix = fitted(burst)
    error = float(np.median(np.abs(matrix @ (alpha, per_byte) / seconds - 1)))
    return Fit(collective, float(alpha), 1 / max(float(per_byte), 1e-15), error, len(own), float(burst))


def link_of(found: Fit, worlds: Sequence[int], name: str = LOOPBACK, hosts: Sequence[str] = ()) -> Link:
    """Return the measured link: between this machine's processes, named `loopback` as in the catalogue, or between hosts."""
    between = f" between {' and '.join(hosts)}" if hosts else ""
    burst = f"; {found.burst_bytes:.0f} bytes pass without delay after a pause" if found.burst_bytes else ""
    source = Source(
        of=("latency_s", "bandwidth_bytes_per_s", *(("burst_bytes",) if found.burst_bytes else ())),
        source=f"measured by chronograd calibrate links on {environment.processor_name()}: all-reduce over "
        f"{' and '.join(map(str, worlds))} processes{between}, {how_many(found.n, 'sizes')}; "
        f"median error of the fit {100 * found.error:.0f} %{burst}",
        date=datetime.now(UTC).date().isoformat(),
        tag="measured",
    )
    return Link(
        name=name,
        title="Measured" + between if hosts else "Processes of this machine, gloo over the loopback interface",
        latency_s=found.latency_s,
        bandwidth_bytes_per_s=found.bandwidth_bytes_per_s,
        burst_bytes=found.burst_bytes,
        source=(source,),
    )


def check_name(name: str) -> None:
    """Raise InputError for an invalid link name, before measuring it."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise InputError(
            f"{name!r} is not a valid link name", "use small letters, digits and hyphens, as in ethernet-here"
        )


def save(link: Link) -> Path:
    """Save a link as one of this user's, replacing the catalogue's link of that name."""
    path = catalog.user_link_path(link.name)
    link.save(path)
    return path
