"""Cluster profile: what a run on 1, 2 and 3 nodes of a CPU cluster takes in real, user and system time, and why.

The way of the Horovod examples for Keras: Adadelta, its rate times the number of ranks, the epochs divided by it, the batch
of a rank kept. Nodes are those of SLURM; where there is none, or too small a one, processes of this machine stand in.

Published: wall times of three networks on CPU nodes of an HPC cluster, from a report.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.data import datasets
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure, Lines, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed, from_dict, scaled
from chronograd.launch import jobs, slurm
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.launch.slurm.script import Options
from chronograd.measure import environment
from chronograd.predict.prediction import predict
from chronograd.rundir import RunDir, is_run_dir
from chronograd.study.lab import Lab, outcome
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import distinct, study_page
from chronograd.units import dollars, percent, seconds, si

# Wall time on 1, 2, 3 CPU nodes, in seconds, and how far user time was above real time.
PUBLISHED = {
    "small CNN": (451.5, 754.0, 462.1),
    "EfficientNet-B0": (474.1, 472.0, 473.4),
    "ResNet-50": (1015.1, 1009.6, 503.1),
}
PUBLISHED_USER_OVER_REAL = 2.5  # 150 % above
SLURM, PROCESSES = "SLURM", "torchrun"
COLORS = ("accent", "vermilion", "grey")


def job(settings: Settings, name: str, nodes: int) -> Job:
    """One network on so many nodes, a rank each."""
    own = settings["networks"][name]
    return from_dict(
        {
            "network": {"name": own["network"]},
            "data": {key: settings[key] for key in ("samples", "test_samples")} | {"name": settings["data"]},
            "training": {
                "recipe": "adadelta",
                "scale_by_ranks": ["learning_rate", "epochs"],
                "epochs": own["epochs"],
                "batch": settings["batch_per_rank"] * nodes,
                "evaluate_every": own["epochs"],
                "checkpoint_every": own["epochs"],
            },
            "cluster": {
                "device": "cpu",
                "count": nodes,
                "per_node": 1,
                "threads": settings["threads"],
                "price_usd_per_hour": settings["price_usd_per_hour"],
            },
            "backend": "ddp",
        }
    )


# -- conduct -------------------------------------------------------------------------------------------


def conduct(lab: Lab, settings: Settings) -> Results:
    """One run after the other: they are timed."""
    most = max(settings["nodes"])
    launcher = SLURM if slurm_commands.num_nodes() >= most else PROCESSES
    rows = []
    for name in settings["networks"]:
        for nodes in settings["nodes"]:
            run = _train(lab.path(f"{name}/nodes-{nodes}"), job(settings, name, nodes), launcher)
            by = SLURM if (run.path / slurm.NOTE).exists() else PROCESSES
            rows.append({"network": name, "nodes": nodes, "launcher": by, **_times(run), **_outcome(run)})
            lab.say(f"{f'{name}, {_nodes(nodes)}':<40} {seconds(rows[-1]['real_s'])}")
    notes = [f"the price of a node, {settings['price_usd_per_hour']} USD per hour, is an assumption"]
    if PROCESSES in distinct(rows, "launcher"):
        notes.append(f"there was no SLURM of {most} nodes: nodes are processes of this machine, started by torchrun")
    if SLURM in distinct(rows, "launcher"):
        notes.append(f"the nodes of SLURM may share a machine; the one that submitted has {environment.cores()} cores")
    found = {"runs": rows, "predicted": predictions(settings), "machine": [{"cores": environment.cores()}]}
    results = lab.results(settings, rows=found, notes=notes)
    how = {"runs_at_a_time": 1, "threads_per_run": settings["threads"]}
    return replace(results, environment=results.environment | how)


def _train(path: Path, own: Job, launcher: str) -> RunDir:
    """The run in a directory, finished: as it is if it was, else begun or gone on with."""
    if is_run_dir(path) and RunDir.open(path).is_finished:
        return RunDir.open(path)
    if launcher == SLURM:
        if not is_run_dir(path):
            slurm.launch(own, Options(), out=path)
        elif slurm.state(RunDir.open(path)).is_over:
            slurm.submit(RunDir.open(path))
        return slurm.wait(RunDir.open(path))
    run = RunDir.open(path) if is_run_dir(path) else jobs.create(own, out=path)
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    jobs.resume(run, launcher="torchrun")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = {
        "real_s": time.monotonic() - start,
        "user_s": after.ru_utime - before.ru_utime,
        "system_s": after.ru_stime - before.ru_stime,
    }
    (run.path / "usage.0.jsonl").write_text(json.dumps(used) + "\n")  # torchrun and all ranks
    return run


def _times(run: RunDir) -> Row:
    """Real time of the slowest rank, from its start to its end; user and system time of all ranks."""
    used = slurm.usage(run)
    return {
        "real_s": max(one["real_s"] for one in used),
        "user_s": sum(one["user_s"] for one in used),
        "system_s": sum(one["system_s"] for one in used),
    }


def _outcome(run: RunDir) -> Row:
    return outcome(run) | {"images_per_s": run.record().value("throughput_samples_per_s")}


def predictions(settings: Settings) -> list[Row]:
    """The same jobs on nodes of a device and links of the catalogue: a step, its communication, the training."""
    rows = []
    for name in settings["networks"]:
        trace = trace_job(job(settings, name, 1))
        for link in settings["links"]:
            for nodes in settings["nodes"]:
                own = scaled(changed(job(settings, name, nodes), [f"cluster.link={link}", "cluster.threads=null"]))
                own = changed(own, [f"cluster.device={settings['device']}"])
                record = predict(trace, own, samples=datasets.card(own.data).train_size)
                rows.append(
                    {
                        "network": name,
                        "link": link,
                        "nodes": nodes,
                        "step_time_s": record.value("step_time_s"),
                        "communication_exposed_s": record.value("communication_exposed_s"),
                        "training_time_s": record.value("training_time_s"),
                        "low_s": record["training_time_s"].low,
                        "high_s": record["training_time_s"].high,
                        "images_per_s": record.value("throughput_samples_per_s"),
                    }
                )
    return rows


# -- the page ------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows["runs"]
    sections = [
        _time_section(results),
        _user_section(results),
        _predicted_section(results),
        _published_section(results),
    ]
    slowest = max(rows, key=lambda row: row["real_s"])
    fastest = max(distinct(rows, "network"), key=lambda n: _speedup(rows, n, "images_per_s"))
    most = max(results.settings["nodes"])
    highlights = [
        Highlight("longest run", seconds(slowest["real_s"]), f"{slowest['network']} on {_nodes(slowest['nodes'])}"),
        Highlight(
            f"images per second, {most} nodes over 1",
            f"{_speedup(rows, fastest, 'images_per_s'):.2f} ×",
            f"{fastest}; all nodes share {results.rows['machine'][0]['cores']} cores",
        ),
    ]
    return study_page(STUDY, results, sections, highlights)


def _nodes(count: int) -> str:
    return f"{count} node" + ("s" if count > 1 else "")


def _row(rows: Sequence[Row], network: str, nodes: int) -> Row:
    return next(row for row in rows if (row["network"], row["nodes"]) == (network, nodes))


def _speedup(rows: Sequence[Row], network: str, key: str) -> float:
    """The most nodes over the least: of a rate, or of the inverse of a time."""
    counts = sorted(row["nodes"] for row in rows if row["network"] == network)
    least, most = (float(_row(rows, network, n)[key]) for n in (counts[0], counts[-1]))
    return most / least if key.endswith("_per_s") else least / most


def _time_section(results: Results) -> Section:
    rows, price = results.rows["runs"], results.settings["price_usd_per_hour"]
    outside = [1 - row["seconds"] / row["real_s"] for row in rows]
    body, series = [], []
    for network, color in zip(distinct(rows, "network"), COLORS, strict=False):
        own = [row for row in rows if row["network"] == network]
        for row in own:
            body.append(
                [
                    network,
                    str(row["nodes"]),
                    f"{row['epochs']:.0f}",
                    f"{row['updates']:.0f}",
                    seconds(row["real_s"]),
                    seconds(row["user_s"]),
                    seconds(row["system_s"]),
                    seconds(row["seconds"]),
                    si(row["images_per_s"], "/s"),
                    percent(row["accuracy"]),
                    dollars(row["nodes"] * row["real_s"] / 3600 * price),
                ]
            )
        nodes = [float(row["nodes"]) for row in own]
        series.append(Series(network, "measured", nodes, [row["real_s"] for row in own], color=color, is_joined=True))
        ideal = [own[0]["real_s"] * own[0]["nodes"] / n for n in nodes]
        series.append(Series(f"{network}, divided by nodes", "reference", nodes, ideal, color=color))
    columns = [
        "network",
        "nodes",
        "epochs",
        "updates",
        "real",
        "user",
        "system",
        "in steps",
        "images",
        "accuracy",
        "cost",
    ]
    ticks = [float(n) for n in results.settings["nodes"]]
    return Section(
        "Does the time fall with nodes?",
        f"{time_takeaway(rows)} {percent(min(outside), 0)} to {percent(max(outside), 0)} of the real time is outside of steps.",
        intro="Real time is that of the slowest rank from its start to its end, user and system time are of all ranks. "
        "Epochs are divided by the ranks, and each rank has its share of the samples of an epoch. Outside of steps are start-up, "
        "evaluation and checkpoints.",
        figure=Figure([Lines("nodes", "real time, s", series, from_zero=True, x_ticks=ticks)]),
        table=Table(columns, body, set(range(1, len(columns)))),
    )


def time_takeaway(rows: Sequence[Row]) -> str:
    """How much of the fall is less work, and how much is more speed.

    >>> one = {"network": "net", "nodes": 1, "real_s": 40.0, "seconds": 30.0, "epochs": 6.0, "images_per_s": 100.0}
    >>> three = one | {"nodes": 3, "real_s": 20.0, "seconds": 10.0, "epochs": 2.0, "images_per_s": 110.0}
    >>> time_takeaway([one, three])
    'From 1 to 3 nodes net takes 2.00 × less time, for 3.00 × fewer epochs at 1.10 × the images per second.'
    """
    said = []
    for network in distinct(rows, "network"):
        own = [row for row in rows if row["network"] == network]
        fewer = _speedup(rows, network, "epochs")
        factor = _speedup(rows, network, "real_s")
        less = f"{factor:.2f} × less time" if factor >= 1 else f"{1 / factor:.2f} × more time"
        rate = _speedup(rows, network, "images_per_s")
        said.append(f"{network} takes {less}, for {fewer:.2f} × fewer epochs at {rate:.2f} × the images per second")
        counts = (own[0]["nodes"], own[-1]["nodes"])
    return f"From {counts[0]} to {counts[1]} nodes " + "; ".join(said) + "."


def _user_section(results: Results) -> Section:
    rows, machine = results.rows["runs"], results.rows["machine"][0]
    threads = results.settings["threads"]
    bars, body = [], []
    for row in rows:
        label = f"{row['network']}, {_nodes(row['nodes'])}"
        segments = {"user": row["user_s"] / row["real_s"], "system": row["system_s"] / row["real_s"]}
        bars.append(Bar(label, "measured", segments))
        each = segments["user"] / row["nodes"]
        body.append([label, f"{segments['user']:.2f}", f"{segments['system']:.2f}", f"{each:.2f}", str(threads)])
    ratios = [row["user_s"] / row["real_s"] for row in rows]
    most = max(results.settings["nodes"])
    each = [row["user_s"] / row["real_s"] / row["nodes"] for row in rows if row["nodes"] == most]
    return Section(
        "Why is user time above real time?",
        f"User time is summed over threads and ranks: over real time it is the number of cores kept busy, here "
        f"{min(ratios):.2f} to {max(ratios):.2f} of {machine['cores']}. {most} nodes ask for {most * threads} threads on "
        f"these {machine['cores']} cores, so a rank of theirs gets no more than {max(each):.2f} of a core.",
        intro=f"A rank has {threads} threads. The report measured {PUBLISHED_USER_OVER_REAL:g}: so many cores were "
        "busy on average. Above 1 it says that threads work side by side, not that time is lost; "
        "threads that wait by spinning count as work, too.",
        figure=Figure(
            [Bars("time over real time: cores kept busy", "run", bars, {"user": "accent", "system": "vermilion"})]
        ),
        table=Table(["run", "user / real", "system / real", "of one rank", "threads of a rank"], body, {1, 2, 3, 4}),
    )


def _predicted_section(results: Results) -> Section:
    rows, measured = results.rows["predicted"], results.rows["runs"]
    links, most = distinct(rows, "link"), max(results.settings["nodes"])
    body: list[list[str]] = []
    series = []
    for network, color in zip(distinct(rows, "network"), COLORS, strict=False):
        for link in links:
            own = [row for row in rows if (row["network"], row["link"]) == (network, link)]
            for row in own[0 if link == links[0] else 1 :]:
                waits = row["communication_exposed_s"] / row["step_time_s"]
                gain = row["images_per_s"] / own[0]["images_per_s"]
                name = link if row["nodes"] > 1 else "–"
                body.append(
                    [f"{network} (predicted)", str(row["nodes"]), name, seconds(row["step_time_s"]), percent(waits),
                     seconds(row["training_time_s"]), f"{seconds(row['low_s'])} … {seconds(row['high_s'])}",
                     f"{gain:.2f} ×"]
                )  # fmt: skip
            nodes = [float(row["nodes"]) for row in own]
            gains = [row["images_per_s"] / own[0]["images_per_s"] for row in own]
            series.append(Series(f"{network}, {link}", "predicted", nodes, gains, color=color))
        own = [row for row in measured if row["network"] == network]
        gains = [row["images_per_s"] / own[0]["images_per_s"] for row in own]
        series.append(Series(f"{network}, here", "measured", [float(r["nodes"]) for r in own], gains, color=color))
    columns = [
        "network",
        "nodes",
        "link",
        "step",
        "waiting for gradients",
        "training",
        "middle 80 %",
        "images per second",
    ]
    ticks = [float(n) for n in results.settings["nodes"]]
    return Section(
        "Where would a real cluster differ?",
        predicted_takeaway(rows, measured, most),
        intro=f"Predicted, not measured: every node is {catalog.device(results.settings['device']).title} (from its data "
        "sheet), and links are those named. Start-up, evaluation and checkpoints are left out.",
        figure=Figure(
            [Lines("nodes", "images per second over those of 1 node", series, from_zero=True, x_ticks=ticks)]
        ),
        table=Table(columns, body, {1, 3, 4, 5, 6, 7}),
    )


def predicted_takeaway(rows: Sequence[Row], measured: Sequence[Row], most: int) -> str:
    """Which link is enough for which network, and what one machine in place of many hides."""
    said = []
    for network in distinct(rows, "network"):
        gains = []
        for link in distinct(rows, "link"):
            own = [row for row in rows if (row["network"], row["link"]) == (network, link)]
            gains.append(f"{_speedup(own, network, 'images_per_s'):.2f} with {link}")
        said.append(f"{network} {', '.join(gains)} (here {_speedup(measured, network, 'images_per_s'):.2f})")
    return f"On {most} nodes with cores of their own, images per second are predicted to be those of 1 node times: {'; '.join(said)}."


def _published_section(results: Results) -> Section:
    rows, nodes = results.rows["runs"], results.settings["nodes"]
    found = {f"{network} (published)": [times[n - 1] for n in nodes] for network, times in PUBLISHED.items()}
    for network in distinct(rows, "network"):
        found[f"{network} (here)"] = [_row(rows, network, n)["real_s"] for n in nodes]
    body = [
        [name, *map(seconds, times), *(f"{times[0] / t:.2f} ×" for t in times[1:])] for name, times in found.items()
    ]
    columns = ["network", *(f"{_nodes(n)}" for n in nodes), *(f"{n} over {nodes[0]}" for n in nodes[1:])]
    return Section(
        "Beside the report",
        published_takeaway(PUBLISHED),
        intro="Published: CPU nodes of an HPC cluster, Adadelta as above, wall times.",
        table=Table(columns, body, set(range(1, len(columns)))),
    )


def published_takeaway(published: Mapping[str, Sequence[float]]) -> str:
    """Which of the published networks gain from nodes at all, by 5 % or more.

    >>> published_takeaway({"a": (100.0, 101.0, 99.0), "b": (90.0, 60.0, 30.0)})
    'Published times fall with every node for b only; those of a are equal within 2.0 %: as if each node did all the work.'
    """
    falls = [n for n, t in published.items() if all(later < 0.95 * first for first, later in pairwise(t))]
    equal = [(n, max(t) / min(t) - 1) for n, t in published.items() if max(t) < 1.05 * min(t)]
    said = (
        f"Published times fall with every node for {' and '.join(falls) + ' only' if falls else 'none of the networks'}"
    )
    said += "".join(f"; those of {n} are equal within {percent(d)}: as if each node did all the work" for n, d in equal)
    return f"{said}."


_CPU: dict[str, Any] = {
    "nodes": [1, 2, 3], "threads": 2, "price_usd_per_hour": 0.2, "device": "cpu",
    "links": ["ethernet-1g", "ethernet-10g"],
}  # fmt: skip
_SMOKE = {
    **_CPU, "data": "digits", "samples": 200, "test_samples": 50, "batch_per_rank": 20,
    "networks": {"small CNN": {"network": "small-cnn", "epochs": 3}},
}  # fmt: skip
_LAPTOP = {
    **_CPU, "data": "cifar10", "samples": 1920, "test_samples": 500, "batch_per_rank": 64,
    "networks": {
        "small CNN": {"network": "small-cnn", "epochs": 12},
        "EfficientNet-B0": {"network": "torchvision:efficientnet_b0", "epochs": 6},
        "ResNet-50": {"network": "torchvision:resnet50", "epochs": 6},
    },
}  # fmt: skip
_PAPER = {
    **_CPU, "data": "cifar10", "samples": None, "test_samples": None, "batch_per_rank": 128, "threads": 8,
    "networks": {
        "small CNN": {"network": "small-cnn", "epochs": 12},
        "EfficientNet-B0": {"network": "torchvision:efficientnet_b0", "epochs": 12},
        "ResNet-50": {"network": "torchvision:resnet50", "epochs": 12},
    },
}  # fmt: skip

STUDY = Study(
    name="cluster-profile",
    question="What does training on 1, 2 and 3 CPU nodes take in real, user and system time, and what do more nodes gain?",
    hypothesis="Epochs divided by the nodes divide the work, so the time should fall even where speed does not grow; user "
    "time is above real time by the threads that are at work",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)
