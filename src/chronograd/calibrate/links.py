"""`calibrate links`: what collectives take between the processes of this machine, and the α and β behind it.

Real processes over gloo, or over NCCL where there is a GPU for each. The α and β of all-reduces become a link file of
the user's own, which `predict` reads in place of the catalogue's.
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
# Between hosts each message follows a rest, as in training: 256 KiB of tokens are there again after 21 ms at 100 Mbit/s.
REST_S = 0.05
# A third parameter always fits better; a burst is believed where it takes away most of the squared error.
_BURST_GAIN = 4.0
# What the formula is off by at best, against which the spread of a message is held.
_FIT_ERROR = 0.05


@dataclass(frozen=True)
class TimedCollective:
    """One collective of one size: median and 80 % interval of its repeats, on the slowest rank each time.

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


def measure_ranks(world: int = 2, seconds: float = 8.0) -> tuple[float, float]:
    """How the same work on ranks that begin together varies, and how much longer it takes after a wait.

    Returns: the standard deviation of the log of its time, from how much longer the slowest rank takes: of n normals the
        largest has its median at z = Φ⁻¹(½^(1/n)), so σ = log(median of the largest / median of all) / z. And its median
        after the ranks waited for each other over that without a wait, at least 1: a core that was idle runs late and slowly
        at first, most of all where the host of a virtual machine had given it to others.
    """
    results = _run(world, ("nothing", "nothing_waited_for"), [4 * world], seconds / 2)
    waited_RN, straight_RN = (np.array([result["rows"][i]["seconds"] for result in results]) for i in range(2))
    excess = float(np.median(waited_RN.max(axis=0)) / np.median(waited_RN))
    sigma_log = math.log(excess) / float(ndtri(0.5 ** (1 / world)))
    return max(0.0, sigma_log), max(1.0, float(np.median(waited_RN) / np.median(straight_RN)))


def measure_exchange(link: Link, world: int = 2, seconds: float = 2.0) -> tuple[float, float]:
    """What an exchange of DistributedDataParallel costs beside what is sent, in seconds.

    Returns: for each gradient and each buffer, which are copied to messages and back, from steps of many small layers with
        and without their exchange, less its collectives by α and β. And for each meeting of the ranks (a bucket, the
        broadcast of buffers) in a step that computes, from steps of layers that do, less the former: ranks do not arrive
        together, and whoever waits for a message is woken late, which collectives one after the other do not show.
    """
    results = _run(world, ("module", "module_apart", "working", "working_apart"), [4 * world], seconds / 2)
    slowest = [float(np.median(np.max([r["rows"][i]["seconds"] for r in results], axis=0))) for i in range(4)]
    return exchange_costs(slowest, Topology(world, world, link, link))


def exchange_costs(seconds: Sequence[float], topology: Topology) -> tuple[float, float]:
    """Return what `measure_exchange` does.

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
    """t = a(n)·α + max(0, b(n)·S - burst)/B of one collective; `error` is the median of |fitted / measured - 1|."""

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
        worlds: numbers of processes. `seconds_each`: for one collective of one size.
        seats: where the processes run instead; `worlds` is then their number.
    Raises: InputError for a world below 2 or an unknown collective, RunError if a process fails.
    """
    for world in worlds:
        if world < 2:
            raise InputError(f"a collective over {world} process", "ask for 2 or more, such as --world 2,4")
    for name in collectives:
        if name not in COLLECTIVES:
            raise InputError(f"no collective {name!r}", f"use {', '.join(COLLECTIVES)}")
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
    """What each rank timed."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = "env://" if seats else f"file://{Path(folder) / 'store'}"
        common = [str(world), meeting, str(seconds_each)]
        asked = [",".join(collectives), ",".join(map(str, sizes)), str(REST_S if seats else 0.0)]
        ranks = [[str(rank), *common, *asked] for rank in range(world)]
        count = len(collectives) * len(sizes)
        return run_workers("chronograd.calibrate.links_worker", ranks, report, count, seats=seats)


def fit(rows: Sequence[TimedCollective], collective: str = "all_reduce", has_burst: bool = False) -> Fit:
    """α (s) and B (bytes/s) of one collective by relative least squares over sizes and worlds, neither below zero.

    Args:
        has_burst: also look for the bytes that pass at once, which only messages after a rest show. Small messages then
            vary many-fold, so each counts by its own spread beside the relative error.
    Raises: InputError if no row is of it.
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
    """The link that was measured: of this machine's processes, named `loopback` as in the catalogue, or of hosts."""
    between = f" between {' and '.join(hosts)}" if hosts else ""
    burst = f"; {found.burst_bytes:.0f} bytes pass at once after a rest" if found.burst_bytes else ""
    source = Source(
        of=("latency_s", "bandwidth_bytes_per_s", *(("burst_bytes",) if found.burst_bytes else ())),
        source=f"measured by chronograd calibrate links on {environment.processor_name()}: all-reduce over "
        f"{' and '.join(map(str, worlds))} processes{between}, {how_many(found.n, 'sizes')}; fit off by {100 * found.error:.0f} % in the "
        f"median{burst}",
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
    """Raises InputError for what cannot be the name of a link, before it is measured."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise InputError(f"{name!r} is no name of a link", "use small letters, digits and hyphens, as in ethernet-here")


def save(link: Link) -> Path:
    """Keep a link as one of this user's own, in place of the catalogue's of that name."""
    path = catalog.user_link_path(link.name)
    link.save(path)
    return path
