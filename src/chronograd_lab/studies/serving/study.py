"""Serving: latency against load of `chronograd serve`, its knee, the gain of batching, and the error of a queueing model.

The prediction knows the times of batches in ONNX Runtime alone. It also knows the time of a request that meets no other, in the
server and in the thread that reads and writes. It knows nothing of the server under load. Server and client have a core each. A
round calibrates, predicts and measures a network within a minute; rounds of the networks alternate. Predictions are for exactly
the arrivals that the client sends.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chronograd import trust
from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.files import write_json
from chronograd.measure import environment
from chronograd.simulate.queueing import KNEE, Server, at_rate, follow, knee
from chronograd.units import number, percent, seconds
from chronograd.words import scaled, signed_percent
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, distinct, grouped, matching, mean, shown, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, table
from chronograd_lab.common.written import Block, key

if TYPE_CHECKING:
    from chronograd.deploy.timing import Cores

AIM = 0.15
STATISTICS = {"latency_mean_s": "mean", "latency_p50_s": "median", "latency_p95_s": "p95", "latency_p99_s": "p99"}
PERCENTILES = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
COUNTS = ("offered_requests_per_s", "throughput_requests_per_s", "failed_requests", "requests")
TABLES = ("servers", "points", "closed", "asleep")
ONE_BY_ONE, BATCHED = "one by one", "batched"


# -- conduct -------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Store every round in a file, so that an interrupted study continues with the next one."""
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    curves: dict[str, dict[str, list[float | None]]] = {}
    for repeat in range(settings["repeats"]):
        for network in settings["networks"]:
            kept = runner.folder / "rounds" / f"{runner.path(network).name}-{repeat}.json"
            if not kept.exists() or json.loads(kept.read_text())["asked"] != settings:
                path = _exported(runner.folder.resolve() / "models", network)
                first = rows["points"] and matching(rows["points"], network=network, repeat=0)
                rates = [row["rate"] for row in first] if first else None
                found, curve = _round(path, settings, rates, repeat)
                kept.parent.mkdir(exist_ok=True)
                write_json(kept, {"asked": settings, "rows": found, "curve": curve})
                runner.say(f"{network}: round {repeat + 1} of {settings['repeats']}")
            done = json.loads(kept.read_text())
            for name, own in done["rows"].items():
                rows[name] += [{"network": network, "repeat": repeat, **row} for row in own]
            curves.setdefault(network, done["curve"])
    return runner.results(settings, rows=rows, curves=curves)


def _round(path: Path, settings: Settings, rates: Sequence[float] | None, repeat: int) -> tuple[dict[str, list[Row]], Row]:  # fmt: skip
    """Calibrate, predict and measure. Return rows by table, and the predicted curve. The first round sets the rates by its
    knee.
    """
    from chronograd.deploy.timing import own_cores, served_here

    cores = own_cores()
    with _kept_awake():
        server = served_here(path, Server({1: 0.0}), settings["most_rows"], settings["threads"], cores=cores).server
        at_knee = knee(server)
        rates = rates or [share * at_knee for share in settings["of_knee"]]
        measured, closed = _measured(path, settings, server.most_rows, rates, repeat, cores)
    server = replace(server, most_rows=measured[0]["largest_batch"])  # the server sets it from its own clock
    own = {**asdict(server), "batch_s": {str(rows): s for rows, s in server.batch_s.items()},
           "wake_s": {str(pause_s): s for pause_s, s in server.wake_s.items()}}  # fmt: skip
    servers = [
        {"knee": at_knee, "most": server.most_per_s, "lone_s": server.lone_s, "is_bound": cores is not None, **own}
    ]
    points = [
        {"of_knee": share, "rate": rate, "lone_s": server.lone_s, **point, **_predicted(server, rate, settings, repeat)}
        for share, rate, point in zip(settings["of_knee"], rates, measured, strict=True)
    ]
    asleep: list[Row] = []
    if repeat == 0:
        number = [settings["of_knee"].index(share) for share in settings["asked"]]
        again, _ = _measured(
            path, settings, server.most_rows, [rates[n] for n in number], repeat, cores, is_closed=False
        )
        asleep = [{"of_knee": share, **point} for share, point in zip(settings["asked"], again, strict=True)]
    return {"servers": servers, "points": points, "closed": closed, "asleep": asleep}, _curve(server, max(rates))


# Kinds of prediction, and their knowledge of the server.
MADE_WITH = {
    "model": "batches alone",
    "beside": "HTTP too, as if on a separate core",
    "first": "HTTP on the same core, before any batch",
    "predicted": "HTTP and model in turn, as they are scheduled: the prediction",
}


def _known(server: Server) -> dict[str, Server]:
    """Return the server of the prediction, and servers with less knowledge."""
    beside = replace(server, has_one_core=False)
    return {
        "model": replace(beside, loop_s=0.0, travel_s=0.0, wake_s={}),
        "beside": beside,
        "first": replace(server, answer_s=0.0, slice_s=0.0),
        "predicted": server,
    }


def _predicted(server: Server, rate: float, settings: Settings, seed: int) -> Row:
    """Return the statistics of each kind of prediction at a rate."""
    return {name: _statistics(one, rate, settings, seed) for name, one in _known(server).items()}


def predictions(results: Results) -> dict[str, list[Row]]:
    """Predict the measured points again, from the stored times of each server."""
    servers = {(row["network"], row["repeat"]): _stored(row) for row in results.rows["servers"]}
    points = [
        {**row, **_predicted(servers[row["network"], row["repeat"]], row["rate"], results.settings, row["repeat"])}
        for row in results.rows["points"]
    ]
    return {"points": points}


def _stored(row: Row) -> Server:
    """Return the server of a row of the table `servers`."""
    known = {field.name: row[field.name] for field in fields(Server)}
    by_key = {
        "batch_s": {int(n): s for n, s in row["batch_s"].items()},
        "wake_s": {float(pause_s): s for pause_s, s in row["wake_s"].items()},
    }
    return Server(**{**known, **by_key, "factors": tuple(row["factors"])})


def _exported(folder: Path, network: str) -> Path:
    """Return the path of the network in ONNX, with initial weights."""
    from chronograd import ask
    from chronograd.deploy import export_source
    from chronograd.deploy.export import write_onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network.rpartition(':')[2]}.onnx"
    if not path.exists():
        source = export_source.of_job(ask.job_of(network), network)
        write_onnx(source.network, source.random(4, None).fed, path)
    return path


def _statistics(server: Server, rate: float, settings: Settings, seed: int) -> dict[str, float]:
    """Return latencies of the client's arrivals after the warm-up."""
    from chronograd.deploy.load import arrivals

    due = np.array(list(arrivals(rate, settings["warmup_s"] + settings["seconds"], seed)))
    latencies, _ = follow(server, due, np.random.default_rng(seed).choice(server.factors, len(due)))
    later = latencies[due >= settings["warmup_s"]]
    answered = later[~np.isnan(later)]
    return {"latency_mean_s": float(answered.mean()), **{name: float(np.quantile(answered, share)) for name, share in PERCENTILES.items()},
            "refused_share": 1 - len(answered) / len(later)}  # fmt: skip


def _curve(server: Server, highest: float) -> dict[str, list[float | None]]:
    """Return predicted percentiles up to a rate."""
    found = [at_rate(server, float(rate)) for rate in np.linspace(highest / 40, highest, 24)]
    return {
        "rate": [one.rate for one in found],
        **{name: [one.percentile_s(share) for one in found] for name, share in PERCENTILES.items()},
    }


def _measured(
    path: Path,
    settings: Settings,
    most_rows: int,
    rates: Sequence[float],
    seed: int,
    cores: Cores | None,
    is_closed: bool = True,
) -> tuple[list[Row], list[Row]]:
    """Measure each rate of an open loop, and the requests per second of connections that send without pause, with and without
    batches.
    """
    from chronograd.deploy.load import RequestOptions, load
    from chronograd.deploy.timing import bound, largest_batch, runs, serving

    points: list[Row] = []
    closed: list[Row] = []
    for way, most in ((BATCHED, most_rows), (ONE_BY_ONE, 1))[: 2 if is_closed else 1]:
        options = ("--threads", str(settings["threads"]), "--batch", str(most))
        with serving(path, *options, core=cores and cores.server) as url, bound(cores and cores.client):
            largest = largest_batch(url, path.stem)
            each = {"options": RequestOptions(seed=seed), "warmup_s": settings["warmup_s"]}
            for rate in rates if way == BATCHED else ():
                before, used = runs(url, path.stem), _Used.now()
                (one,) = load(url, rates=[rate], seconds_each=settings["seconds"], **each).data["load"]
                ran = runs(url, path.stem).since(before)
                own = {
                    "run_s": ran.seconds / ran.batches,
                    "rows_of_batch": ran.rows / ran.batches,
                    "largest_batch": largest,
                    "late_p99_s": one["late_p99_s"],
                    **_Used.now().since(used),
                }
                points.append({name: one[name] for name in (*STATISTICS, *COUNTS)} | own)
            if not is_closed:
                continue
            asking = {"connections": [settings["connections"]], "seconds_each": settings["closed_seconds"]}
            (row,) = load(url, **asking, **each).data["load"]
        closed.append({"way": way, "requests_per_s": row["throughput_requests_per_s"], "p99_s": row["latency_p99_s"]})
    return points, closed


@dataclass(frozen=True)
class _Used:
    """Seconds of all cores since the machine started.

    They are the seconds of any work, and of this process and its children. The last are those in which the host of a virtual
    machine ran something else although a core was ready.
    """

    at: float
    cores: int
    busy_s: float
    own_s: float
    host_s: float

    @classmethod
    def now(cls) -> _Used:
        import psutil  # `study list` does not need it

        all_, own = psutil.cpu_times(), psutil.Process()
        times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
        busy_s, host_s = all_.user + all_.system + getattr(all_, "nice", 0.0), getattr(all_, "steal", 0.0)
        own_s = sum(one.user + one.system for one in times)
        return cls(time.perf_counter(), psutil.cpu_count(), busy_s, own_s, host_s)

    def since(self, before: _Used) -> dict[str, float]:
        """Return the shares of the cores' time that other processes and the host took."""
        all_s = (self.at - before.at) * self.cores
        others_s = self.busy_s - before.busy_s - (self.own_s - before.own_s)
        return {"taken_by_others": max(others_s, 0.0) / all_s, "taken_by_host": (self.host_s - before.host_s) / all_s}


_SPIN = """
import contextlib, os, sys
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)) if hasattr(os, "SCHED_IDLE") else os.nice(19)
with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as of_session:
    of_session.write("19")
while os.getppid() == int(sys.argv[1]): pass
"""


@contextmanager
def _kept_awake() -> Iterator[None]:
    """Give every core work of lowest priority: a core that sleeps may wait long until its host runs it again.

    Linux may share cores among sessions before it considers their processes (sched(7), autogroup), so their session also gets
    the lowest priority.
    """
    spinning = [
        subprocess.Popen(trust.python("-c", _SPIN, str(os.getpid())), start_new_session=True)
        for _ in range(environment.cores())
    ]
    if hasattr(os, "sched_setaffinity"):
        for core, process in zip(sorted(os.sched_getaffinity(0)), spinning, strict=True):
            os.sched_setaffinity(process.pid, {core})
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


# -- page ----------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows
    asleep = _asleep(results)
    return {
        "aim": AIM,
        "knees": {key(row["network"]): row for row in _knees(results)},
        "near": {
            **{word: _near(_errors(results, f"latency_{word}_s")) for word in ("mean", "p50", "p99")},
            "knees": _near([row["error"] for row in _knees(results) if row["error"] is not None]),
        },
        "knowing": {
            "separate" if name == "beside" else name: _near(_errors(results, "latency_p50_s", name))
            for name in MADE_WITH
        },
        "asleep": {
            "times": statistics.median(
                row["asleep_s"] / row["awake_s"] for row in asleep if row["awake_s"] and row["asleep_s"]
            ),
            "host": statistics.median(row["host"] for row in asleep),
            "host_awake": statistics.median(row["host_awake"] for row in asleep),
            "cases": len(asleep),
        },
        "batching": {key(network): _ways(own) for network, own in grouped(rows["closed"], "network").items()},
        "http": {
            key(network): statistics.fmean((row["loop_s"] + row["travel_s"]) / row["lone_s"] for row in own)
            for network, own in grouped(rows["servers"], "network").items()
        },
    }


def _near(errors: Sequence[float]) -> dict[str, float]:
    """Return the number of errors, those within the aim, and the median of their sizes."""
    sizes = [abs(error) for error in errors]
    return {"count": sum(size <= AIM for size in sizes), "of": len(sizes), "median": statistics.median(sizes or [0.0])}


def _ways(rows: Sequence[Row]) -> dict[str, Spread]:
    return {key(way): spread(rows, "requests_per_s", way=way) for way in (ONE_BY_ONE, BATCHED)}


def blocks(results: Results) -> dict[str, Block]:
    networks = distinct(results.rows["points"], "network")
    return {
        "The knee": Block(table(_knees(results), {
            "network": "network", "lone, predicted": ("predicted_lone_s", seconds), "lone, measured": ("lone_s", seconds),
            "knee, predicted": lambda row: shown(row["predicted"], number), "knee, measured": lambda row: shown(row["measured"], number),
            "error": ("error", signed_percent), "rounds that reach it": "reached",
        })),
        "Latency, predicted and measured": Block(
            _latencies(results), Figure([_panel(results, network) for network in networks])
        ),
        "The knowledge that the prediction needs": Block(_causes(results)),
        "If cores may sleep": Block(_asleep_table(results)),
        "The gain of batching": Block(_batching(results)),
        "Inputs of the predictions": Block(_parts(results)),
    }  # fmt: skip


def _of_knee(results: Results, network: str, rate: float) -> str:
    """Return a rate as a share of the measured knee; if none was measured, of the server's estimate, marked so."""
    measured = _knee_row(network, matching(results.rows["points"], network=network))["measured"]
    if measured:
        return percent(rate / measured, 0)
    return f"{percent(rate / matching(results.rows['servers'], network=network)[0]['knee'], 0)} of the predicted"


def _asked(results: Results) -> list[tuple[str, float, list[Row]]]:
    """Return each network at each of the rates in question, with its repeats."""
    return [
        (network, share, matching(own, of_knee=share))
        for network, own in grouped(results.rows["points"], "network").items()
        for share in results.settings["asked"]
    ]


def _errors(results: Results, name: str, made_with: str = "predicted") -> list[float]:
    """Return errors of the predictions at the rates in question: predicted over measured, less one."""
    pairs = [(statistics.fmean(row[made_with][name] for row in own), mean(own, name)) for _, _, own in _asked(results)]
    return [predicted / measured - 1 for predicted, measured in pairs if measured]


def _latencies(results: Results) -> Table:
    body = []
    for network, _, own in _asked(results):
        cells = []
        for name in ("latency_mean_s", "latency_p50_s", "latency_p99_s"):
            measured, predicted = mean(own, name), statistics.fmean(row["predicted"][name] for row in own)
            cells += ["–", "–", "–"] if measured is None else [
                seconds(measured), seconds(predicted), signed_percent(predicted / measured - 1)]  # fmt: skip
        body.append([network, _of_knee(results, network, own[0]["rate"]), number(own[0]["rate"]), *cells])
    names = [f"{word} {what}" for word in ("mean", "median", "p99") for what in ("measured", "predicted", "error")]
    return Table(("network", "of the measured knee", "requests/s", *names), body, set(range(1, 12)))


def _causes(results: Results) -> Table:
    """Compare predictions with more and less knowledge, and add effects that none of them knows."""
    body = []
    for network, _, own in _asked(results):
        measured = mean(own, "latency_p50_s")
        cells = [
            "–"
            if measured is None
            else signed_percent(statistics.fmean(row[name]["latency_p50_s"] for row in own) / measured - 1)
            for name in MADE_WITH
        ]
        others, host = (statistics.fmean(row[name] for row in own) for name in ("taken_by_others", "taken_by_host"))
        late = seconds(statistics.fmean(row["late_p99_s"] for row in own))
        body.append(
            [network, _of_knee(results, network, own[0]["rate"]), *cells, percent(others, 0), percent(host, 0), late]
        )
    columns = ("network", "of the measured knee", *MADE_WITH.values(), "other processes", "host", "sent late by")
    return Table(columns, body, set(range(1, 9)))


def _asleep(results: Results) -> list[Row]:
    """Return medians with cores that stay awake and with cores that may sleep, and the share of the cores' time that the host
    takes.
    """
    made = []
    for row in results.rows["asleep"]:
        own = matching(results.rows["points"], network=row["network"], of_knee=row["of_knee"])
        made.append({
            "network": row["network"], "of_knee": _of_knee(results, row["network"], own[0]["rate"]),
            "awake_s": mean(own, "latency_p50_s"), "asleep_s": row["latency_p50_s"],
            "host_awake": statistics.fmean(point["taken_by_host"] for point in own), "host": row["taken_by_host"],
        })  # fmt: skip
    return made


def _asleep_table(results: Results) -> Table:
    def share(value: float) -> str:
        return percent(value, 0)

    return table(_asleep(results), {
        "network": "network", "of the measured knee": "of_knee", "median, awake": lambda row: shown(row["awake_s"], seconds),
        "median": lambda row: shown(row["asleep_s"], seconds), "taken by the host, awake": ("host_awake", share),
        "taken by the host": ("host", share),
    })  # fmt: skip


def _panel(results: Results, network: str) -> Lines:
    servers = matching(results.rows["servers"], network=network)
    own = matching(results.rows["points"], network=network)
    curve = results.curves[network]
    series = []
    for name, column, color in (("median", "latency_p50_s", "accent"), ("99 %", "latency_p99_s", "vermilion")):
        known = [point for point in own if point[column] is not None]
        series.append(
            Series(f"{name}, predicted", "predicted", curve["rate"], scaled(curve[column], 1e-3), color=color)  # type: ignore[arg-type]
        )
        series.append(
            Series(
                f"{name}, measured",
                "measured",
                [p["rate"] for p in known],
                [1e3 * p[column] for p in known],
                color=color,
            )
        )
    measured = _knee_row(network, own)["measured"]
    marks = [
        Mark("x", servers[0]["knee"], "estimated knee"),
        *([Mark("x", measured, "measured knee")] if measured else []),
    ]
    # Beyond the server's capacity, latencies are those of a full queue, which would hide all others.
    return Lines("requests per second", "latency, ms", series, marks, log_y=True, title=network)


def _knee_row(network: str, points: Sequence[Row]) -> Row:
    """Return the knee: the means of all repeats, measured and predicted, cross twice the latency of a lone request."""
    by_rate = sorted(grouped(points, "rate").items())
    predicted = [(rate, statistics.fmean(row["predicted"]["latency_mean_s"] for row in own)) for rate, own in by_rate]
    measured = [(rate, time) for rate, own in by_rate if (time := mean(own, "latency_mean_s")) is not None]
    lone_s = statistics.fmean(row["lone_s"] for row in points)
    # The lowest rate is not zero. A lone request takes less, by the predicted ratio of that rate.
    measured_lone_s = measured[0][1] * lone_s / dict(predicted)[measured[0][0]]
    expected, found = _crossing(predicted, KNEE * lone_s), _crossing(measured, KNEE * measured_lone_s)
    error = None if expected is None or found is None else expected / found - 1
    rounds = grouped(points, "repeat").values()
    reached = sum(max(row["latency_mean_s"] or 0.0 for row in own) > KNEE * measured_lone_s for own in rounds)
    return {"network": network, "predicted": expected, "measured": found, "error": error, "lone_s": measured_lone_s,
            "predicted_lone_s": lone_s, "reached": f"{reached} of {len(rounds)}"}  # fmt: skip


def _crossing(means: Sequence[tuple[float, float]], limit: float) -> float | None:
    """Return the rate at which rising means cross a limit, by linear interpolation; None if they do not."""
    for (low, before), (high, after) in pairwise(means):
        if before <= limit < after:
            return low + (high - low) * (limit - before) / (after - before)
    return None


def _knees(results: Results) -> list[Row]:
    return [_knee_row(network, own) for network, own in grouped(results.rows["points"], "network").items()]


def _batching(results: Results) -> Table:
    body = []
    for network, own in grouped(results.rows["closed"], "network").items():
        servers = matching(results.rows["servers"], network=network)
        alone, batched = _ways(own).values()
        largest = "/".join(str(rows) for rows in dict.fromkeys(server["most_rows"] for server in servers))
        body.append([network, largest, number(alone.mean), number(batched.mean), signed_percent(batched.mean / alone.mean - 1),
                     "yes" if (batched - alone).is_seen else "no"])  # fmt: skip
    columns = ("network", "largest batch", "single, requests/s", "batched, requests/s", "gain", "significant")
    return Table(columns, body, set(range(1, 5)))


def _parts(results: Results) -> Table:
    return table(results.rows["servers"], {
        "network": "network", "round": lambda row: str(row["repeat"] + 1), "batch of 1": lambda row: seconds(row["batch_s"]["1"]),
        "a row of the largest": lambda row: seconds(row["batch_s"][str(row["most_rows"])] / row["most_rows"]), "largest": "most_rows",
        "more after a pause": lambda row: seconds(max(row["wake_s"].values(), default=0.0)), "HTTP, in turn": ("loop_s", seconds),
        "of it to answer": ("answer_s", seconds), "HTTP, besides": ("travel_s", seconds), "most requests/s": ("most", number),
    })  # fmt: skip


_LAPTOP = {
    "networks": ["resnet20", "mobilenet-v1-0.25", "mobilenet-v1"], "of_knee": [0.3, 0.6, 0.9, 1.2, 1.5, 1.8], "asked": [0.3, 0.6, 0.9],
    "seconds": 4.0, "closed_seconds": 2.0, "warmup_s": 0.5, "repeats": 3, "threads": 1, "most_rows": 16, "connections": 8,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP,
    "networks": ["lenet5"],
    "of_knee": [0.2, 1.2],
    "asked": [0.2],
    "seconds": 0.5,
    "closed_seconds": 0.5,
    "warmup_s": 0.1,
    "repeats": 1,
}

STUDY = Study(
    name="serving",
    question="How do latency and throughput of a server depend on load and batching, where is its knee, and can both be predicted?",
    hypothesis="A queue with batches, fed with times of batches and of bare requests, is within 15 % of medians and knees, and misses rare "
    "delays",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=predictions,
)
