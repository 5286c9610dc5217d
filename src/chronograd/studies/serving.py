"""Serving: latency against load of `chronograd serve`, its knee, what batching gains, and how near a queueing model comes.

The prediction knows the times of batches in ONNX Runtime alone, and what a request to a model that computes nothing takes; of the
server under load it knows nothing. Client and server share the machine.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Mark, Series
from chronograd.measure import environment
from chronograd.predict.queueing import KNEE, Server, at_rate, knee
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import Spread, difference, distinct, grouped, matching
from chronograd.study.runner import StudyRunner
from chronograd.study.study import Study
from chronograd.units import percent, quantity, seconds
from chronograd.words import listed, scaled, signed_percent

AIM = 0.15
STATISTICS = {"latency_mean_s": "mean", "latency_p50_s": "median", "latency_p95_s": "p95", "latency_p99_s": "p99"}
PERCENTILES = {"latency_p50_s": 0.5, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
COUNTS = ("offered_requests_per_s", "throughput_requests_per_s", "failed_requests", "requests")
ONE_BY_ONE, BATCHED = "one by one", "batched"


# -- conduct -------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    rows: dict[str, list[Row]] = {"servers": [], "points": [], "closed": [], "asleep": []}
    curves: dict[str, dict[str, list[float | None]]] = {}
    for network in settings["networks"]:
        path = _exported(runner.folder.resolve() / "models", network)
        with _kept_awake():
            server = _predicted(path, settings)
        at_knee = knee(server)
        own = {**asdict(server), "batch_s": {str(rows): s for rows, s in server.batch_s.items()},
               "wake_s": {str(pause_s): s for pause_s, s in server.wake_s.items()}}  # fmt: skip
        rows["servers"].append(
            {"network": network, "knee": at_knee, "most": server.most_per_s, "lone_s": server.lone_s, **own}
        )
        rates = [share * at_knee for share in settings["of_knee"]]
        curves[network] = _curve(server, max(rates))
        for repeat in range(settings["repeats"]):
            with _kept_awake():
                measured, closed = _measured(path, settings, server.most_rows, rates, repeat)
            rows["points"] += [
                {"network": network, "of_knee": share, "rate": rate, "repeat": repeat, **point,
                 "predicted": _statistics(server, rate), "awake": _statistics(replace(server, wake_s={}), rate),
                 "as_run": _statistics(_as_run(server, point), rate)}
                for share, rate, point in zip(settings["of_knee"], rates, measured, strict=True)
            ]  # fmt: skip
            rows["closed"] += [{"network": network, "repeat": repeat, **row} for row in closed]
            runner.say(f"{network}: repeat {repeat + 1} of {settings['repeats']}")
        asked = [share * at_knee for share in settings["asked"]]
        asleep, _ = _measured(path, settings, server.most_rows, asked, 0, is_closed=False)
        rows["asleep"] += [
            {"network": network, "of_knee": share, **point}
            for share, point in zip(settings["asked"], asleep, strict=True)
        ]
    return runner.results(settings, rows=rows, curves=curves)


def _exported(folder: Path, network: str) -> Path:
    """The network in ONNX, with initial weights."""
    from chronograd import ask
    from chronograd.deploy import export_source
    from chronograd.deploy.export import write_onnx

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{network.rpartition(':')[2]}.onnx"
    if not path.exists():
        source = export_source.of_job(ask.job_of(network), network)
        write_onnx(source.network, source.random(4, None).fed, path)
    return path


def _predicted(path: Path, settings: Settings) -> Server:
    from chronograd.deploy.timing import served_here

    return served_here(path, Server({1: 0.0}), settings["most_rows"], settings["threads"]).server


def _statistics(server: Server, rate: float) -> dict[str, float]:
    found = at_rate(server, rate)
    return {"latency_mean_s": found.mean_s, **{name: found.percentile_s(share) for name, share in PERCENTILES.items()},
            "refused_share": found.refused_share}  # fmt: skip


def _as_run(server: Server, point: Row) -> Server:
    """With a model that takes as long as it took in the server under this load."""
    alone_s = float(np.interp(point["rows_of_batch"], range(1, server.most_rows + 1), server.seconds))
    return replace(server.slower(point["run_s"] / alone_s / float(np.mean(server.factors))), wake_s={})


def _curve(server: Server, highest: float) -> dict[str, list[float | None]]:
    """Predicted percentiles up to a rate."""
    found = [at_rate(server, float(rate)) for rate in np.linspace(highest / 40, highest, 24)]
    return {
        "rate": [one.rate for one in found],
        **{name: [one.percentile_s(share) for one in found] for name, share in PERCENTILES.items()},
    }


def _measured(
    path: Path, settings: Settings, most_rows: int, rates: Sequence[float], seed: int, is_closed: bool = True
) -> tuple[list[Row], list[Row]]:
    """Of each rate of an open loop; and requests per second of connections that ask without pause, with and without batches."""
    from chronograd.deploy.load import load
    from chronograd.deploy.timing import serving

    points: list[Row] = []
    closed: list[Row] = []
    for way, most in ((BATCHED, most_rows), (ONE_BY_ONE, 1))[: 2 if is_closed else 1]:
        with serving(path, "--threads", str(settings["threads"]), "--batch", str(most)) as url:
            each = {"seconds_each": settings["seconds"], "warmup_s": settings["warmup_s"], "seed": seed}
            for rate in rates if way == BATCHED else ():
                before, host = _runs(url), _taken_by_host_s()
                begun = time.perf_counter()
                (one,) = load(url, rates=[rate], **each).data["load"]
                run_s, runs, rows = (now - then for now, then in zip(_runs(url), before, strict=True))
                taken = (_taken_by_host_s() - host) / (time.perf_counter() - begun) / environment.cores()
                own = {
                    "run_s": run_s / runs,
                    "rows_of_batch": rows / runs,
                    "late_p99_s": one["late_p99_s"],
                    "taken_by_host": taken,
                }
                points.append({name: one[name] for name in (*STATISTICS, *COUNTS)} | own)
            if not is_closed:
                continue
            (row,) = load(url, connections=[settings["connections"]], **each).data["load"]
        closed.append({"way": way, "requests_per_s": row["throughput_requests_per_s"], "p99_s": row["latency_p99_s"]})
    return points, closed


@contextmanager
def _kept_awake() -> Iterator[None]:
    """Give every core something to do that yields to all else: one that sleeps may wait for long until its host lets it go on."""
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)) if hasattr(os, 'SCHED_IDLE') else os.nice(19)\nwhile os.getppid() == {}: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin.format(os.getpid())]) for _ in range(environment.cores())]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def _taken_by_host_s() -> float:
    """Seconds that cores of a virtual machine were ready to run and its host ran something else, over all; 0 where it does not say."""
    import psutil  # `study list` needs it not

    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def _runs(url: str) -> tuple[float, float, float]:
    """Seconds that the model has run in a server, in how many batches, and of how many rows, by its own metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        text = answer.read().decode()
    sums = {name: float(value) for name, value in re.findall(r"^chronograd_(\w+)\{[^\n]*\} (\S+)$", text, re.MULTILINE)}
    return sums.get("run_seconds_sum", 0.0), sums.get("run_seconds_count", 0.0), sums.get("batch_rows_sum", 0.0)


# -- page ----------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows
    knees = [_knee_row(results, server) for server in rows["servers"]]
    sections = [
        _knee_section(results, knees),
        _beside_section(results),
        _cause_section(results),
        _asleep_section(results),
        _batching_section(results),
        _parts_section(results),
    ]
    near = [error for error in _errors(results, "latency_p50_s") if abs(error) <= AIM]
    highlights = [
        Highlight("medians within 15 %", f"{len(near)} of {len(_errors(results, 'latency_p50_s'))}", "networks × rates"),
        Highlight("knees within 15 %", f"{sum(abs(row['error']) <= AIM for row in knees if row['error'] is not None)} of {len(knees)}"),
    ]  # fmt: skip
    return STUDY.answer(results, sections, highlights)


def _asked(results: Results) -> list[tuple[str, float, list[Row]]]:
    """Each network at each of the rates that are asked about, with its repeats."""
    return [
        (network, share, matching(own, of_knee=share))
        for network, own in grouped(results.rows["points"], "network").items()
        for share in results.settings["asked"]
    ]


def _mean(rows: Sequence[Row], name: str) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return statistics.fmean(known) if known else None


def _errors(results: Results, name: str, made_with: str = "predicted") -> list[float]:
    """Of the predictions at the rates that are asked about: predicted over measured, less one."""
    pairs = [(statistics.fmean(row[made_with][name] for row in own), _mean(own, name)) for _, _, own in _asked(results)]
    return [predicted / measured - 1 for predicted, measured in pairs if measured]


def _beside_section(results: Results) -> Section:
    body = []
    for network, share, own in _asked(results):
        cells = []
        for name in ("latency_mean_s", "latency_p50_s", "latency_p99_s"):
            measured, predicted = _mean(own, name), own[0]["predicted"][name]
            cells += ["–", "–", "–"] if measured is None else [
                seconds(measured), seconds(predicted), signed_percent(predicted / measured - 1)]  # fmt: skip
        body.append([network, percent(share, 0), f"{own[0]['rate']:,.4g}", *cells])
    names = [f"{word} {what}" for word in ("mean", "median", "p99") for what in ("measured", "predicted", "error")]
    sentences = []
    for name, word in (
        ("latency_p50_s", "medians"),
        ("latency_mean_s", "means"),
        ("latency_p99_s", "99th percentiles"),
    ):
        errors = _errors(results, name)
        if errors:
            near = sum(abs(error) <= AIM for error in errors)
            sentences.append(
                f"{near} of {len(errors)} {word} are within {percent(AIM, 0)} (in the median of the errors "
                f"{percent(statistics.median(map(abs, errors)), 0)})"
            )
    return Section(
        "Latency, predicted beside measured",
        f"{'; '.join(sentences)}.",
        intro="Measured: `chronograd load` on `chronograd serve`, an open loop, means over repeats. Predicted: the queue, from times of "
        "batches in ONNX Runtime alone.",
        figure=Figure([_panel(results, network) for network in distinct(results.rows["points"], "network")]),
        caption="Latency against rate: lines predicted, points measured, each a repeat.",
        table=Table(("network", "of the knee", "requests/s", *names), body, set(range(1, 12))),
    )


# What a prediction is made with → what it knows.
_MADE_WITH = {
    "awake": "batches and requests one after another",
    "predicted": "the same after pauses too: the prediction",
    "as_run": "how long batches ran in the server under this load",
}


def _cause_section(results: Results) -> Section:
    """Whether what misses is the queue or the times that it is fed with: three predictions, one of them with hindsight."""
    asked = _asked(results)
    body = []
    for network, share, own in asked:
        server = matching(results.rows["servers"], network=network)[0]
        alone_s = float(np.mean(server["factors"])) * server["batch_s"]["1"]
        cells = [f"{statistics.fmean(row['run_s'] for row in own) / alone_s:.2f}"]
        measured = _mean(own, "latency_p50_s")
        for name in _MADE_WITH:
            predicted = statistics.fmean(row[name]["latency_p50_s"] for row in own)
            cells.append("–" if measured is None else signed_percent(predicted / measured - 1))
        body.append([network, percent(share, 0), *cells])
    near: dict[str, int] = {}
    middle: dict[str, str] = {}
    for name in _MADE_WITH:
        errors = _errors(results, "latency_p50_s", name)
        near[name] = sum(abs(error) <= AIM for error in errors)
        middle[name] = percent(statistics.median(map(abs, errors)), 0) if errors else "–"
    return Section(
        "The queue, or the times it is fed with?",
        f"Medians within {percent(AIM, 0)}, of {len(asked)}: {near['awake']} from {_MADE_WITH['awake']} (in the median of the errors "
        f"{middle['awake']}), {near['predicted']} from those after pauses too ({middle['predicted']}), {near['as_run']} from "
        f"{_MADE_WITH['as_run']} ({middle['as_run']}), which only hindsight knows.",
        intro="Errors of medians by what the queue is fed with. In the server a batch runs beside the thread that reads and writes, and the "
        "client.",
        table=Table(
            ("network", "of the knee", "batch in the server, over one row alone", *_MADE_WITH.values()),
            body,
            {1, 2, 3, 4, 5},
        ),
    )


def _asleep_section(results: Results) -> Section:
    """What becomes of latencies where cores may sleep, and how much of them the host of a virtual machine takes."""
    body: list[list[str]] = []
    times: list[float] = []
    taken: list[tuple[float, float]] = []
    for row in results.rows["asleep"]:
        own = matching(results.rows["points"], network=row["network"], of_knee=row["of_knee"])
        awake, asleep = _mean(own, "latency_p50_s"), row["latency_p50_s"]
        hosts = (statistics.fmean(point["taken_by_host"] for point in own), row["taken_by_host"])
        taken.append(hosts)
        if awake and asleep:
            times.append(asleep / awake)
        cells = ["–" if value is None else seconds(value) for value in (awake, asleep)]
        body.append([row["network"], percent(row["of_knee"], 0), *cells, *(percent(share, 0) for share in hosts)])
    kept, free = (statistics.median(shares) for shares in zip(*taken, strict=True))
    return Section(
        "Where cores may sleep",
        f"Where cores may sleep, medians are {statistics.median(times):.1f} times as long, in the median of {len(times)}; the host takes "
        f"{percent(free, 0)} of the cores' time, and {percent(kept, 0)} where they are kept awake.",
        intro="All else on this page is measured with every core kept awake, by a process that yields to all others. Without that a core "
        "sleeps between requests, and on a virtual machine waits for its host before it goes on, as the time that the host takes shows. One "
        "run of each.",
        table=Table(
            (
                "network",
                "of the knee",
                "median, kept awake",
                "median",
                "taken by the host, kept awake",
                "taken by the host",
            ),
            body,
            {1, 2, 3, 4, 5},
        ),
    )


def _panel(results: Results, network: str) -> Lines:
    (row,) = matching(results.rows["servers"], network=network)
    own = matching(results.rows["points"], network=network)
    curve = results.curves[network]
    series = []
    for name, key, color in (("median", "latency_p50_s", "accent"), ("99 %", "latency_p99_s", "vermilion")):
        known = [point for point in own if point[key] is not None]
        series.append(
            Series(f"{name}, predicted", "predicted", curve["rate"], scaled(curve[key], 1e-3), color=color)  # type: ignore[arg-type]
        )
        series.append(
            Series(
                f"{name}, measured", "measured", [p["rate"] for p in known], [1e3 * p[key] for p in known], color=color
            )
        )
    # Beyond what a server can do latencies are those of a full queue, which would hide all others.
    return Lines(
        "requests per second", "latency, ms", series, [Mark("x", row["knee"], "knee")], log_y=True, title=network
    )


def _knee_row(results: Results, server: Row) -> Row:
    """The measured knee of a network: where the mean latency of all repeats crosses twice that at the lowest rate."""
    by_rate = grouped(matching(results.rows["points"], network=server["network"]), "rate")
    means = sorted((rate, mean) for rate, own in by_rate.items() if (mean := _mean(own, "latency_mean_s")) is not None)
    # The lowest rate is not nothing: what a request by itself would take is less by what the prediction says of that rate.
    first_rate, first = means[0]
    lone_s = first * server["lone_s"] / by_rate[first_rate][0]["predicted"]["latency_mean_s"]
    measured = None
    for (low, before), (high, after) in pairwise(means):
        if before <= KNEE * lone_s < after:
            measured = low + (high - low) * (KNEE * lone_s - before) / (after - before)
            break
    error = None if measured is None else server["knee"] / measured - 1
    return {"network": server["network"], "predicted": server["knee"], "measured": measured, "error": error, "lone_s": lone_s,
            "predicted_lone_s": server["lone_s"]}  # fmt: skip


def _knee_section(results: Results, knees: Sequence[Row]) -> Section:
    known = [row for row in knees if row["error"] is not None]
    words = [
        f"{row['network']} {quantity(row['measured'], 'request/s')} (predicted {signed_percent(row['error'])})"
        for row in known
    ]
    body = [
        [row["network"], seconds(row["predicted_lone_s"]), seconds(row["lone_s"]), f"{row['predicted']:,.4g}",
         "–" if row["measured"] is None else f"{row['measured']:,.4g}", signed_percent(row["error"])]
        for row in knees
    ]  # fmt: skip
    return Section(
        "The knee",
        f"Measured knees: {listed(words)}." if words else "No measured rate was beyond a knee.",
        intro="The knee is the rate at which the mean latency is twice that of a lone request.",
        table=Table(
            ("network", "lone, predicted", "lone, measured", "knee, predicted", "knee, measured", "error"),
            body,
            set(range(1, 6)),
        ),
    )


def _batching_section(results: Results) -> Section:
    body, words = [], []
    for network, own in grouped(results.rows["closed"], "network").items():
        (server,) = matching(results.rows["servers"], network=network)
        spreads = {
            way: Spread.of([row["requests_per_s"] for row in matching(own, way=way)]) for way in (ONE_BY_ONE, BATCHED)
        }
        apart = difference(spreads[BATCHED], spreads[ONE_BY_ONE])
        gain = spreads[BATCHED].mean / spreads[ONE_BY_ONE].mean - 1
        words.append(f"{network} {signed_percent(gain)}" if apart.is_seen else f"{network} not told apart")
        body.append([network, str(server["most_rows"]), *(f"{one.mean:,.4g}" for one in spreads.values()), signed_percent(gain),
                     "yes" if apart.is_seen else "no"])  # fmt: skip
    return Section(
        "What batching brings",
        f"Requests per second with batches, against one by one: {listed(words)}.",
        intro=f"A closed loop of {results.settings['connections']} connections. The largest batch is what the server found to pay.",
        table=Table(
            ("network", "largest batch", "one by one, requests/s", "batched, requests/s", "gain", "told apart"),
            body,
            set(range(1, 5)),
        ),
    )


def _parts_section(results: Results) -> Section:
    """What predictions are made of."""
    rows = results.rows["servers"]
    body = [
        [row["network"], seconds(row["batch_s"]["1"]), seconds(row["batch_s"][str(row["most_rows"])] / row["most_rows"]), str(row["most_rows"]),
         seconds(max(row["wake_s"].values(), default=0.0)), seconds(row["loop_s"]), seconds(row["travel_s"]), f"{row['most']:,.4g}"]
        for row in rows
    ]  # fmt: skip
    shares = [f"{percent((row['loop_s'] + row['travel_s']) / row['lone_s'], 0)} of {row['network']}" for row in rows]
    return Section(
        "What the predictions are made of",
        f"Of a lone request, its way through HTTP is {listed(shares)}.",
        table=Table(
            (
                "network",
                "batch of 1",
                "a row of the largest",
                "largest",
                "more after a pause",
                "HTTP, in turn",
                "HTTP, besides",
                "most requests/s",
            ),
            body,
            set(range(1, 8)),
        ),
    )


_LAPTOP = {
    "networks": ["resnet20", "mobilenet-v1-0.25", "mobilenet-v1"], "of_knee": [0.3, 0.6, 0.9, 1.2], "asked": [0.3, 0.6, 0.9], "seconds": 2.0,
    "warmup_s": 0.5, "repeats": 3, "threads": 1, "most_rows": 16, "connections": 8,
}  # fmt: skip
_SMOKE = {
    **_LAPTOP,
    "networks": ["lenet5"],
    "of_knee": [0.2, 1.2],
    "asked": [0.2],
    "seconds": 0.5,
    "warmup_s": 0.1,
    "repeats": 1,
}

STUDY = Study(
    name="serving",
    question="How do latency and throughput of a server depend on load and batching, where is its knee, and can both be predicted?",
    hypothesis="A queue with batches, fed with times of batches alone, is within 15 % of medians and knees, and misses rare delays",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    page=page,
)
