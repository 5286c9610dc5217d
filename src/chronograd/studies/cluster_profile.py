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

from chronograd.answer import Answer, Highlight, Section
from chronograd.data import datasets
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure, Lines, Role, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed, scaled
from chronograd.launch import jobs, slurm
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.launch.slurm.script import Options
from chronograd.measure import environment
from chronograd.predict.prediction import predict
from chronograd.rundir import RunDir, is_run_dir
from chronograd.study.arms import job_of
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import distinct, grouped, matching, plural
from chronograd.study.runner import StudyRunner, outcome
from chronograd.study.study import Study, listed, table
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
    cluster = {"device": "cpu", "count": nodes, "per_node": 1}
    cluster |= {key: settings[key] for key in ("threads", "price_usd_per_hour")}
    return job_of(
        settings, own["network"], parts={"cluster": cluster, "backend": "ddp"}, recipe="adadelta", epochs=own["epochs"],
        scale_by_ranks=["learning_rate", "epochs"], batch=settings["batch_per_rank"] * nodes, evaluate_every=own["epochs"],
    )  # fmt: skip


# -- conduct -------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """One run after the other: they are timed."""
    most = max(settings["nodes"])
    launcher = SLURM if slurm_commands.num_nodes() >= most else PROCESSES
    rows = []
    for name in settings["networks"]:
        for nodes in settings["nodes"]:
            run = _train(runner.path(f"{name}/nodes-{nodes}"), job(settings, name, nodes), launcher)
            by = SLURM if (run.path / slurm.NOTE).exists() else PROCESSES
            rate = run.record().value("throughput_samples_per_s")
            known = {"network": name, "nodes": nodes, "launcher": by}
            rows.append({**known, **_times(run), **outcome(run), "images_per_s": rate})
            runner.say(f"{f'{name}, {_nodes(nodes)}':<40} {seconds(rows[-1]['real_s'])}")
    notes = [f"the price of a node, {settings['price_usd_per_hour']} USD per hour, is an assumption"]
    if PROCESSES in distinct(rows, "launcher"):
        notes.append(f"there was no SLURM of {most} nodes: nodes are processes of this machine, started by torchrun")
    if SLURM in distinct(rows, "launcher"):
        notes.append(f"the nodes of SLURM may share a machine; the one that submitted has {environment.cores()} cores")
    found = {"runs": rows, "predicted": predictions(settings), "machine": [{"cores": environment.cores()}]}
    results = runner.results(settings, rows=found, notes=notes)
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
    total = {key: sum(one[key] for one in used) for key in ("user_s", "system_s")}
    return {"real_s": max(one["real_s"] for one in used), **total}


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
                known = {"network": name, "link": link, "nodes": nodes}
                values: Row = {
                    key: record.value(key) for key in ("step_time_s", "communication_exposed_s", "training_time_s")
                }
                values |= {"low_s": record["training_time_s"].low, "high_s": record["training_time_s"].high}
                rows.append({**known, **values, "images_per_s": record.value("throughput_samples_per_s")})
    return rows


# -- the page ------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows["runs"]
    made_of = (_time_section, _user_section, _predicted_section, _published_section)
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
    return STUDY.answer(results, [section(results) for section in made_of], highlights)


def _nodes(count: int) -> str:
    return plural(count, "node")


def _speedup(rows: Sequence[Row], network: str, key: str) -> float:
    """The most nodes over the least: of a rate, or of the inverse of a time."""
    own = sorted(matching(rows, network=network), key=lambda row: row["nodes"])
    least, most = (float(own[i][key]) for i in (0, -1))
    return most / least if key.endswith("_per_s") else least / most


def _time_section(results: Results) -> Section:
    rows, price = results.rows["runs"], results.settings["price_usd_per_hour"]
    outside = [1 - row["seconds"] / row["real_s"] for row in rows]
    series = []
    for (network, own), color in zip(grouped(rows, "network").items(), COLORS, strict=False):
        nodes = [float(row["nodes"]) for row in own]
        series.append(Series(network, "measured", nodes, [row["real_s"] for row in own], color=color, is_joined=True))
        ideal = [own[0]["real_s"] * own[0]["nodes"] / n for n in nodes]
        series.append(Series(f"{network}, divided by nodes", "reference", nodes, ideal, color=color))
    ticks = [float(n) for n in results.settings["nodes"]]
    return Section(
        "Does the time fall with nodes?",
        f"{time_takeaway(rows)} {percent(min(outside), 0)} to {percent(max(outside), 0)} of the real time is outside of steps.",
        intro="Real time is that of the slowest rank from its start to its end, user and system time are of all ranks. "
        "Epochs are divided by the ranks, and each rank has its share of the samples of an epoch. Outside of steps are start-up, "
        "evaluation and checkpoints.",
        figure=Figure([Lines("nodes", "real time, s", series, from_zero=True, x_ticks=ticks)]),
        table=table(rows, {
            "network": "network", "nodes": "nodes", "epochs": ("epochs", "{:.0f}".format),
            "updates": ("updates", "{:.0f}".format), "real": ("real_s", seconds), "user": ("user_s", seconds),
            "system": ("system_s", seconds), "in steps": ("seconds", seconds),
            "images": lambda row: si(row["images_per_s"], "/s"), "accuracy": ("accuracy", percent),
            "cost": lambda row: dollars(row["nodes"] * row["real_s"] / 3600 * price),
        }),
    )  # fmt: skip


def time_takeaway(rows: Sequence[Row]) -> str:
    """How much of the fall is less work, and how much is more speed.

    >>> one = {"network": "net", "nodes": 1, "real_s": 40.0, "seconds": 30.0, "epochs": 6.0, "images_per_s": 100.0}
    >>> three = one | {"nodes": 3, "real_s": 20.0, "seconds": 10.0, "epochs": 2.0, "images_per_s": 110.0}
    >>> time_takeaway([one, three])
    'From 1 to 3 nodes net takes 2.00 × less time, for 3.00 × fewer epochs at 1.10 × the images per second.'
    """
    changes = []
    for network in distinct(rows, "network"):
        fewer, factor, rate = (_speedup(rows, network, key) for key in ("epochs", "real_s", "images_per_s"))
        less = f"{factor:.2f} × less time" if factor >= 1 else f"{1 / factor:.2f} × more time"
        changes.append(f"{network} takes {less}, for {fewer:.2f} × fewer epochs at {rate:.2f} × the images per second")
    return f"From {rows[0]['nodes']} to {rows[-1]['nodes']} nodes {'; '.join(changes)}."


def _user_section(results: Results) -> Section:
    cores, threads = results.rows["machine"][0]["cores"], results.settings["threads"]
    rows = [
        {"run": f"{row['network']}, {_nodes(row['nodes'])}", "nodes": row["nodes"],
         **{part: row[f"{part}_s"] / row["real_s"] for part in ("user", "system")}}
        for row in results.rows["runs"]
    ]  # fmt: skip
    ratios = [row["user"] for row in rows]
    bars = [Bar(row["run"], "measured", {part: row[part] for part in ("user", "system")}) for row in rows]
    most = max(results.settings["nodes"])
    each = [row["user"] / most for row in matching(rows, nodes=most)]
    panel = Bars("time over real time: cores kept busy", "run", bars, {"user": "accent", "system": "vermilion"})
    return Section(
        "Why is user time above real time?",
        f"User time is summed over threads and ranks: over real time it is the number of cores kept busy, here "
        f"{min(ratios):.2f} to {max(ratios):.2f} of {cores}. {most} nodes ask for {most * threads} threads on "
        f"these {cores} cores, so a rank of theirs gets no more than {max(each):.2f} of a core.",
        intro=f"A rank has {threads} threads. The report measured {PUBLISHED_USER_OVER_REAL:g}: so many cores were "
        "busy on average. Above 1 it says that threads work side by side, not that time is lost; "
        "threads that wait by spinning count as work, too.",
        figure=Figure([panel]),
        table=table(rows, {
            "run": "run", "user / real": ("user", "{:.2f}".format), "system / real": ("system", "{:.2f}".format),
            "of one rank": lambda row: f"{row['user'] / row['nodes']:.2f}", "threads of a rank": lambda row: str(threads),
        }),
    )  # fmt: skip


def _predicted_section(results: Results) -> Section:
    rows, here = results.rows["predicted"], grouped(results.rows["runs"], "network")
    body, series = [], []

    def gains(own: Sequence[Row], label: str, role: Role, color: str) -> list[Row]:
        rates = [row["images_per_s"] / own[0]["images_per_s"] for row in own]
        series.append(Series(label, role, [float(row["nodes"]) for row in own], rates, color=color))
        return [{**row, "gain": gain} for row, gain in zip(own, rates, strict=True)]

    for (network, of_network), color in zip(grouped(rows, "network").items(), COLORS, strict=False):
        for i, (link, own) in enumerate(grouped(of_network, "link").items()):
            body += gains(own, f"{network}, {link}", "predicted", color)[i > 0 :]
        gains(here[network], f"{network}, here", "measured", color)
    ticks = [float(n) for n in results.settings["nodes"]]
    columns: dict[str, Any] = {
        "network": lambda row: f"{row['network']} (predicted)", "nodes": lambda row: str(row["nodes"]),
        "link": lambda row: row["link"] if row["nodes"] > 1 else "–", "step": ("step_time_s", seconds),
        "waiting for gradients": lambda row: percent(row["communication_exposed_s"] / row["step_time_s"]),
        "training": ("training_time_s", seconds),
        "80 % interval": lambda row: f"{seconds(row['low_s'])} … {seconds(row['high_s'])}",
        "images per second": ("gain", "{:.2f} ×".format),
    }  # fmt: skip
    return Section(
        "Where would a real cluster differ?",
        predicted_takeaway(rows, results.rows["runs"], max(results.settings["nodes"])),
        intro=f"Predicted, not measured: every node is {catalog.device(results.settings['device']).title} (from its data "
        "sheet), and links are those named. Start-up, evaluation and checkpoints are left out.",
        figure=Figure(
            [Lines("nodes", "images per second over those of 1 node", series, from_zero=True, x_ticks=ticks)]
        ),
        table=replace(table(body, columns), right={1, 3, 4, 5, 6, 7}),
    )


def predicted_takeaway(rows: Sequence[Row], measured: Sequence[Row], most: int) -> str:
    """Which link is enough for which network, and what one machine in place of many hides."""
    gains = []
    for network in distinct(rows, "network"):
        by_link = [
            f"{_speedup(matching(rows, link=link), network, 'images_per_s'):.2f} with {link}"
            for link in distinct(rows, "link")
        ]
        gains.append(f"{network} {', '.join(by_link)} (here {_speedup(measured, network, 'images_per_s'):.2f})")
    return f"On {most} nodes with cores of their own, images per second are predicted to be those of 1 node times: {'; '.join(gains)}."


def _published_section(results: Results) -> Section:
    rows, nodes = results.rows["runs"], results.settings["nodes"]
    times = {f"{network} (published)": [wall[n - 1] for n in nodes] for network, wall in PUBLISHED.items()}
    for network in distinct(rows, "network"):
        times[f"{network} (here)"] = [matching(rows, network=network, nodes=n)[0]["real_s"] for n in nodes]
    body = [[name, *map(seconds, t), *(f"{t[0] / later:.2f} ×" for later in t[1:])] for name, t in times.items()]
    columns = ["network", *map(_nodes, nodes), *(f"{n} over {nodes[0]}" for n in nodes[1:])]
    return Section(
        "Beside the report",
        published_takeaway(PUBLISHED),
        intro="Published: CPU nodes of an HPC cluster, Adadelta as above, wall times.",
        table=listed(columns, body),
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
_PAPER: dict[str, Any] = {
    **_CPU, "data": "cifar10", "samples": None, "test_samples": None, "batch_per_rank": 128, "threads": 8,
    "networks": {
        "small CNN": {"network": "small-cnn", "epochs": 12},
        "EfficientNet-B0": {"network": "torchvision:efficientnet_b0", "epochs": 12},
        "ResNet-50": {"network": "torchvision:resnet50", "epochs": 12},
    },
}  # fmt: skip
_LAPTOP = {
    **_CPU, "data": "cifar10", "samples": 1920, "test_samples": 500, "batch_per_rank": 64,
    "networks": {name: {**own, "epochs": 12 if name == "small CNN" else 6} for name, own in _PAPER["networks"].items()},
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
