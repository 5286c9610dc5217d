"""Causes from wall times alone: which fit the time by number of nodes, which do not, and which were never measured.

A CSV file has the columns `network, nodes, wall` (seconds, or 7m31.5). Optional columns are `user_over_real` (processor time
over real time) and `device`. Lines that begin with # are comments.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chronograd import door
from chronograd.errors import FileFormatError
from chronograd.units import percent, seconds
from chronograd.words import how_many

REQUIRED = ("network", "nodes", "wall")
OPTIONAL = ("user_over_real", "device")
LARGEST_BYTES = 1_000_000
LONGEST_HEAD = 4096  # letters that show who wrote a file
# Times with a smaller difference count as equal: single runs of minutes rarely agree better.
SAME = 0.05
# Tolerance around 1/n for the time of n nodes that share the work.
SHARED = 0.10


@dataclass(frozen=True)
class RunWallTimes:
    nodes: int
    wall_s: float
    user_over_real: float | None
    device: str


@dataclass(frozen=True)
class Account:
    """The result of `explain` for the wall times of one network: sentences with numbers. `causes` are keys of causes that fit,
    as in `explain`.
    """

    title: str
    causes: tuple[str, ...]
    seen: tuple[str, ...]
    fits: tuple[str, ...]
    does_not_fit: tuple[str, ...]
    never_measured: tuple[str, ...]

    def sections(self) -> list[tuple[str, tuple[str, ...]]]:
        lines = [("seen", self.seen), ("fits", self.fits), ("does not fit", self.does_not_fit)]
        return [(name, s) for name, s in (*lines, ("never measured", self.never_measured)) if s]


def explain(path: Path) -> list[Account]:
    """Return one account per network, in the order of the file. Raises FileFormatError."""
    return [_account(network, runs) for network, runs in read(path).items()]


def read(path: Path) -> dict[str, list[RunWallTimes]]:
    """Read the runs of each network, by nodes. Raises FileFormatError that names the line."""
    try:
        text = door.read_text(path, "a table of wall times", most_bytes=LARGEST_BYTES)
        if (writer := _profiler_of_totals(text)) is not None:
            raise FileFormatError(
                f"{path} has totals of kernels over a whole run ({writer}), neither steps nor wall times",
                "profile some steps with torch.profiler, and give its trace",
            )
        lines = [line for line in text.splitlines() if line.strip() and line[0] != "#"]
        rows = list(csv.DictReader(lines, strict=True))
    except csv.Error as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    found: dict[str, list[RunWallTimes]] = {}
    hint = f"write columns {', '.join(REQUIRED)} and, if known, {', '.join(OPTIONAL)}"
    if not rows or not set(REQUIRED) <= {str(name).strip() for name in rows[0]}:
        raise FileFormatError(
            f"{path} has no wall times: its columns are {', '.join(map(str, rows[0] if rows else ()))}", hint
        )
    for number, raw in enumerate(rows, start=1):
        row = {
            str(name).strip(): (value or "").strip() if isinstance(value, str) else "" for name, value in raw.items()
        }
        try:
            run = RunWallTimes(
                _nodes(row["nodes"]),
                _seconds(row["wall"]),
                _ratio(row.get("user_over_real", "")),
                row.get("device", ""),
            )
        except ValueError as error:
            raise FileFormatError(f"{path}, run {number}: {error}", hint) from None
        found.setdefault(row["network"] or "network", []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.nodes)
    return found


def _profiler_of_totals(text: str) -> str | None:
    """Return the profiler that wrote a table of the time of each kernel or call; None for another text.

    >>> _profiler_of_totals("==2047== NVPROF is profiling process 2047"), _profiler_of_totals("network,nodes,wall")
    ('nvprof', None)
    """
    if "NVPROF" in text[:LONGEST_HEAD] or (text.startswith("==") and "Profiling result" in text[:LONGEST_HEAD]):
        return "nvprof"
    head = text[:LONGEST_HEAD].partition("\n")[0]
    if "Time (%)" in head and "Total Time" in head:
        return "Nsight Systems"
    return "rocprof" if {"Name", "Calls", "TotalDurationNs"} <= {name.strip('" ') for name in head.split(",")} else None


def _account(network: str, rows: Sequence[RunWallTimes]) -> Account:
    runs, repeated = _medians(rows)
    first = runs[0]
    ratios = {run.nodes: run.wall_s / first.wall_s for run in runs[1:]}
    seen = [f"{_count(first.nodes)}: {seconds(first.wall_s, 4)}"]
    seen += [f"{_count(run.nodes)}: {seconds(run.wall_s, 4)}, {ratios[run.nodes]:.3f} of that" for run in runs[1:]]
    seen += repeated
    causes, fits, against = _pattern(first, runs[1:], ratios)
    busy = [run.user_over_real for run in runs if run.user_over_real is not None]
    if busy:
        fits.append(
            f"processor time {min(busy):g} times real time: this many cores were busy, with work or with spinning threads"
        )
    if any(run.device.lower().startswith("cpu") for run in runs):
        causes.append("no_accelerator")
        fits.append("all nodes computed on processors; the table does not state whether an accelerator was requested")
    unknown = []
    if not repeated:
        unknown = ["a second run of any row: without repeats a difference may be chance"]
    unknown += [
        "samples, epochs and batch of each node: they show whether the work was shared (no_sharding, work_scaled)",
        "steps and their parts on each node: computation, input, waiting for gradients (slow_link, slow_worker, input_bound)",
        "seconds before the first step (start_up)",
        "threads of a process and cores of a node (too_many_threads)" if not busy else
        "threads of a process and cores of a node: busy cores alone do not distinguish work from spinning (too_many_threads)",
    ]  # fmt: skip
    return Account(network, tuple(causes), tuple(seen), tuple(fits), tuple(against), tuple(unknown))


def _medians(runs: Sequence[RunWallTimes]) -> tuple[list[RunWallTimes], list[str]]:
    """Return one run for each number of nodes, with the median time; and the differences of repeated runs, in words."""
    found, words = [], []
    for nodes in sorted({run.nodes for run in runs}):
        alike = sorted((run for run in runs if run.nodes == nodes), key=lambda run: run.wall_s)
        median_s = statistics.median(run.wall_s for run in alike)
        found.append(replace(alike[len(alike) // 2], wall_s=median_s))
        if len(alike) > 1:
            spread = (alike[-1].wall_s - alike[0].wall_s) / median_s
            words.append(
                f"{how_many(len(alike), 'runs')} on {_count(nodes)} differ by {percent(spread)}; their median is used"
            )
    return found, words


def _pattern(
    first: RunWallTimes, others: Sequence[RunWallTimes], ratios: dict[int, float]
) -> tuple[list[str], list[str], list[str]]:
    """Return causes, and what fits and does not fit them, from the time by number of nodes."""
    if not others:
        return [], ["there is only one row, so no comparison"], []
    flat = [run for run in others if abs(ratios[run.nodes] - 1) <= SAME]
    shared = [run for run in others if abs(ratios[run.nodes] * run.nodes / first.nodes - 1) <= SHARED]
    slower = [run for run in others if ratios[run.nodes] > 1 + SAME]
    if len(shared) == len(others):
        return [], ["the time falls as nodes are added: the work is shared, and little else takes time"], []
    causes: list[str] = []
    fits: list[str] = []
    against: list[str] = []
    if flat:
        causes += ["no_sharding", "work_scaled"]
        spread = max(abs(ratios[run.nodes] - 1) for run in flat)
        fits.append(
            f"{_those(flat)} the time equals that of {_count(first.nodes)} within {percent(spread)}. Every node does the whole work: all "
            "train on the whole data set, epochs or steps grow with nodes, or nodes train independently"
        )
        if len(flat) == len(others):
            against.append(
                "a slow link or waiting for a slow node: they add to a time that falls with nodes, and would have to offset "
                f"that fall within {percent(spread)} each time"
            )
            fits.append(
                "less likely: start-up or input from shared storage takes nearly all of the time on any number of nodes"
            )
    for run in slower:
        alone = run.nodes < others[-1].nodes and ratios[others[-1].nodes] <= 1 + SAME
        if alone:
            against.append(
                f"any cause that grows with nodes: {_count(run.nodes)} take {ratios[run.nodes]:.2f} times as long, and "
                f"{_count(others[-1].nodes)} do not"
            )
            fits.append(
                f"a disturbance of the run on {_count(run.nodes)} only: a slow or shared node (slow_worker), start-up, input"
            )
            causes += ["slow_worker"]
        else:
            fits.append(
                f"on {_count(run.nodes)} the exchange costs more time than sharing saves: a slow link, or a batch per node too small"
            )
            causes += ["slow_link", "small_batch"]
    for run in others:
        if run in flat or run in shared or run in slower:
            continue
        against.append(_amdahl(first, run, others, ratios))
        share = first.nodes / run.nodes
        fits.append(
            f"on {_count(run.nodes)} {ratios[run.nodes]:.3f} of the time, while sharing all work gives {share:.3f}: only part of the work is "
            "shared, or the runs also differ in something else (epochs, batch, the kind of node)"
        )
    return list(dict.fromkeys(causes)), fits, [text for text in against if text]


def _amdahl(first: RunWallTimes, run: RunWallTimes, others: Sequence[RunWallTimes], ratios: dict[int, float]) -> str:
    """Test a model with a shared and a fixed part: fit it to the first row and this one, and compare the rows between."""
    shared_s = (first.wall_s - run.wall_s) / (1 / first.nodes - 1 / run.nodes)
    fixed_s = first.wall_s - shared_s / first.nodes
    for other in others:
        if other.nodes == run.nodes:
            continue
        expected_s = fixed_s + shared_s / other.nodes
        if abs(other.wall_s / expected_s - 1) > SHARED:
            return (
                f"a shared and a fixed part: fitted to {_count(first.nodes)} and {_count(run.nodes)} they give "
                f"{seconds(expected_s, 4)} on {_count(other.nodes)}, but the measured time is {seconds(other.wall_s, 4)}"
            )
    return ""


def _those(runs: Sequence[RunWallTimes]) -> str:
    return f"on {' and '.join(str(run.nodes) for run in runs)} nodes"


def _count(nodes: int) -> str:
    return f"{nodes} node{'s' * (nodes > 1)}"


def _nodes(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise ValueError(f"nodes is {text!r}, not a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    """Parse seconds, or minutes and seconds as `time` prints them: 451.5 or 7m31.5 or 7m31.5s."""
    found = re.fullmatch(r"(?:(\d{1,6})m)?(\d{1,9}(?:\.\d{1,9})?)s?", text)
    if not found or float(found[2]) + 60 * int(found[1] or 0) <= 0:
        raise ValueError(f"wall is {text!r}, not seconds or 7m31.5")
    return 60 * int(found[1] or 0) + float(found[2])


def _ratio(text: str) -> float | None:
    if not text:
        return None
    if not re.fullmatch(r"\d{1,6}(\.\d{1,9})?", text):
        raise ValueError(f"user_over_real is {text!r}, not a number such as 2.5")
    return float(text)
