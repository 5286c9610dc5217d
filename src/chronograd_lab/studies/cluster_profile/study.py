"""Cluster profile: real, user and system time of a run on 1, 2 and 3 nodes of a CPU cluster, and the reasons.

The setting is that of the Horovod examples for Keras. The rate of Adadelta is multiplied by the number of ranks, the epochs are
divided by it, and the batch of a rank does not change. Nodes are those of SLURM; if it is missing or too small, processes of
this machine stand in.

Published: wall times of three networks on CPU nodes of an HPC cluster, from a report. Predicted: the same trainings on nodes
with several GPUs each.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.backends import registry
from chronograd.data import datasets
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure, Lines, Role, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed, scaled
from chronograd.launch import jobs, slurm
from chronograd.launch.slurm import commands as slurm_commands
from chronograd.launch.slurm.script import Options
from chronograd.measure import environment
from chronograd.predict.carrying import Corrected
from chronograd.predict.prediction import predict
from chronograd.predict.relatives import CARRIED_EXPONENT
from chronograd.rundir import RunDir, is_run_dir
from chronograd.units import dollars, percent, seconds, si
from chronograd.words import how_many
from chronograd_lab.common.arms import job_of
from chronograd_lab.common.published_throughputs import base_row, factor_shown
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, ends, grouped, matching, plural
from chronograd_lab.common.runner import StudyRunner, outcome
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.written import Block, key
from chronograd_lab.studies.cluster_profile import system_calls

# Wall time on 1, 2, 3 CPU nodes in seconds.
PUBLISHED = {
    "small CNN": (451.5, 754.0, 462.1),
    "EfficientNet-B0": (474.1, 472.0, 473.4),
    "ResNet-50": (1015.1, 1009.6, 503.1),
}
# The report: user time is 150 % above real time, and system time is about as large as real time.
PUBLISHED_USER, PUBLISHED_SYSTEM = 2.5, 1.0
SLURM, PROCESSES = "SLURM", "torchrun"
BACKENDS = ("ddp", "horovod")
# SLURM starts a job after the earlier ones of the same name.
ONE_AFTER_THE_OTHER = ("--dependency=singleton", "--job-name=report")
_LOG_PREFIX = re.compile(r"^\[[^]]*\.cc:\d+\] ")
_KEY_LINE = re.compile(
    r"#SBATCH --(nodes|ntasks|cpus|dependency)|Using GLOO to perform CPU|global rendezvous started|Started Horovod|"
    r"\[0\]: (Horovod|Shutting)|\{.*(queued_s|user_s)"
)
LINK_COLORS = {"ethernet-1g": "orange", "ethernet-10g": "accent"}
DEVICE_COLORS = {"k80-gk210": "orange", "v100": "accent"}
# Publishers of the rows of one GPU, as the page names them. ResNet-50 in training, fp32, synthetic images of 224 x 224.
PUBLISHERS = {
    "k80-gk210": "TensorFlow's performance page, 2017", "v100": "NVIDIA DeepLearningExamples, ResNet-50 v1.5",
}  # fmt: skip
PUBLISHED_NETWORK = "torchvision:resnet50"


def job(settings: Settings, name: str, nodes: int, backend: str = "ddp") -> Job:
    """Return the job of one network on `nodes` nodes, with one rank each."""
    own = settings["networks"][name]
    cluster = {"device": "cpu", "count": nodes, "per_node": 1}
    cluster |= {name: settings[name] for name in ("threads", "price_usd_per_hour")}
    return job_of(
        settings, own["network"], parts={"cluster": cluster, "backend": backend}, recipe="adadelta", epochs=own["epochs"],
        scale_by_ranks=["learning_rate", "epochs"], batch=settings["batch_per_rank"] * nodes, evaluate_every=own["epochs"],
        **own.get("training", {}),
    )  # fmt: skip


# -- conduct -------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Run one job after the other, because they are timed."""
    most = max(settings["nodes"])
    launcher = SLURM if slurm_commands.num_nodes() >= most else PROCESSES
    rows = []
    for name in settings["networks"]:
        for nodes in settings["nodes"]:
            run = _train(runner.path(f"{name}/nodes-{nodes}"), job(settings, name, nodes), launcher)
            by = SLURM if (run.path / slurm.NOTE).exists() else PROCESSES
            rate = run.record().value("throughput_samples_per_s")
            known = {"network": name, "nodes": nodes, "launcher": by}
            rows.append({**known, **outcome(run), **_times(run), "images_per_s": rate})
            label = f"{name}, {plural(nodes, 'node')}"
            runner.say(f"{label:<40} {seconds(rows[-1]['real_s'])}")
    queued, log, missing = _queued(runner, settings) if launcher == SLURM else ([], [], ["SLURM has too few nodes"])
    notes = [
        *(f"Horovod on {how_many(most, 'nodes')} was not run: {reason}" for reason in missing),
        f"the price of a node, {settings['price_usd_per_hour']} USD per hour, is an assumption",
    ]
    if PROCESSES in distinct(rows, "launcher"):
        notes.append(
            f"there was no SLURM of {how_many(most, 'nodes')}: nodes are processes of this machine, started by torchrun"
        )
    if SLURM in distinct(rows, "launcher"):
        notes.append(f"the nodes of SLURM may share a machine; the one that submitted has {environment.cores()} cores")
    found = {"runs": rows, **predicted_rows(settings), "machine": [{"cores": environment.cores()}]}
    found |= {
        "queued": queued,
        "log": log,
        "system": system_shares(settings.get("system_share_s", 1.0)),
        "calls": call_rows(runner.path("calls"), settings),
    }
    results = runner.results(settings, rows=found, notes=notes)
    how = {"runs_at_a_time": 1, "threads_per_run": settings["threads"]}
    return replace(results, environment=results.environment | how)


def _queued(runner: StudyRunner, settings: Settings) -> tuple[list[Row], list[Row], list[str]]:
    """Submit the jobs of both backends at once, so that each waits in the queue for those before it. Return their rows, the key
    lines of the last run, and the reason if Horovod is not available.
    """
    is_there, reason = registry.load("horovod").available()
    if not is_there:
        return [], [], [reason]
    whole, waiting = {**settings, **settings["queued"]}, list[tuple[Row, RunDir]]()
    for name in whole["networks"]:
        for nodes in whole["nodes"]:
            for backend in BACKENDS:
                path = runner.path(f"queued/{name}/{backend}-{nodes}")
                known = {"network": name, "nodes": nodes, "backend": backend}
                waiting.append((known, _submitted(path, job(whole, name, nodes, backend))))
    rows = []
    for known, run in waiting:
        slurm.wait(run)
        rate = run.record().value("throughput_samples_per_s")
        rows.append({**known, "queued_s": slurm.queued_s(run), **outcome(run), **_times(run), "images_per_s": rate})
        runner.say(
            f"{known['network']}, {known['backend']}, {plural(known['nodes'], 'node')}: {seconds(rows[-1]['real_s'])}"
        )
    return rows, log_lines(waiting[-1][1]), []


def _submitted(path: Path, own: Job) -> RunDir:
    """Return the run of a job, submitted if it is not finished; it starts after the earlier ones of the same name."""
    if not is_run_dir(path):
        return slurm.launch(own, Options(extra=ONE_AFTER_THE_OTHER), out=path)
    run = RunDir.open(path)
    if not run.is_finished and slurm.state(run).is_over:
        slurm.submit(run, Options(extra=ONE_AFTER_THE_OTHER))
    return run


def log_lines(run: RunDir) -> list[Row]:
    """Return the lines of a run that show its nodes, Horovod's start and end, the queue and the times of the ranks."""
    files = [
        run.path / slurm.SCRIPT,
        run.output_path(0),
        run.path / "queue.jsonl",
        *sorted(run.path.glob("usage.*.jsonl")),
    ]
    lines = [(path.name, _LOG_PREFIX.sub("", line)) for path in files for line in path.read_text().splitlines()]
    return [{"file": name, "line": line} for name, line in lines if _KEY_LINE.match(line)]


def system_shares(of_s: float) -> list[Row]:
    """Measure which share of its CPU time a thread spends in the kernel: writing to memory, and polling for a message."""
    used = np.zeros(2**20)  # 8 MiB
    content = used.tobytes()
    waiting, other = socket.socketpair()
    poll = select.poll()
    poll.register(waiting, select.POLLIN)
    works: dict[str, Callable[[], object]] = {
        "write to memory in use": lambda: used.fill(1),
        "write to new memory": lambda: mmap.mmap(-1, len(content)).write(content),
        "poll a socket without waiting": lambda: poll.poll(0),
        "yield to other processes (sched_yield)": os.sched_yield,
    }
    with waiting, other:
        return [{"work": name, **_system_share(work, of_s)} for name, work in works.items()]


def _system_share(work: Callable[[], object], of_s: float) -> Row:
    """Repeat work for some seconds of CPU time. Return the share of system time, and the page faults per second of it."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    user_s = system_s = 0.0
    while user_s + system_s < of_s:
        for _ in range(100):
            work()
        after = resource.getrusage(resource.RUSAGE_SELF)
        user_s, system_s = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    cpu_s = user_s + system_s
    return {"system": system_s / cpu_s, "faults_per_s": (after.ru_minflt - before.ru_minflt) / cpu_s}


def call_rows(folder: Path, settings: Settings) -> list[Row]:
    """Return the calls with which two ranks of each backend wait, if the size asks for them."""
    if "calls" not in settings:
        return []
    whole = {**settings, **settings["calls"]}
    own = [
        changed(job(whole, name, 2, backend), ["cluster.per_node=2"])
        for name in whole["networks"]
        for backend in BACKENDS
    ]
    there = [one for one in own if registry.load(one.backend).available()[0]]
    return [row for one in there for row in system_calls.counted(one, folder / one.backend)]


def _train(path: Path, own: Job, launcher: str) -> RunDir:
    """Return the finished run in a directory; start or resume it if it is not finished."""
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
    """Return the real time of the slowest rank from its start to its end, and the user and system time of all ranks."""
    used = slurm.usage(run)
    total = {part: sum(one[part] for one in used) for part in ("user_s", "system_s")}
    return {"real_s": max(one["real_s"] for one in used), **total}


def predicted_rows(settings: Settings) -> dict[str, list[Row]]:
    return {
        "predicted": predictions(settings),
        "gpu_nodes": gpu_predictions(settings),
        "gpu_checks": gpu_checks(settings),
    }


def gpu_predictions(settings: Settings) -> list[Row]:
    """Predict the trainings of the report on nodes with several GPUs: every GPU is a rank, and epochs are divided by the
    ranks.
    """
    asked, rows = settings["gpu_nodes"], []
    corrections = {
        row["device"]: (row["published_s"] / row["predicted_s"]) ** CARRIED_EXPONENT for row in gpu_checks(settings)
    }
    for name, network in settings["networks"].items():
        whole = {**settings, **asked, "networks": {name: {**network, "epochs": asked["epochs"]}}}
        one = changed(job(whole, name, 1), ["cluster.threads=null", "cluster.price_usd_per_hour=null"])
        trace = trace_job(one)
        for device in asked["devices"]:
            factor = corrections.get(device) if one.network.name == PUBLISHED_NETWORK else None
            for nodes in settings["nodes"]:
                ranks = nodes * asked["per_node"]
                own = changed(
                    one, [f"cluster.device={device}", f"cluster.count={ranks}", f"cluster.per_node={asked['per_node']}"]
                )
                own = scaled(changed(own, [f"training.batch={asked['batch_per_rank'] * ranks}"]))
                record = predict(
                    trace, own, samples=datasets.card(own.data).train_size, shown=factor and Corrected(factor)
                )
                total = record["training_time_s"]
                rows.append({
                    "network": name, "device": device, "nodes": nodes, "gpus": ranks, "epochs": own.training.epochs,
                    "step_time_s": record.value("step_time_s"), "exposed_s": record.value("communication_exposed_s"),
                    "images_per_s": record.value("throughput_samples_per_s"), "training_time_s": total.value,
                    "low_s": total.low, "high_s": total.high, "link": catalog.device(device).node.inter_link,
                    "is_corrected": factor is not None,
                })  # fmt: skip
    return rows


def gpu_checks(settings: Settings) -> list[Row]:
    """Return published and predicted steps of one GPU, for devices with a published row."""
    rows = []
    for device in settings["gpu_nodes"]["devices"]:
        row = base_row(device, PUBLISHED_NETWORK)
        if row is not None and device in PUBLISHERS:
            batch, rate, source = row["batch_per_gpu"], row["images_per_s"], PUBLISHERS[device]
            times = {"published_s": batch / rate, "predicted_s": batch / rate / factor_shown(row)}
            rows.append({"device": device, "batch": batch, "images_per_s": rate, **times, "source": source})
    return rows


def predictions(settings: Settings) -> list[Row]:
    """Predict the same jobs on nodes of a device and links of the catalogue: a step, its communication, the training."""
    rows = []
    for name in settings["networks"]:
        trace = trace_job(job(settings, name, 1))
        for link in settings["links"]:
            for nodes in settings["nodes"]:
                own = scaled(changed(job(settings, name, nodes), [f"cluster.link={link}", "cluster.threads=null"]))
                own = changed(own, [f"cluster.device={settings['device']}"])
                record = predict(trace, own, samples=datasets.card(own.data).train_size)
                known: Row = {"network": name, "link": link, "nodes": nodes}
                times = ("step_time_s", "communication_exposed_s", "training_time_s")
                known |= {"low_s": record["training_time_s"].low, "high_s": record["training_time_s"].high}
                known |= {time: record.value(time) for time in times}
                rows.append({**known, "images_per_s": record.value("throughput_samples_per_s")})
    return rows


# -- page ----------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, most = results.rows["runs"], max(results.settings["nodes"])
    cores, threads = results.rows["machine"][0]["cores"], results.settings["threads"]
    busy = [_busy_cores(row) for row in rows]
    outside = [1 - row["seconds"] / row["real_s"] for row in rows]
    return {
        "published": {
            key(name): {"one_s": times[0], "two": times[1] / times[0], "three": times[2] / times[0], "difference": max(times) / min(times) - 1}
            for name, times in PUBLISHED.items()
        },
        "report": {
            "user": PUBLISHED_USER, "busy": PUBLISHED_USER + PUBLISHED_SYSTEM, "system_of_user": PUBLISHED_SYSTEM / PUBLISHED_USER,
        },
        "busy": {
            **ends(busy), "cores": cores, "threads": most * threads,
            "of_rank": max(_busy_cores(row) / most for row in matching(rows, nodes=most)),
        },
        "here": {
            key(name): {"time": 1 / _gain(own, "real_s"), "epochs": _gain(own, "epochs"), "rate": _gain(own, "images_per_s")}
            for name, own in grouped(rows, "network").items()
        },
        "outside": ends(outside),
        "system": {
            "of_real": ends([row["system_s"] / row["real_s"] for row in rows]),
            **{key(row["work"].partition(" (")[0]): row for row in results.rows["system"]},
        },
        "calls": {
            backend: {row["call"]: row["per_step"] for row in own}
            for backend, own in grouped(results.rows["calls"], "backend").items()
        },
        "queued": _queue_values(results.rows["queued"]),
        "longest": max(rows, key=lambda row: row["real_s"]),
        "gpu": {
            key(device): {**own[0], "gain": _gain(own, "images_per_s")}
            for device, own in grouped(matching(results.rows["gpu_nodes"], network="ResNet-50"), "device").items()
        },
        "checks": {
            key(row["device"]): {**row, "predicted": row["batch"] / row["predicted_s"]} for row in results.rows["gpu_checks"]
        },
        "links": {
            key(name): {key(link): _gain(own, "images_per_s") for link, own in grouped(of_network, "link").items()}
            for name, of_network in grouped(results.rows["predicted"], "network").items()
        },
    }  # fmt: skip


def _busy_cores(row: Row) -> float:
    """Return the mean number of busy cores: user and system time over real time."""
    return float((row["user_s"] + row["system_s"]) / row["real_s"])


def _queue_values(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the times of Horovod's runs by network, and the waits of all jobs in the queue."""
    if not rows:
        return {}
    own = {
        key(name): {
            "three": matching(of_network, nodes=3)[0], "one": matching(of_network, nodes=1)[0],
            "rate": _gain(of_network, "images_per_s"), "time": 1 / _gain(of_network, "real_s"),
        }
        for name, of_network in grouped(matching(rows, backend="horovod"), "network").items()
    }  # fmt: skip
    pairs = [of_pair for of_pair in grouped(rows, "network", "nodes").values() if len(of_pair) == len(BACKENDS)]
    ratios = [[one["user_s"] + one["system_s"] for one in of_pair] for of_pair in pairs]
    is_same = all(one["accuracy"] == other["accuracy"] for one, other in pairs)
    return {
        **own, "wait": ends([row["queued_s"] for row in rows]), "last": rows[-1], "jobs": len(rows), "is_same_accuracy": is_same,
        "cpu_ratio": ends([horovod / ddp for ddp, horovod in ratios]),
        "of_user": {
            backend: ends([row["system_s"] / row["user_s"] for row in of_backend if row["nodes"] > 1])
            for backend, of_backend in grouped(rows, "backend").items()
        },
    }  # fmt: skip


def _gain(rows: Sequence[Row], column: str) -> float:
    """Return the value of the most nodes over the fewest: of a rate, or of the inverse of a time or a number of epochs."""
    own = sorted(rows, key=lambda row: row["nodes"])
    least, most = (float(own[i][column]) for i in (0, -1))
    return most / least if column.endswith("_per_s") else least / most


def blocks(results: Results) -> dict[str, Block]:
    return {
        "Why does the published time not fall with nodes?": _published(results),
        "Why is user time above real time?": _busy(results),
        "Why can system time be as large as real time?": Block(_system(results.rows["system"])),
        "What would nodes with 4 GPUs each give?": _gpus(results),
        "Does the time fall here?": _here(results),
        **(
            {"Horovod on SLURM": _horovod(results.rows["queued"]), "What the log shows": _log(results)}
            if results.rows["queued"]
            else {}
        ),
        "Where would a real cluster differ?": _predicted(results),
    }


def _horovod(rows: Sequence[Row]) -> Block:
    """Return the jobs that were submitted at once: the time of each in the queue, and of its run."""
    columns: dict[str, Any] = {
        "network": "network", "nodes": "nodes", "backend": "backend", "epochs": ("epochs", "{:.0f}".format),
        "in the queue": ("queued_s", seconds), "real": ("real_s", seconds), "user": ("user_s", seconds),
        "system": ("system_s", seconds), "in steps": ("seconds", seconds),
        "images": lambda row: si(row["images_per_s"], "/s"), "accuracy": ("accuracy", percent),
    }  # fmt: skip
    bars = [
        Bar(f"{row['network']}, {row['backend']}, {plural(row['nodes'], 'node')}", "measured",
            {"in the queue": row["queued_s"] / 60, "run": row["real_s"] / 60})
        for row in rows
    ]  # fmt: skip
    figure = Figure(
        [Bars("minutes since all jobs were submitted", "job", bars, {"in the queue": "grey", "run": "accent"})]
    )
    return Block(replace(table(rows, columns), right={1, *range(3, 11)}), figure)


def _log(results: Results) -> Block:
    lines = table(results.rows["log"], {"file": "file", "line": "line"}, text=2)
    return Block(lines, values={"lines": len(lines.rows)})


def _system(rows: Sequence[Row]) -> Table:
    columns: dict[str, Any] = {
        "work of one thread": "work", "CPU time in the kernel": ("system", lambda share: percent(share, 0)),
        "page faults per second of CPU time": ("faults_per_s", "{:,.0f}".format),
    }  # fmt: skip
    return table(rows, columns)


def _here(results: Results) -> Block:
    rows, price = results.rows["runs"], results.settings["price_usd_per_hour"]
    panels = [
        _falling(network, [float(row["nodes"]) for row in own], [row["real_s"] / 60 for row in own], "here")
        for network, own in grouped(rows, "network").items()
    ]
    columns: dict[str, Any] = {
        "network": "network", "nodes": "nodes", "epochs": ("epochs", "{:.0f}".format),
        "updates": ("updates", "{:.0f}".format), "real": ("real_s", seconds), "user": ("user_s", seconds),
        "system": ("system_s", seconds), "in steps": ("seconds", seconds),
        "images": lambda row: si(row["images_per_s"], "/s"), "accuracy": ("accuracy", percent),
        "cost": lambda row: dollars(row["nodes"] * row["real_s"] / 3600 * price),
    }  # fmt: skip
    return Block(table(rows, columns), Figure(panels))


def _falling(title: str, nodes: Sequence[float], minutes: Sequence[float], label: str) -> Lines:
    """Return measured minutes against nodes, and the minutes if the work were divided by the nodes."""
    ideal = [minutes[0] * nodes[0] / n for n in nodes]
    series = [
        Series(label, "measured", nodes, minutes, color="accent", is_joined=True),
        Series("divided by nodes", "reference", nodes, ideal, color="grey"),
    ]
    return Lines("nodes", "real time, minutes", series, from_zero=True, x_ticks=nodes, title=title)


def _busy(results: Results) -> Block:
    rows = [
        {"run": f"{row['network']}, {plural(row['nodes'], 'node')}", "nodes": row["nodes"],
         "busy": _busy_cores(row), **{part: row[f"{part}_s"] / row["real_s"] for part in ("user", "system")}}
        for row in results.rows["runs"]
    ]  # fmt: skip
    bars = [Bar(row["run"], "measured", {part: row[part] for part in ("user", "system")}) for row in rows]
    colors = {"user": "accent", "system": "vermilion"}
    return Block(
        table(rows, {
            "run": "run", "user / real": ("user", "{:.2f}".format), "system / real": ("system", "{:.2f}".format),
            "busy cores": ("busy", "{:.2f}".format), "of one rank": lambda row: f"{row['busy'] / row['nodes']:.2f}",
            "threads of a rank": lambda row: str(results.settings["threads"]),
        }),
        Figure([Bars("time over real time: busy cores", "run", bars, colors)]),
    )  # fmt: skip


def _gpus(results: Results) -> Block:
    """Return the predicted trainings of the report on nodes with several GPUs each."""
    rows, ticks = results.rows["gpu_nodes"], [float(n) for n in results.settings["nodes"]]
    panels = []
    for network, own in grouped(rows, "network").items():
        series = [
            Series(device, "predicted", [float(row["nodes"]) for row in of_device], [row["training_time_s"] for row in of_device],
                   [row["low_s"] for row in of_device], [row["high_s"] for row in of_device], DEVICE_COLORS.get(device, ""))
            for device, of_device in grouped(own, "device").items()
        ]  # fmt: skip
        panels.append(Lines("nodes", "training, s", series, from_zero=True, x_ticks=ticks, title=network))
    columns: dict[str, Any] = {
        "network": "network", "device": "device", "nodes": "nodes", "GPUs": "gpus", "epochs": "epochs", "step": ("step_time_s", seconds),
        "waiting for gradients": lambda row: percent(row["exposed_s"] / row["step_time_s"], 0),
        "images": lambda row: si(row["images_per_s"], "/s"), "training": ("training_time_s", seconds), "80 % interval": _interval,
    }  # fmt: skip
    return Block(table(rows, columns, text=2), Figure(panels))


def _interval(row: Row) -> str:
    return f"{seconds(row['low_s'])} … {seconds(row['high_s'])}"


def _predicted(results: Results) -> Block:
    """Return images per second over those of one node: by link, and here.

    One node has no link, so the row of the first link stands for it.
    """
    here, ticks = grouped(results.rows["runs"], "network"), [float(n) for n in results.settings["nodes"]]
    body, panels = [], []
    for network, of_network in grouped(results.rows["predicted"], "network").items():
        drawn = []
        for i, (link, own) in enumerate(grouped(of_network, "link").items()):
            body += [{**row, "gain": _gain([own[0], row], "images_per_s")} for row in own[i > 0 :]]
            drawn.append(_gains(own, link, "predicted", LINK_COLORS.get(link, "")))
        drawn.append(_gains(here[network], "here", "measured", "grey"))
        label = "images per second over those of 1 node"
        panels.append(Lines("nodes", label, drawn, from_zero=True, x_ticks=ticks, title=network))
    columns: dict[str, Any] = {
        "network": lambda row: f"{row['network']} (predicted)", "nodes": "nodes",
        "link": lambda row: row["link"] if row["nodes"] > 1 else "–", "step": ("step_time_s", seconds),
        "waiting for gradients": lambda row: percent(row["communication_exposed_s"] / row["step_time_s"]),
        "training": ("training_time_s", seconds), "80 % interval": _interval, "images per second": ("gain", "{:.2f} ×".format),
    }  # fmt: skip
    return Block(replace(table(body, columns), right={1, 3, 4, 5, 6, 7}), Figure(panels))


def _gains(own: Sequence[Row], label: str, role: Role, color: str) -> Series:
    rates = [row["images_per_s"] / own[0]["images_per_s"] for row in own]
    return Series(label, role, [float(row["nodes"]) for row in own], rates, color=color, is_joined=role == "measured")


def _published(results: Results) -> Block:
    rows, nodes = results.rows["runs"], results.settings["nodes"]
    times = {f"{network} (published)": [wall[n - 1] for n in nodes] for network, wall in PUBLISHED.items()}
    for network, own in grouped(rows, "network").items():
        times[f"{network} (here)"] = [row["real_s"] for row in own]
    body = [[name, *map(seconds, t), *(f"{later / t[0]:.2f} ×" for later in t[1:])] for name, t in times.items()]
    columns = ["network", *(plural(n, "node") for n in nodes), *(f"{n} over {nodes[0]}" for n in nodes[1:])]
    panels = [_falling(name, [1.0, 2.0, 3.0], [t / 60 for t in wall], "published") for name, wall in PUBLISHED.items()]
    return Block(listed(columns, body), Figure(panels))


_CPU: dict[str, Any] = {
    "nodes": [1, 2, 3], "threads": 2, "price_usd_per_hour": 0.2, "device": "cpu",
    "links": ["ethernet-1g", "ethernet-10g"],
    "gpu_nodes": {
        "devices": ["k80-gk210", "v100"], "per_node": 4, "batch_per_rank": 128, "epochs": 12, "data": "cifar10", "samples": None, "test_samples": None,
    },
}  # fmt: skip
_SMOKE = {
    **_CPU, "data": "digits", "samples": 200, "test_samples": 50, "batch_per_rank": 20,
    "system_share_s": 0.1, "networks": {"small CNN": {"network": "small-cnn", "epochs": 3}},
    "queued": {"nodes": [3], "networks": {"small CNN": {"network": "small-cnn", "epochs": 3}}},
}  # fmt: skip
_PAPER: dict[str, Any] = {
    **_CPU, "data": "cifar10", "samples": None, "test_samples": None, "batch_per_rank": 128, "threads": 8,
    "networks": {
        "small CNN": {"network": "small-cnn", "epochs": 12},
        "EfficientNet-B0": {"network": "torchvision:efficientnet_b0", "epochs": 12},
        "ResNet-50": {"network": "torchvision:resnet50", "epochs": 12},
    },
}  # fmt: skip
# The head of a frozen trunk, as in the report. Random flips keep the trunk from running only once.
_FROZEN = {"epochs": 3, "training": {"trainable": "head", "augmentation": {"flip": True}}}
_QUEUED = {name: own if name == "small CNN" else {**own, **_FROZEN} for name, own in _PAPER["networks"].items()}
_PAPER["queued"] = {"networks": _QUEUED}
_CALLS = {
    "data": "digits", "samples": None, "test_samples": None, "batch_per_rank": 32, "threads": 1,
    "networks": {"small CNN": {"network": "small-cnn", "epochs": 60}},
}  # fmt: skip
_PAPER["calls"] = _CALLS
_LAPTOP = {
    **_CPU, "data": "cifar10", "samples": 1920, "test_samples": 500, "batch_per_rank": 64,
    "networks": {name: {**own, "epochs": 12 if name == "small CNN" else 6} for name, own in _PAPER["networks"].items()},
    "queued": {"samples": 960, "networks": _QUEUED}, "calls": _CALLS,
}  # fmt: skip

STUDY = Study(
    name="cluster-profile",
    question="What does training on 1, 2 and 3 CPU nodes take in real, user and system time, and what do more nodes gain?",
    hypothesis="Dividing the epochs by the nodes divides the work, so the time falls even if the speed does not grow. User time "
    "exceeds real time because several threads work",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
    predictions=lambda results: predicted_rows(results.settings),
)
