"""Cluster profile: what a run on 1, 2 and 3 nodes of a CPU cluster takes in real, user and system time, and why.

The way of the Horovod examples for Keras: Adadelta, its rate times the number of ranks, the epochs divided by it, the batch
of a rank kept. Nodes are those of SLURM; where there is none, or too small a one, processes of this machine stand in.

Published: wall times of three networks on CPU nodes of an HPC cluster, from a report. Predicted: the same trainings on nodes with
several GPUs each.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from chronograd.answer import Answer, Highlight, Section
from chronograd.data import datasets
from chronograd.data.trace_job import trace_job
from chronograd.figure import Bar, Bars, Figure, Lines, Role, Series
from chronograd.hardware import catalog
from chronograd.job import Job, changed, from_dict, scaled
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
from chronograd_lab.common.published_throughputs import base_row
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, plural
from chronograd_lab.common.runner import StudyRunner, outcome
from chronograd_lab.common.study import Study, listed, table

# Wall time on 1, 2, 3 CPU nodes, in seconds, and how far user time was above real time.
PUBLISHED = {
    "small CNN": (451.5, 754.0, 462.1),
    "EfficientNet-B0": (474.1, 472.0, 473.4),
    "ResNet-50": (1015.1, 1009.6, 503.1),
}
PUBLISHED_USER_OVER_REAL = 2.5  # 150 % above
SLURM, PROCESSES = "SLURM", "torchrun"
LINK_COLORS = {"ethernet-1g": "orange", "ethernet-10g": "accent"}
DEVICE_COLORS = {"k80-gk210": "orange", "v100": "accent"}
# Who published a row of one GPU, as the page names them; ResNet-50 in training, fp32, synthetic images of 224 x 224.
PUBLISHERS = {
    "k80-gk210": "TensorFlow's performance page, 2017", "v100": "NVIDIA DeepLearningExamples, ResNet-50 v1.5",
}  # fmt: skip
PUBLISHED_NETWORK = "torchvision:resnet50"


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
        notes.append(
            f"there was no SLURM of {how_many(most, 'nodes')}: nodes are processes of this machine, started by torchrun"
        )
    if SLURM in distinct(rows, "launcher"):
        notes.append(f"the nodes of SLURM may share a machine; the one that submitted has {environment.cores()} cores")
    found = {"runs": rows, **predicted_rows(settings), "machine": [{"cores": environment.cores()}]}
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


def predicted_rows(settings: Settings) -> dict[str, list[Row]]:
    return {
        "predicted": predictions(settings),
        "gpu_nodes": gpu_predictions(settings),
        "gpu_checks": gpu_checks(settings),
    }


def gpu_predictions(settings: Settings) -> list[Row]:
    """The trainings of the report on nodes with several GPUs each: every GPU is a rank, and epochs are divided by the ranks."""
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
    """Steps of one GPU as published and as predicted, of the devices that have such a row."""
    rows = []
    for device in settings["gpu_nodes"]["devices"]:
        row = base_row(device, PUBLISHED_NETWORK)
        if row is not None and device in PUBLISHERS:
            batch, rate, source = row["batch_per_gpu"], row["images_per_s"], PUBLISHERS[device]
            own = from_dict({
                "network": {"name": PUBLISHED_NETWORK}, "training": {"recipe": "sgd-momentum", "batch": batch},
                "data": {"name": "synthetic", "shape": [3, 224, 224], "classes": 1000}, "cluster": {"device": device},
            })  # fmt: skip
            predicted_s = predict(trace_job(own), own).value("step_time_s")
            rows.append(
                {
                    "device": device,
                    "batch": batch,
                    "images_per_s": rate,
                    "published_s": batch / rate,
                    "predicted_s": predicted_s,
                    "source": source,
                }
            )
    return rows


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
    rows, most = results.rows["runs"], max(results.settings["nodes"])
    published, user, gpus, here = (
        made_of(results) for made_of in (_published_section, _user_section, _gpu_section, _time_section)
    )
    slowest = max(rows, key=lambda row: row["real_s"])
    fastest = max(distinct(rows, "network"), key=lambda n: _speedup(rows, n, "images_per_s"))
    highlights = [
        Highlight("cores kept busy in the report, user over real", f"{PUBLISHED_USER_OVER_REAL:g}"),
        Highlight(
            "longest run here", seconds(slowest["real_s"]), f"{slowest['network']} on {_nodes(slowest['nodes'])}"
        ),
        Highlight(
            f"images per second, {how_many(most, 'nodes')} over 1",
            f"{_speedup(rows, fastest, 'images_per_s'):.2f} ×",
            f"{fastest}; all nodes share {how_many(results.rows['machine'][0]['cores'], 'cores')}",
        ),
    ]
    answer = STUDY.answer(results, [published, user, gpus, here, _predicted_section(results)], highlights)
    return replace(answer, summary=[section.takeaway for section in (published, user, gpus)])


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
    panels = []
    for network, own in grouped(rows, "network").items():
        nodes, real = [float(row["nodes"]) for row in own], [row["real_s"] / 60 for row in own]
        panels.append(_falling(network, nodes, real, "here"))
    return Section(
        "Does the time fall here?",
        f"{time_takeaway(rows)} {percent(min(outside), 0)} to {percent(max(outside), 0)} of the real time is outside of steps.",
        intro="Real time is that of the slowest rank from its start to its end, user and system time are of all ranks. "
        "Epochs are divided by the ranks, and each rank has its share of the samples of an epoch. Outside of steps are start-up, "
        f"evaluation and checkpoints. Cost is by an assumed {dollars(price)} a node and hour, which no provider's price list has.",
        figure=Figure(panels),
        table=table(rows, {
            "network": "network", "nodes": "nodes", "epochs": ("epochs", "{:.0f}".format),
            "updates": ("updates", "{:.0f}".format), "real": ("real_s", seconds), "user": ("user_s", seconds),
            "system": ("system_s", seconds), "in steps": ("seconds", seconds),
            "images": lambda row: si(row["images_per_s"], "/s"), "accuracy": ("accuracy", percent),
            "cost": lambda row: dollars(row["nodes"] * row["real_s"] / 3600 * price),
        }),
    )  # fmt: skip


def _falling(title: str, nodes: Sequence[float], minutes: Sequence[float], label: str) -> Lines:
    """Measured minutes against nodes, and what they would be if the work were divided by them."""
    ideal = [minutes[0] * nodes[0] / n for n in nodes]
    series = [
        Series(label, "measured", nodes, minutes, color="accent", is_joined=True),
        Series("divided by nodes", "reference", nodes, ideal, color="grey"),
    ]
    return Lines("nodes", "real time, minutes", series, from_zero=True, x_ticks=nodes, title=title)


def time_takeaway(rows: Sequence[Row]) -> str:
    """How much of the fall is less work, and how much is more speed.

    >>> one = {"network": "net", "nodes": 1, "real_s": 40.0, "seconds": 30.0, "epochs": 6.0, "images_per_s": 100.0}
    >>> three = one | {"nodes": 3, "real_s": 20.0, "seconds": 10.0, "epochs": 2.0, "images_per_s": 110.0}
    >>> time_takeaway([one, three])
    'From 1 to 3 nodes net takes 0.50 times the time, with the epochs divided by 3 and 1.10 times the images per second.'
    """
    changes = []
    for network in distinct(rows, "network"):
        fewer, factor, rate = (_speedup(rows, network, key) for key in ("epochs", "real_s", "images_per_s"))
        changes.append(
            f"{network} takes {1 / factor:.2f} times the time, with the epochs divided by {fewer:g} and {rate:.2f} times the images per second"
        )
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
        f"User time is summed over the cores of all threads and ranks, so {PUBLISHED_USER_OVER_REAL:g} times real time says that "
        f"{PUBLISHED_USER_OVER_REAL:g} cores were busy on average: convolutions run on several threads at once. Here it is "
        f"{min(ratios):.2f} to {max(ratios):.2f} of {cores}: {most} nodes ask for {most * threads} threads on "
        f"these {how_many(cores, 'cores')}, so a rank of theirs gets no more than {max(each):.2f} of a core.",
        intro=f"A rank has {how_many(threads, 'threads')}. Above 1, user over real says that threads work side by side, not that time is lost; "
        "threads that wait by spinning count as work, too. How many cores a node of the report has is not told, so whether 2.5 is much "
        "of them is not known.",
        figure=Figure([panel]),
        table=table(rows, {
            "run": "run", "user / real": ("user", "{:.2f}".format), "system / real": ("system", "{:.2f}".format),
            "of one rank": lambda row: f"{row['user'] / row['nodes']:.2f}", "threads of a rank": lambda row: str(threads),
        }),
    )  # fmt: skip


def _gpu_section(results: Results) -> Section:
    """The trainings of the report on nodes with several GPUs each."""
    rows, asked = results.rows["gpu_nodes"], results.settings["gpu_nodes"]
    panels = []
    for network, own in grouped(rows, "network").items():
        series = [
            Series(device, "predicted", [float(row["nodes"]) for row in of_device], [row["training_time_s"] for row in of_device],
                   [row["low_s"] for row in of_device], [row["high_s"] for row in of_device], DEVICE_COLORS.get(device, ""))
            for device, of_device in grouped(own, "device").items()
        ]  # fmt: skip
        ticks = [float(n) for n in results.settings["nodes"]]
        panels.append(Lines("nodes", "training, s", series, from_zero=True, x_ticks=ticks, title=network))
    checks = [
        f"{catalog.device(row['device']).title}: {row['images_per_s']:g} images/s published at batch {row['batch']} ({row['source']}), "
        f"{row['batch'] / row['predicted_s']:.3g} predicted"
        for row in results.rows["gpu_checks"]
    ]
    return Section(
        f"What would nodes with {how_many(asked['per_node'], 'GPUs')} each give?",
        gpu_takeaway(rows, asked["per_node"]),
        intro=f"Predicted, not measured: 50,000 images of 32 × 32, {asked['epochs']} epochs divided by the GPUs and rounded up, {how_many(asked['batch_per_rank'], 'images')} of a GPU, all "
        "weights trained, a ring between nodes over the link that the device usually has. The report trained a head on frozen "
        "trunks first, which is less work. Start-up, loading and evaluation are left out: with GPUs they are most of what "
        "remains. ResNet-50 is corrected, as far as images of another size allow, by what was published of one GPU at 224 × 224.",
        lines=[f"{'; '.join(checks)}."] if checks else [],
        figure=Figure(panels),
        table=table(rows, {
            "network": "network", "device": "device", "nodes": "nodes", "GPUs": "gpus", "epochs": "epochs", "step": ("step_time_s", seconds),
            "waiting for gradients": lambda row: percent(row["exposed_s"] / row["step_time_s"], 0),
            "images": lambda row: si(row["images_per_s"], "/s"), "training": ("training_time_s", seconds),
            "80 % interval": lambda row: f"{seconds(row['low_s'])} … {seconds(row['high_s'])}",
        }, text=2),
    )  # fmt: skip


def gpu_takeaway(rows: Sequence[Row], per_node: int) -> str:
    """What one such node gives each network, and what more nodes add.

    >>> one = {"network": "ResNet-50", "device": "v100", "nodes": 1, "training_time_s": 7.0, "images_per_s": 100.0, "link": "ethernet-25g"}
    >>> gpu_takeaway([one, one | {"nodes": 3, "training_time_s": 2.0, "images_per_s": 110.0}], 4)
    'One node with 4 GPUs would train ResNet-50 in 7 s with v100 (report: 16 min 55 s on a CPU node). Of 3 such nodes the images per second are 1.10 times those of one with v100 (ethernet-25g); the time falls as epochs are divided by the GPUs.'
    """
    last = [network for network in distinct(rows, "network") if network in PUBLISHED][-1:] or distinct(rows, "network")[
        -1:
    ]
    (network,) = last
    own = matching(rows, network=network)
    least, most = min(row["nodes"] for row in own), max(row["nodes"] for row in own)
    first = " and ".join(
        f"{seconds(row['training_time_s'])} with {row['device']}" for row in matching(own, nodes=least)
    )
    gains = []
    for row in matching(own, nodes=most):
        (one,) = matching(own, nodes=least, device=row["device"])
        gains.append(
            f"{row['images_per_s'] / one['images_per_s']:.2f} times those of one with {row['device']} ({row['link']})"
        )
    report = f" (report: {seconds(PUBLISHED[network][0])} on a CPU node)" if network in PUBLISHED else ""
    return (
        f"One node with {per_node} GPUs would train {network} in {first}{report}. Of {most} such nodes the images per second are "
        f"{' and '.join(gains)}; the time falls as epochs are divided by the GPUs."
    )


def _predicted_section(results: Results) -> Section:
    rows, here = results.rows["predicted"], grouped(results.rows["runs"], "network")
    body, panels = [], []
    ticks = [float(n) for n in results.settings["nodes"]]

    def gains(own: Sequence[Row], label: str, role: Role, color: str) -> tuple[list[Row], Series]:
        rates = [row["images_per_s"] / own[0]["images_per_s"] for row in own]
        series = Series(
            label, role, [float(row["nodes"]) for row in own], rates, color=color, is_joined=role == "measured"
        )
        return [{**row, "gain": gain} for row, gain in zip(own, rates, strict=True)], series

    for network, of_network in grouped(rows, "network").items():
        drawn = []
        for i, (link, own) in enumerate(grouped(of_network, "link").items()):
            of_link, series = gains(own, link, "predicted", LINK_COLORS.get(link, ""))
            body += of_link[i > 0 :]
            drawn.append(series)
        drawn.append(gains(here[network], "here", "measured", "grey")[1])
        label = "images per second over those of 1 node"
        panels.append(Lines("nodes", label, drawn, from_zero=True, x_ticks=ticks, title=network))
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
        intro=f'Predicted, not measured: every node has the CPU "{catalog.device(results.settings["device"]).title}" of the '
        "catalogue, and links are those named. Start-up, evaluation and checkpoints are left out.",
        figure=Figure(panels),
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
    return f"On {how_many(most, 'nodes')} with cores of their own, images per second are predicted to be those of 1 node times: {'; '.join(gains)}."


def _published_section(results: Results) -> Section:
    rows, nodes = results.rows["runs"], results.settings["nodes"]
    times = {f"{network} (published)": [wall[n - 1] for n in nodes] for network, wall in PUBLISHED.items()}
    for network in distinct(rows, "network"):
        times[f"{network} (here)"] = [matching(rows, network=network, nodes=n)[0]["real_s"] for n in nodes]
    body = [[name, *map(seconds, t), *(f"{later / t[0]:.2f} ×" for later in t[1:])] for name, t in times.items()]
    columns = ["network", *map(_nodes, nodes), *(f"{n} over {nodes[0]}" for n in nodes[1:])]
    panels = [_falling(name, [1.0, 2.0, 3.0], [t / 60 for t in wall], "published") for name, wall in PUBLISHED.items()]
    return Section(
        "Why does the published time not fall with nodes?",
        published_takeaway(PUBLISHED),
        intro="Published: CPU nodes of an HPC cluster, Adadelta as above, wall times, one run each.",
        lines=[
            "A slow link or waiting for gradients does not explain equal times: both grow with nodes. A node that was slow or shared, "
            "or start-up, explains one run that took longer, such as the small CNN's on 2 nodes.",
            "With one run of each, no difference is told from chance; epochs and samples of each node, and a second run, would tell "
            "these causes apart.",
        ],
        figure=Figure(panels),
        table=listed(columns, body),
    )


def published_takeaway(published: Mapping[str, Sequence[float]]) -> str:
    """What the most equal of the published times say, and how those of the others go with nodes.

    >>> published_takeaway({"a": (100.0, 101.0, 99.0), "b": (90.0, 60.0, 30.0)})
    'Times that stay, as those of a (within 2.0 %), are what is seen where every node does the whole work: divided among 1, 2 and 3 nodes it would take 1.00, 0.50 and 0.33 of the time. Of the time of one node b takes 1.00, 0.67 and 0.33. Times fall with every node for b only.'
    """
    apart = {name: max(times) / min(times) - 1 for name, times in published.items()}
    equal = min(apart, key=lambda name: apart[name])
    counts = range(1, len(published[equal]) + 1)
    others = [
        f"{name} takes {_listed(t / times[0] for t in times)}" for name, times in published.items() if name != equal
    ]
    falls = [n for n, t in published.items() if all(later < earlier for earlier, later in pairwise(t))]
    return (
        f"Times that stay, as those of {equal} (within {percent(apart[equal])}), are what is seen where every node does the whole "
        f"work: divided among {', '.join(map(str, counts[:-1]))} and {counts[-1]} nodes it would take {_listed(1 / n for n in counts)} of the "
        f"time. Of the time of one node {', '.join(others)}. Times fall with every node for {f'{_and(falls)} only' if falls else 'none'}."
    )


def _listed(ratios: Iterable[float]) -> str:
    return _and([f"{ratio:.2f}" for ratio in ratios])


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


_CPU: dict[str, Any] = {
    "nodes": [1, 2, 3], "threads": 2, "price_usd_per_hour": 0.2, "device": "cpu",
    "links": ["ethernet-1g", "ethernet-10g"],
    "gpu_nodes": {
        "devices": ["k80-gk210", "v100"], "per_node": 4, "batch_per_rank": 128, "epochs": 12, "data": "cifar10", "samples": None, "test_samples": None,
    },
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
    computed=page,
)
