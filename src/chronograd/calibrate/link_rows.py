"""`calibrate links --from ROWS`: a link fitted to published timings of all-reduces or of scaling.

A row of an all-reduce has ranks, bytes and seconds. One row gives the bandwidth, with the latency of a similar link; rows of
several sizes give both. A scaling row has a network, samples per rank, ranks, precision and samples per second; one row must
have one rank. The bandwidth is chosen so that the predicted step of several ranks equals the measured one. The work of a single
rank is scaled to its measured time. All ranks are in one machine; all-reduces are assumed to be rings.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import get_args

import numpy as np
from scipy.optimize import brentq

from chronograd.calibrate.links import TimedCollective, fit
from chronograd.errors import FileFormatError, InputError
from chronograd.files import read_bytes
from chronograd.fit.tables import precision_of
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Link, Precision, Source
from chronograd.job import Job, from_dict
from chronograd.predict.collectives import ALPHA_BETA, Topology, bandwidths, ring
from chronograd.predict.prediction import rank_work, with_others
from chronograd.predict.setting import setting_of
from chronograd.trace import Trace
from chronograd.words import how_many

LIKE = "pcie3"
# Slower than any modem, and faster than any memory: a row outside these limits does not describe its link.
MIN_BYTES_PER_S, MAX_BYTES_PER_S = 1e5, 1e14
_COLUMNS: dict[str, tuple[str, ...]] = {
    "ranks": ("ranks", "world", "num_gpus", "gpus", "devices", "n_accelerators", "count"),
    "bytes": ("bytes", "size_bytes", "message_bytes"),
    "seconds": ("seconds", "time_s", "step_time_s"),
    "ms": ("ms", "mean_ms", "time_ms", "step_time_ms"),
    "floats": ("n_floats", "floats"),
    "rate": ("samples_per_s", "images_per_sec", "throughput"),
    "network": ("network", "model"),
    "batch": ("batch_per_rank", "batch_per_device", "batch_per_gpu"),
    "size": ("image_size", "img_size"),
    "device": ("device", "gpu"),
    "precision": ("precision", "dtype"),
    "algorithm": ("algorithm", "library"),
}
# Rows of all-reduces that differ in these columns belong to different links.
_ONE_LINK = ("device", "algorithm")


@dataclass(frozen=True)
class Scaled:
    """A step of `ranks` ranks in seconds, with `batch` samples on each."""

    network: str
    image_size: int
    batch: int
    device: str
    precision: str
    ranks: int
    seconds: float

    @property
    def of(self) -> tuple[str, int, int, str, str]:
        return (self.network, self.image_size, self.batch, self.device, self.precision)


@dataclass(frozen=True)
class Fitted:
    """A link, the rows that it was fitted to, and the median of |fitted / measured - 1| over them.

    `message_bytes` is the size of the all-reduces if all have the same: the link is valid for similar messages.
    """

    link: Link
    kind: str
    rows: int
    error: float
    message_bytes: int | None = None


def check_not_shipped(name: str) -> None:
    """Raise InputError for the name of a catalogue link, whose figures would change for every later job."""
    if resources.files(catalog.__package__).joinpath("links", f"{name}.toml").is_file():
        raise InputError(
            f"{name} is a link of the catalogue, which this would replace in every prediction",
            f"give another name, such as {name}-here",
        )


def link_from(path: Path, name: str, like: str = LIKE) -> Fitted:
    """Return the link fitted to the rows of a CSV file.

    Args:
        like: a link of the catalogue, whose latency is used if the rows do not determine it.
    Raises: FileFormatError for another table, InputError for rows that do not determine a link, NotFoundError for `like`.
    """
    base = catalog.link(like)
    rows = _rows(path)
    if "rate" in rows[0]:
        scaled = [_scaled(path, number, row) for number, row in enumerate(rows, 2)]
        _check_one_link(path, [{"device": row.device} | given for row, given in zip(scaled, rows, strict=True)])
        return _of_scaling(scaled, name, base, path.name)
    _check_one_link(path, rows)
    return of_all_reduces([_timed(path, number, row) for number, row in enumerate(rows, 2)], name, base, path.name)


def _check_one_link(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Raise InputError for rows of several devices or algorithms, which do not describe one link."""
    for column in _ONE_LINK:
        values = list(dict.fromkeys(row[column].strip() for row in rows if column in row))
        if len(values) > 1:
            raise InputError(
                f"{path.name} has rows of more than one {column}: {', '.join(value or 'none' for value in values)}",
                f"keep only the rows of one {column} in the file: each needs its own link",
            )


def of_all_reduces(timed: Sequence[TimedCollective], name: str, base: Link, file: str) -> Fitted:
    """Return the link fitted to all-reduces; those of one size give its bandwidth, with the latency of `base`.

    Raises: InputError for a message that is mostly latency.
    """
    sizes = {row.bytes for row in timed}
    if len(sizes) > 1:
        found = fit(timed)
        latency_s, bandwidth, how = found.latency_s, found.bandwidth_bytes_per_s, "latency and bandwidth"
    else:
        latency_s, how = base.latency_s, f"bandwidth, with the latency of {base.name}"
        bandwidth = float(np.exp(np.mean([math.log(_bandwidth(row, latency_s)) for row in timed])))
    error = float(np.median([abs(ring(r.bytes, r.world, latency_s, bandwidth) / r.seconds - 1) for r in timed]))
    link = _link(name, latency_s, bandwidth, f"{how} from {len(timed)} all-reduces in {file}, assumed to be rings")
    return Fitted(link, "all-reduces", len(timed), error, min(sizes) if len(sizes) == 1 else None)


def _bandwidth(row: TimedCollective, latency_s: float) -> float:
    """Return the bandwidth of one all-reduce: its bytes over its time minus the messages' latency."""
    messages, sent = ALPHA_BETA["all_reduce"](row.bytes, row.world)
    left_s = row.seconds - messages * latency_s
    if left_s <= 0.1 * row.seconds:
        raise InputError(
            f"an all-reduce of {how_many(row.bytes, 'bytes')} over {row.world} ranks took {row.seconds:g} s, which is mostly latency",
            "give a row of a larger message, or two rows of different sizes",
        )
    bytes_per_s: float = float(sent) / left_s
    return bytes_per_s


def _of_scaling(rows: Sequence[Scaled], name: str, base: Link, file: str) -> Fitted:
    alone = {row.of: row.seconds for row in rows if row.ranks == 1}
    several = [row for row in rows if row.ranks > 1]
    if not several or any(row.of not in alone for row in several):
        raise InputError(
            f"{file} needs a row of one rank and one of several, with the same network, samples per rank and device",
            "add samples_per_s of ranks=1: without it the time of a single rank is unknown",
        )
    found = [_bandwidth_of_scaling(row, alone[row.of], base) for row in several]
    bandwidth = float(np.exp(np.mean(np.log([value for value, _ in found]))))
    link = _link(name, base.latency_s, bandwidth,
                 f"bandwidth with which the predictions of {how_many(len(several), 'scaling rows')} in {file} equal the measurements; latency of {base.name}")  # fmt: skip
    errors = [abs(step(bandwidth) / row.seconds - 1) for row, (_, step) in zip(several, found, strict=True)]
    return Fitted(link, "scaling rows", len(several), float(np.median(errors)))


def _bandwidth_of_scaling(row: Scaled, alone_s: float, base: Link) -> tuple[float, Callable[[float], float]]:
    """Return the bandwidth that makes the predicted step equal the measured one, and the step's seconds by bandwidth."""
    from chronograd.data.trace_job import trace_job

    job = _job(row)
    trace: Trace = trace_job(job)
    setting = setting_of(job)
    times, parts = rank_work(trace, row.batch, setting)
    longer = alone_s / sum(parts.values())
    times, parts = times * longer, {part: seconds * longer for part, seconds in parts.items()}

    def step(bandwidth: float) -> float:
        link = base.model_copy(update={"bandwidth_bytes_per_s": bandwidth})
        there = replace(setting, topology=Topology(row.ranks, row.ranks, link, link))
        return float(sum(with_others(trace, times, parts, there)[0].values()))

    def excess(log_bandwidth: float) -> float:
        return step(math.exp(log_bandwidth)) - row.seconds

    low, high = math.log(MIN_BYTES_PER_S), math.log(MAX_BYTES_PER_S)
    if excess(low) < 0 or excess(high) > 0:
        raise InputError(
            f"{row.ranks} ranks took {row.seconds:g} s per step and one rank {alone_s:g} s, which no bandwidth explains",
            "the link must lengthen the step visibly: give rows of a smaller batch, or an all-reduce",
        )
    return math.exp(brentq(excess, low, high, xtol=1e-4)), step


def _job(row: Scaled) -> Job:
    image = [3, row.image_size, row.image_size]
    return from_dict(
        {
            "network": {"name": row.network},
            "data": {"name": "synthetic", "shape": image, "classes": 1000},
            "training": {"batch": row.batch * row.ranks, "precision": row.precision},
            "cluster": {"device": row.device, "count": row.ranks, "step_sigma_log": 0.0},
            "backend": "ddp",
        }
    )


def _link(name: str, latency_s: float, bandwidth: float, source: str) -> Link:
    today = datetime.now(UTC).date().isoformat()
    of = ("latency_s", "bandwidth_bytes_per_s")
    return Link(
        name=name, title="Fitted to measured rows", latency_s=latency_s, bandwidth_bytes_per_s=bandwidth,
        source=(Source(of=of, source=source, date=today, tag="computed"),),
    )  # fmt: skip


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of all-reduces or of scaling, by our names of the columns.

    Raises: FileFormatError.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
        table = list(csv.DictReader(io.StringIO(text)))
    except (OSError, ValueError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}", "write a CSV file with a line of column names") from None
    heads = {(head or "").strip().lower(): head for head in (table[0] if table else ())}
    known = {ours: heads[theirs] for ours, names in _COLUMNS.items() for theirs in names if theirs in heads}
    is_reduced = {"bytes", "floats"} & known.keys() and {"seconds", "ms"} & known.keys()
    if "ranks" not in known or not (is_reduced or {"rate", "network", "batch", "device"} <= known.keys()):
        raise FileFormatError(
            f"{path} has rows neither of all-reduces nor of scaling; its columns are {', '.join(heads) or 'none'}",
            "all-reduces need ranks, bytes and seconds; scaling needs ranks, network, batch_per_rank, device, precision and samples_per_s",
        )
    if is_reduced:
        known.pop("rate", None)
    return [{ours: str(row[theirs] or "") for ours, theirs in known.items()} for row in table]


def _number(path: Path, line: int, row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, ValueError):
        value = math.nan
    if not 0 < value < 1e18:
        raise FileFormatError(f"{path}, line {line}: {name} is {row.get(name, '')!r}", "write a number above 0")
    return value


def _timed(path: Path, line: int, row: Mapping[str, str]) -> TimedCollective:
    size = _number(path, line, row, "bytes") if "bytes" in row else 4 * _number(path, line, row, "floats")
    seconds = _number(path, line, row, "seconds") if "seconds" in row else _number(path, line, row, "ms") / 1e3
    ranks = int(_number(path, line, row, "ranks"))
    if ranks < 2:
        raise FileFormatError(f"{path}, line {line}: an all-reduce over {ranks} rank", "give two ranks or more")
    return timed_once(ranks, int(size), seconds)


def timed_once(ranks: int, size: int, seconds: float) -> TimedCollective:
    """Return an all-reduce with one known time."""
    rates = (float(rate) for rate in bandwidths("all_reduce", size, seconds, ranks))
    return TimedCollective("all_reduce", ranks, size, seconds, seconds, seconds, 1, *rates)


def _scaled(path: Path, line: int, row: Mapping[str, str]) -> Scaled:
    ranks, batch = (int(_number(path, line, row, name)) for name in ("ranks", "batch"))
    seconds = ranks * batch / _number(path, line, row, "rate")
    size = int(_number(path, line, row, "size")) if row.get("size") else 224
    precision = precision_of(row.get("precision", ""))
    if precision not in get_args(Precision):
        raise FileFormatError(
            f"{path}, line {line}: precision is {row.get('precision', '')!r}",
            f"write amp or one of {', '.join(get_args(Precision))} in a column precision",
        )
    return Scaled(row["network"], size, batch, row["device"], precision, ranks, seconds)
