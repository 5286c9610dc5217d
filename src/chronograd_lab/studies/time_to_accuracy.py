"""Time to accuracy against the number of workers: with parameter servers, and with an all-reduce.

ResNet-50's epochs to 92 % on CIFAR-10 are those that `depth-and-device` predicts; Optimus' coefficients make times of them.
Y. Peng et al., Optimus, EuroSys 2018. Time is steps to the target over steps per second; both have their spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.backends import parameter_server
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, changed
from chronograd.predict.speed import OPTIMUS_RESNET50, SpeedModel
from chronograd.units import seconds
from chronograd.words import first_sentence, how_many
from chronograd_lab.common.arms import job_of
from chronograd_lab.common.optimus_chain import RESNET50_EPOCHS_TO_92, RESNET50_REAL_EPOCHS_TO_92
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, plural, shown
from chronograd_lab.common.runner import StudyRunner, curve
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.time_forecasts import (
    ALL_REDUCE,
    ASYNCHRONOUS,
    SINGLE,
    STRONG,
    WEAK,
    forecasts,
    mean,
    of_optimus,
    on_device,
    reached,
    series_of,
)

BACKENDS = {SINGLE: "single", ASYNCHRONOUS: "parameter_server", ALL_REDUCE: "ddp"}
COLORS = {"1 server": "purple", "2 servers": "accent", "4 servers": "teal", ALL_REDUCE: "orange"}


# -- what is run -----------------------------------------------------------------------------------


def job(settings: Settings, method: str, workers: int = 1, servers: int = 1) -> Job:
    """Until the target accuracy. Ranks of an all-reduce share a minibatch out, a worker of parameter servers has its own."""
    parts = {
        "cluster": {"device": "cpu", "count": workers, "threads": 1}, "communication": {"servers": servers},
        "backend": BACKENDS[method],
    }  # fmt: skip
    target = settings["target_accuracy"]
    return job_of(settings, settings["network"], parts=parts, recipe="sgd-momentum", target_accuracy=target)


def experiments(settings: Settings) -> dict[str, Job]:
    """By name, such as `asynchronous, 3 workers, 1 server`."""
    found = {
        f"{SINGLE}, seed {seed}": changed(job(settings, SINGLE), [f"training.seed={seed}"])
        for seed in range(settings["seeds"])
    }
    found |= {
        f"{ALL_REDUCE}, {how_many(ranks, 'ranks')}": job(settings, ALL_REDUCE, ranks) for ranks in settings["ranks"]
    }
    for workers, servers in settings["pairs"]:
        name = f"{ASYNCHRONOUS}, {plural(workers, 'worker')}, {series_of(servers)}"
        found[name] = job(settings, ASYNCHRONOUS, workers, servers)
    return found


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine to itself, and a rank one core
    is_there, why_not = parameter_server.available()
    jobs = {n: one for n, one in experiments(settings).items() if is_there or one.backend != BACKENDS[ASYNCHRONOUS]}
    notes = [] if is_there else [f"Nothing ran on parameter servers: {why_not}."]
    runs, curves = [], {}
    for name, run in runner.train(jobs).items():
        record, one = run.record(), run.job()
        curves[name] = curve(record)
        epochs, spent = reached(curves[name], settings["target_accuracy"])
        servers = one.communication.servers if name.startswith(ASYNCHRONOUS) else None
        runs.append({
            "run": name, "method": name.split(",")[0], "workers": one.cluster.count, "servers": servers,
            "steps_per_s": 1 / record.value("step_time_s"), "staleness": record["staleness"].value, "epochs": epochs,
            "time_s": spent, "accuracy": record.value("test_accuracy"),
        })  # fmt: skip
    rows = {
        "runs": runs,
        **of_optimus(settings["optimus"]),
        **on_device(settings["device"]),
        **forecasts(runs, settings),
    }
    return runner.results(settings, rows=rows, curves=curves, notes=notes)


# -- what is said ----------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows
    sections = [_workers_section(results), _optimus_section(results)]
    answers = [section.takeaway for section in sections]
    if rows["points"]:
        sections += [_speed_section(rows), _time_section(results), _forecast_section(results)]
        answers.append(f"Of small runs on this machine: {first_sentence(sections[3].takeaway)[0].lower()}.")
    sections += [_device_section(results), _optimus_speeds(rows)]
    return replace(STUDY.answer(results, sections, _highlights(rows)), summary=answers)


def _band(label: str, rows: Sequence[Row], scale: float = 1.0, keys: Sequence[str] = ("time_s", "low", "high"),
          color: str = "") -> Series:  # fmt: skip
    y, low, high = ([float(f"{row[key] / scale:.6g}") for row in rows] for key in keys)
    return Series(label, "predicted", [row["workers"] for row in rows], y, low, high, color or COLORS.get(label, ""))


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: row["time_s"])


def _told(row: Row) -> str:
    return f"{seconds(row['time_s'])} ({seconds(row['low'])} … {seconds(row['high'])})"


def _with(series: str) -> str:
    return f"{'by' if series == ALL_REDUCE else 'on'} {series}"


def _exact(exact: float | None) -> str:
    return shown(exact, "{:.2f}".format, "more are always faster")


def _workers_section(results: Results) -> Section:
    """The two curves: time to the accuracy against workers, on each number of servers."""
    asked = results.settings["optimus"]
    epochs, low, high = asked["epochs"]
    real, batch = mean(asked["real_epochs"]), asked["reference_batch"]
    rows = [row for row in matching(results.rows["optimus"], batch=batch) if row["series"] != ALL_REDUCE]
    by_series, ticks = grouped(rows, "series"), [1, *range(2, asked["workers"] + 1, 2)]
    panels = []
    for title, key in (
        (f"{epochs:.1f} epochs, as predicted", "time_s"),
        (f"{real:.1f} epochs, as real runs took", "real_time_s"),
    ):
        series = [_band(name, own, 86400, (key, key, key)) for name, own in by_series.items()]
        plain = [replace(one, low=(), high=()) for one in series]
        panels.append(Lines("workers", "time to 92 %, days", plain, from_zero=True, x_ticks=ticks, title=title))
    best = {name: _fastest(own) for name, own in by_series.items()}
    told = " and ".join(
        f"{seconds(row['time_s'])} with {how_many(row['workers'], 'workers')} on {name}" for name, row in best.items()
    )
    most = {name: max(own, key=lambda row: row["workers"]) for name, own in by_series.items()}
    slower = " and ".join(
        f"{most[name]['time_s'] / best[name]['time_s']:.2f} times as long on {name}" for name in by_series
    )
    again = " and ".join(seconds(row["real_time_s"]) for row in best.values())
    return Section(
        "Time to 92 % against workers",
        f"ResNet-50 on CIFAR-10 gets to 92 % in {told} at best. More workers are slower: {asked['workers']} take {slower}, as every "
        f"further one pulls and pushes through the same servers.",
        intro=f"{epochs:.1f} epochs, predicted by depth-and-device from Optimus' loss model of other networks, of "
        f"{how_many(asked['images'], 'images')} at batch {batch}: {matching(results.rows['optimus_best'], batch=batch)[0]['steps']:,.0f} steps. "
        "Steps per second by Optimus' synchronous speed model, 1/f = a0·M/w + a1 + a2·w/p + a3·w + a4·p, with its published "
        f"coefficients of ResNet-50, {', '.join(f'{a:g}' for a in OPTIMUS_RESNET50.coefficients)}: seconds of the paper's cluster "
        "and images.",
        lines=[
            f"The interval of the epochs, {low:.1f} to {high:.1f}, moves both curves by the same factor, {high / epochs:.1f} either way; "
            "the best number of workers stays.",
            f"The three real runs took {', '.join(map(str, asked['real_epochs']))} epochs ({real:.1f} in the geometric mean): with those the best "
            f"times are {again}, {real / epochs:.2f} times as long.",
        ],
        figure=Figure(panels),
    )  # fmt: skip


def _optimus_section(results: Results) -> Section:
    rows, body, told = results.rows, [], []
    reference = results.settings["optimus"]["reference_batch"]
    for batch, own in grouped(rows["optimus"], "batch").items():
        for best in matching(rows["optimus_best"], batch=batch):
            times = {row["workers"]: row for row in matching(own, series=best["series"])}
            at = times[best["best"]]
            body.append([str(batch), best["series"], f"{best['steps']:,.0f}", str(best["best"]), _exact(best["exact"]),
                         f"{at['steps_per_s']:.5f}", _told(at), f"{times[max(times)]['time_s'] / at['time_s']:.2f} ×"])  # fmt: skip
        served = [row for row in matching(rows["optimus_best"], batch=batch) if row["series"] != ALL_REDUCE]
        exact = " and ".join(_exact(row["exact"]) for row in served)
        told.append(f"{' and '.join(str(row['best']) for row in served)} at batch {batch} (closed form {exact})")
    most = max(row["workers"] for row in rows["optimus"])
    least = _fastest(matching(rows["optimus"], series=ALL_REDUCE, batch=reference))
    with_servers = _fastest([row for row in matching(rows["optimus"], batch=reference) if row["series"] != ALL_REDUCE])
    on = " and ".join(row["series"] for row in served)
    return Section(
        "The best number of workers",
        f"The best numbers of workers on {on} are {', '.join(told)}. By all-reduce {most} are still faster, as its overhead of a worker is 0: 92 % takes "
        f"{seconds(least['time_s'])} at best, with servers {seconds(with_servers['time_s'])}.",
        intro=f"The closed form is sqrt(a0·M / (a2/p + a3)). The epochs are of batch {reference}; the coefficients were published for "
        "batch 40, which takes the steps that a noise scale of 2 to 32 batches says. Times with the 80 % interval of epochs and "
        "noise scale. The all-reduce of the same computation and link is ours. Coefficients are published without intervals.",
        table=Table(["batch", "", "steps", "best", "closed form", "steps/s", "time to 92 %", f"{most} workers take"],
                    body, {0, 2, 3, 4, 5, 6, 7}),
    )  # fmt: skip


def _optimus_speeds(rows: Mapping[str, list[Row]]) -> Section:
    best = rows["optimus_best"]
    counts = sorted({row["workers"] for row in rows["optimus"]})
    speed = {(row["batch"], row["series"], row["workers"]): row["steps_per_s"] for row in rows["optimus"]}
    body = [[str(w), *(f"{speed[b['batch'], b['series'], w]:.5f}" for b in best)] for w in counts]
    lost = [speed[b["batch"], b["series"], counts[-1]] / speed[b["batch"], b["series"], b["best"]]
            for b in best if b["series"] != ALL_REDUCE]  # fmt: skip
    return Section(
        "Its steps per second",
        f"With servers {counts[-1]} workers make {min(lost):.2f} to {max(lost):.2f} times the steps per second of the best number.",
        table=listed(["workers", *(f"{b['series']}, batch {b['batch']}" for b in best)], body, text=0),
    )


def _speed_section(rows: Mapping[str, list[Row]]) -> Section:
    points, series = rows["points"], []
    for servers, own in grouped(sorted(points, key=lambda row: (row["servers"], row["workers"])), "servers").items():
        name = series_of(servers)
        series.append(_band(name, matching(rows["here"], series=name), 1.0, ("steps_per_s", "f_low", "f_high")))
        w, f = ([row[key] for row in own] for key in ("workers", "steps_per_s"))
        series.append(Series(f"{name}, measured", "measured", w, f, color=COLORS[name]))
    errors, left_out = ([abs(r[key]) for r in points if r[key] is not None] for key in ("error", "left_out"))
    held = f", and of pairs left out by {100 * float(np.mean(left_out)):.0f} %" if left_out else ""
    told = ", ".join(
        f"{c['name']} {1e3 * c['value']:.1f} ({1e3 * c['low']:.1f} … {1e3 * c['high']:.1f})"
        for c in rows["coefficients"]
    )
    return Section(
        "Steps per second of parameter servers here",
        f"The asynchronous form fits {how_many(len(points), 'pairs')} of workers and servers within {100 * float(np.mean(errors)):.0f} % in "
        f"the mean{held}.",
        intro="w/f = a0 + a1·w/p + a2·w + a3·p, found by least squares with no coefficient below 0. Workers and servers share "
        "the cores of one machine, so a2, which a cluster has not, is what they take from each other.",
        figure=Figure([Lines("workers", "steps/s", series, from_zero=True)]),
        caption=f"Coefficients in ms, with the 80 % interval: {told}.",
        table=table(points, {
            "workers": "workers", "servers": "servers", "steps/s": ("steps_per_s", "{:.1f}".format),
            "fitted": ("fitted", "{:.1f}".format), "error": ("error", _percents), "by all others": ("left_out", _percents),
        }, text=0),
    )  # fmt: skip


def _percents(error: float | None) -> str:
    return shown(error, lambda share: f"{100 * share:+.0f} %", "")


def _time_section(results: Results) -> Section:
    rows, most = results.rows, max(r["workers"] for r in results.rows["runs"])
    trained = [row for row in rows["runs"] if row["time_s"] is not None]
    alone = mean([row["epochs"] for row in matching(trained, method=SINGLE)])
    panels, best = [], []
    for name in distinct(rows["here"], "series"):
        own = [row for row in trained if series_of(row["servers"]) == name]  # one rank of an all-reduce is `single`
        if own:
            forecast = [row for row in matching(rows["here"], series=name) if row["workers"] <= most]
            measured = Series("measured", "measured", [r["workers"] for r in own], [r["time_s"] for r in own])
            both = [_band("predicted", forecast, color=COLORS[name]), measured]
            label = f"{'ranks' if name == ALL_REDUCE else 'workers'}, {name}"
            panels.append(Lines(label, "time to accuracy, s", both, from_zero=True, x_ticks=range(1, most + 1)))
            first = _fastest(_alike(own))
            best.append(f"{first['workers']} {_with(name)} ({first['time_s']:.1f} s)")
    compared = [(_known(rows, row), row["time_s"]) for row in trained if row["method"] != SINGLE]
    ratios = [time_s / at["time_s"] for at, time_s in compared]
    inside = sum(at["low"] <= time_s <= at["high"] for at, time_s in compared)
    never = [row["run"] for row in rows["runs"] if row["time_s"] is None]
    return Section(
        "Time to accuracy here",
        f"Measured best numbers of workers are {', '.join(best)}.{_stale_told(trained)} {inside} of {len(ratios)} runs lie in the band of what was "
        f"predicted as if staleness cost nothing; they took {min(ratios):.2f} to {max(ratios):.2f} times as long.{_foretold(rows, trained, alone)}"
        + (f" Not reached by {', '.join(never)}." if never else ""),
        intro=f"Predicted: the steps of single ({alone:.1f} epochs) over the fitted steps per second; the band holds seeds and "
        "the fit. The all-reduce has the terms of the servers' fit: no run of its own went into it. The last column has the epochs "
        "that the run took. Between two epochs the accuracy is taken to lie on a line.",
        figure=Figure(panels),
        caption=_shared_told(rows),
        table=table(rows["runs"], {
            "run": "run", "staleness": lambda run: shown(run["staleness"], "{:.2f}".format, ""),
            "steps/s": ("steps_per_s", "{:.1f}".format),
            "epochs": lambda run: shown(run["epochs"], "{:.1f}".format),
            "of seed 0": lambda run: _of_seed_0(rows["runs"], run, "{:.2f} ×"),
            "time, s": lambda run: shown(run["time_s"], "{:.1f}".format),
            "predicted, s": lambda run: _foreseen(rows, run, "{time_s:.1f} ({low:.1f} … {high:.1f})"),
            "with its own epochs, s": lambda run: _foreseen(rows, run, "{own_s:.1f}", alone),
        }),
    )  # fmt: skip


def _alike(trained: Sequence[Row]) -> list[Row]:
    """Runs with the same minibatches: of `single` only the first seed."""
    return [row for row in trained if row["method"] != SINGLE or row["run"] == f"{SINGLE}, seed 0"]


def _foretold(rows: Mapping[str, list[Row]], trained: Sequence[Row], alone: float) -> str:
    """How far times are off that take a run's own epochs: what is left is speed."""
    stale = matching(trained, method=ASYNCHRONOUS)
    if not stale:
        return ""
    off = [abs(_known(rows, run)["time_s"] * run["epochs"] / alone / run["time_s"] - 1) for run in stale]
    return (
        f" With their own epochs the asynchronous ones are told within {100 * float(np.mean(off)):.0f} % in the mean."
    )


def _known(rows: Mapping[str, list[Row]], run: Row) -> Row:
    return matching(rows["here"], series=series_of(run["servers"]), workers=run["workers"])[0]


def _foreseen(rows: Mapping[str, list[Row]], run: Row, form: str, alone: float = 1.0) -> str:
    """What was predicted of a run of several ranks that reached the target. `own_s`: with its epochs for those of `alone`."""
    if run["method"] == SINGLE or run["time_s"] is None:
        return "–"
    at = _known(rows, run)
    return form.format(**at, own_s=at["time_s"] * run["epochs"] / alone)


def _of_seed_0(runs: Sequence[Row], run: Row, form: str) -> str:
    """Epochs over those of `single` with the same minibatches."""
    own = [row["epochs"] for row in matching(runs, run=f"{SINGLE}, seed 0") if row["epochs"]]
    return form.format(run["epochs"] / own[0]) if own and run["epochs"] else "–"


def _stale_told(trained: Sequence[Row]) -> str:
    stale = matching(trained, method=ASYNCHRONOUS)
    if not stale:
        return ""
    worst = max(stale, key=lambda row: row["epochs"])
    return (
        f" Stale gradients took up to {_of_seed_0(trained, worst, '{:.1f} times')} the epochs of single with the same "
        f"minibatches ({worst['run']}, staleness {worst['staleness']:.1f})."
    )


def _shared_told(rows: Mapping[str, list[Row]]) -> str:
    """What the servers' fit says of the all-reduce, where workers share cores."""
    a0, a2 = (rows["coefficients"][i]["value"] for i in (0, 2))
    off = [
        f"{_known(rows, row)['steps_per_s'] / row['steps_per_s']:.2f} times the measured steps per second with {row['workers']}"
        for row in matching(rows["runs"], method=ALL_REDUCE)
    ]
    if not off or a0 >= a2:
        return ""
    return (
        f"Of the all-reduce the fit says {', '.join(off)}: workers that share cores have their computation in a2·w, which ranks "
        "divide when they share a minibatch and the form does not."
    )


def _forecast_section(results: Results) -> Section:
    rows = [row for row in results.rows["here"] if row["series"] != series_of(1)]
    by_series, by_count = grouped(rows, "series"), grouped(rows, "workers")
    series = [_band(name, own) for name, own in by_series.items()]
    counts, best = sorted(by_count), {name: _fastest(own) for name, own in by_series.items()}
    fastest = [f"{row['workers']} {_with(name)}, {_told(row)}" for name, row in best.items()]
    body = [
        [str(w), *(_told(row) + (" best" if row is best[row["series"]] else "") for row in by_count[w])] for w in counts
    ]
    a0, a1, a2, a3 = (c["value"] for c in results.rows["coefficients"])
    exact = _exact(SpeedModel(ASYNCHRONOUS, (a0, a1, a2, a3)).all_reduce().closed_form())
    return Section(
        "More workers, 4 servers",
        f"Best of 1 to {counts[-1]} workers would be {', '.join(fastest)}, if staleness cost "
        f"nothing. The closed form, which only the all-reduce has, says {exact}.",
        intro="By the fitted model, on a machine as busy as this one. Asynchronous workers only ever add steps: their best number "
        "is where staleness takes more than the next worker gives, which the runs above show and the speed model does not.",
        figure=Figure([Lines("workers", "time to accuracy, s", series, log_y=True, x_ticks=counts)]),
        table=listed(["workers", *by_series], body, text=0),
    )


def _device_section(results: Results) -> Section:
    rows, asked = results.rows["device"], results.settings["device"]
    series, body, said = [], [], []
    for scaling, color in ((STRONG, "accent"), (WEAK, "teal")):
        own = matching(rows, scaling=scaling)
        series.append(_band(f"{scaling} scaling", own, 3600, color=color))
        best, one = _fastest(own), own[0]
        body += [[scaling, str(r["workers"]), f"{r['batch']:,}", f"{r['steps']:,.0f}", seconds(r["step_time_s"]), _told(r),
                  f"{one['time_s'] / r['time_s']:.2f} ×"] for r in own]  # fmt: skip
        said.append(
            f"{best['workers']} take {_told(best)} by {scaling} scaling, {one['time_s'] / best['time_s']:.1f} times as fast as one"
        )
    return Section(
        f"All-reduce of {asked['network']} on {asked['device']}, predicted",
        f"Fastest: {'; '.join(said)}.",
        intro=f"Step times of a ring over {asked['link']} as predicted from a trace; the {how_many(asked['epochs'], 'epochs')} of "
        f"the usual recipe for ImageNet (Goyal et al. 2017), {how_many(asked['samples'], 'samples')} at batch {asked['batch']}. Larger batches take fewer steps, but more "
        "samples, by a noise scale of 2 to 32 such batches, which is in the band.",
        figure=Figure([Lines("devices", "time to the target, h", series, log_x=True, log_y=True, x_ticks=asked["counts"])]),
        table=listed(["scaling", "devices", "batch", "steps", "step time", "time to the target", "speed-up"], body),
    )  # fmt: skip


def _highlights(rows: Mapping[str, list[Row]]) -> list[Highlight]:
    served = [row for row in rows["optimus_best"] if row["series"] != ALL_REDUCE]
    named = ", ".join(f"{row['series']} at batch {row['batch']}" for row in served)
    fastest = [_fastest(own) for own in grouped(rows["optimus"], "batch", "series").values()]
    first = [row for row in fastest if row["series"] != ALL_REDUCE and row["batch"] == fastest[0]["batch"]]
    highlights = [
        *(
            Highlight(
                "ResNet-50 to 92 %, at best",
                seconds(row["time_s"]),
                f"{how_many(row['workers'], 'workers')} on {row['series']}",
            )
            for row in first
        ),
        Highlight("best workers of Optimus' ResNet-50", ", ".join(str(row["best"]) for row in served), named),
    ]
    trained = [row for row in rows["runs"] if row["time_s"] is not None]
    if trained:
        here = _fastest(_alike(trained) or trained)
        highlights.append(Highlight("first at the target here", f"{here['time_s']:.1f} s", here["run"]))
    return highlights


_OPTIMUS = {
    "epochs": list(RESNET50_EPOCHS_TO_92), "real_epochs": list(RESNET50_REAL_EPOCHS_TO_92), "images": 50_000,
    "reference_batch": 128, "batches": [128, 40], "servers": [2, 4], "workers": 20,
}  # fmt: skip
_DEVICE = {
    "network": "resnet50-v1", "shape": [3, 224, 224], "classes": 1000, "device": "v100", "link": "ethernet-25g", "batch": 256,
    "counts": [1, 2, 4, 8, 16], "epochs": 90, "samples": 1_281_167,
}  # fmt: skip
_SMOKE = {
    "data": "digits", "network": "small-cnn", "samples": 400, "test_samples": None, "image_size": 8, "batch": 20,
    "learning_rate": 0.05, "momentum": 0.9, "epochs": 2, "target_accuracy": 0.2, "seeds": 1, "ranks": [],
    "pairs": [[2, 1]], "servers": [1, 2, 4], "workers": 8, "optimus": _OPTIMUS,
    "device": {**_DEVICE, "network": "lenet5", "shape": [1, 32, 32], "classes": 10},
}  # fmt: skip
_LAPTOP = {
    "data": "fashion-mnist", "network": "lenet5", "samples": 4000, "test_samples": 2000, "image_size": None, "batch": 32,
    "learning_rate": 0.01, "momentum": 0.9, "epochs": 16, "target_accuracy": 0.78, "seeds": 3, "ranks": [2, 4],
    "pairs": [[1, 1], [2, 1], [3, 1], [4, 1], [1, 2], [2, 2], [3, 2]], "servers": [1, 2, 4], "workers": 8,
    "optimus": _OPTIMUS, "device": _DEVICE,
}  # fmt: skip
_PAPER = {
    **_LAPTOP, "data": "cifar10", "network": "resnet20", "samples": None, "test_samples": None, "batch": 128,
    "learning_rate": 0.05, "epochs": 100, "target_accuracy": 0.85, "ranks": [2, 4, 8, 16],
    "pairs": [[w, p] for p in (1, 2, 4) for w in (1, 2, 4, 8, 16)], "workers": 20,
}  # fmt: skip

STUDY = Study(
    name="time-to-accuracy",
    question="How long to an accuracy with more workers, on 2 and 4 parameter servers and by all-reduce, and which number is best?",
    hypothesis="A synchronous step on p servers is shortest with sqrt(a0·M / (a2/p + a3)) workers; asynchronous workers only add "
    "steps, until staleness takes more than they give; an all-reduce, whose traffic does not grow with its ranks, gains longer",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)
