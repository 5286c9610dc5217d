"""Asynchronous SGD: what stale gradients cost in accuracy, and what not waiting wins in throughput.

J. Dean et al., Large scale distributed deep networks, 2012; W. Zhang et al., Staleness-aware async-SGD, arXiv 1511.05950.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job, from_dict
from chronograd.rundir import RunDir
from chronograd.study.lab import Lab, Spread, curve, outcome, over_seeds, split_seed, spread
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import accuracy_panel, points, points_apart, study_page

SINGLE, SYNCHRONOUS = "single", "synchronous"
ASYNCHRONOUS, AWARE = "asynchronous", "staleness-aware"
PARTS = ("pull_s", "compute_s", "push_s")


def job(settings: Settings, method: str, ranks: int, rate: float) -> Job:
    """All have the same samples and epochs. Minibatches of a rank are equally large.

    So `synchronous` makes 1/ranks of the updates, of ranks times the batch, at ranks times the rate.
    """
    is_synchronous = method == SYNCHRONOUS
    backend = {SINGLE: "single", SYNCHRONOUS: "ddp"}.get(method, "parameter_server")
    times = ranks if is_synchronous else 1
    data = {key: settings[key] for key in ("samples", "image_size", "test_samples")} | {"name": settings["data"]}
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": data,
            "training": {
                "recipe": "sgd-momentum",
                "momentum": settings["momentum"],
                "epochs": settings["epochs"],
                "batch": settings["batch"] * times,
                "learning_rate": rate * times,
                "checkpoint_every": settings["epochs"],
            },
            "cluster": {"device": "cpu", "count": ranks, "threads": 1},
            "communication": {"servers": settings["servers"], "staleness_aware": method == AWARE},
            "backend": backend,
        }
    )


def experiments(settings: Settings) -> dict[str, Job]:
    """By name, such as `asynchronous, 4 at 0.1`. With one learner nothing is stale, so staleness changes nothing."""
    found = {}
    for rate in settings["learning_rates"]:
        found[_name(SINGLE, 1, rate)] = job(settings, SINGLE, 1, rate)
        for ranks in settings["learners"]:
            for method in (SYNCHRONOUS, ASYNCHRONOUS, AWARE) if ranks > 1 else (ASYNCHRONOUS,):
                found[_name(method, ranks, rate)] = job(settings, method, ranks, rate)
    return found


def _name(method: str, ranks: int, rate: float) -> str:
    return f"{method}, {ranks} at {rate:g}"


def _parsed(name: str) -> Row:
    """
    >>> _parsed("staleness-aware, 4 at 0.1")
    {'method': 'staleness-aware', 'ranks': 4, 'rate': 0.1}
    """
    method, _, rest = name.partition(", ")
    ranks, _, rate = rest.partition(" at ")
    return {"method": method, "ranks": int(ranks), "rate": float(rate)}


def conduct(lab: Lab, settings: Settings) -> Results:
    lab.parallel = lab.threads = 1  # runs are timed, so each has the machine to itself, and a rank one core
    rows, stale, curves = [], [], {}
    for name, run in lab.train(over_seeds(experiments(settings), settings["seeds"])).items():
        experiment, seed = split_seed(name)
        own = {"experiment": experiment, **_parsed(experiment), "seed": seed}
        rows.append({**own, **_outcome(run)})
        stale += [{**own, **row} for row in run.record().tables.get("staleness", [])]
        curves[name] = curve(run.record())
    return lab.results(settings, rows={"runs": rows, "staleness": stale}, curves=curves)


def _outcome(run: RunDir) -> Row:
    record = run.record()
    found = {**outcome(run), "samples_per_s": run.job().training.batch / record.value("step_time_s")}
    for name in ("staleness", *PARTS):
        found[name] = record[name].value
    return found


def page(results: Results) -> Answer:
    rows = results.rows["runs"]
    sections = [
        _accuracy_section(results),
        _staleness_section(results),
        _throughput_section(results),
        _parts_section(rows),
        _time_section(results),
    ]
    rate, most = _rates(rows)[-1], max(_learners(rows))
    worst = spread(rows, method=ASYNCHRONOUS, ranks=most, rate=rate)
    highlight = Highlight(
        f"accuracy with {most} learners",
        worst.percent(),
        f"rate {rate:g}; {_single(rows, rate).percent()} with `single`",
    )
    return study_page(STUDY, results, sections, [highlight])


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted({row["rate"] for row in rows})


def _learners(rows: Sequence[Row]) -> list[int]:
    return sorted({row["ranks"] for row in rows if row["method"] == ASYNCHRONOUS})


def _single(rows: Sequence[Row], rate: float) -> Spread:
    return spread(rows, method=SINGLE, rate=rate)


def _accuracy_section(results: Results) -> Section:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    panels, body, said = [], [], []
    for rate in _rates(rows):
        series = []
        for method in (ASYNCHRONOUS, AWARE, SYNCHRONOUS):
            counts = [n for n in learners if any(_is(row, method, n, rate) for row in rows)]
            found = [spread(rows, method=method, ranks=n, rate=rate) for n in counts]
            series.append(points(method, counts, found))
            body += [
                [f"{rate:g}", method, str(n), s.percent(), points_apart(s, _single(rows, rate))]
                for n, s in zip(counts, found, strict=True)
            ]
        level = 100 * _single(rows, rate).mean
        series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [level, level]))
        panels.append(Lines(f"learners, rate {rate:g}", "test accuracy, %", series, x_ticks=learners))
        plain, aware = (spread(rows, method=m, ranks=learners[-1], rate=rate) for m in (ASYNCHRONOUS, AWARE))
        said.append(
            f"at rate {rate:g} {points_apart(plain, _single(rows, rate))}, and with the rate divided by staleness "
            f"{points_apart(aware, _single(rows, rate))}"
        )
    columns = ["learning rate", "method", "learners or ranks", "test accuracy", "against single"]
    return Section(
        "Accuracy after the same samples",
        f"{learners[-1]} learners against one process: {'; '.join(said)}.",
        intro="Asynchronous runs make the same updates as `single`, of the same minibatches. Synchronous ones (`ddp`) add "
        "up the minibatches of all ranks, so they make fewer updates, at a rate that is larger by as much.",
        figure=Figure(panels),
        table=Table(columns, body, {0, 2, 3, 4}),
    )


def _is(row: Row, method: str, ranks: int, rate: float) -> bool:
    return (row["method"], row["ranks"], row["rate"]) == (method, ranks, rate)


def staleness_shares(rows: Sequence[Row], ranks: int) -> dict[int, float]:
    """Share of the updates of asynchronous runs by their staleness, over all rates and seeds.

    >>> rows = [{"method": "asynchronous", "ranks": 2, "staleness": s, "updates": n} for s, n in ((0, 1), (1, 3))]
    >>> staleness_shares(rows, 2)
    {0: 0.25, 1: 0.75}
    """
    counts: dict[int, int] = defaultdict(int)
    for row in rows:
        if row["method"] in (ASYNCHRONOUS, AWARE) and row["ranks"] == ranks:
            counts[row["staleness"]] += row["updates"]
    whole = sum(counts.values())
    return {value: counts[value] / whole for value in sorted(counts)}


def _staleness_section(results: Results) -> Section:
    learners = _learners(results.rows["runs"])
    series, body, said = [], [], []
    for ranks in learners:
        shares = staleness_shares(results.rows["staleness"], ranks)
        mean = sum(value * share for value, share in shares.items())
        percents = [100 * share for share in shares.values()]
        series.append(Series(f"{ranks} learners", "measured", list(shares), percents, is_joined=True))
        beyond = sum(share for value, share in shares.items() if value > 2 * (ranks - 1))
        body.append([str(ranks), str(ranks - 1), f"{mean:.2f}", str(max(shares)), f"{100 * beyond:.1f} %"])
        if ranks > 1:
            said.append(f"{mean:.2f} with {ranks} learners")
    columns = ["learners", "learners − 1", "mean staleness", "most", "share beyond 2 (learners − 1)"]
    return Section(
        "Staleness",
        f"Mean staleness was {', '.join(said)}, where learners of equal speed that never meet would have one less than "
        "their number.",
        figure=Figure([Lines("staleness, updates", "share of updates, %", series)]),
        table=Table(columns, body, {0, 1, 2, 3, 4}),
    )


def _throughput_section(results: Results) -> Section:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    single = spread(rows, "samples_per_s", method=SINGLE)
    series, body = [], [[SINGLE, "1", f"{single.mean:,.0f}", "1.00"]]
    gains: dict[str, float] = {}
    for method in (ASYNCHRONOUS, AWARE, SYNCHRONOUS):
        counts = [n for n in learners if any(row["method"] == method and row["ranks"] == n for row in rows)]
        found = [spread(rows, "samples_per_s", method=method, ranks=n) for n in counts]
        y, low, high = ([getattr(s, side) for s in found] for side in ("mean", "low", "high"))
        series.append(Series(method, "measured", counts, y, low, high, is_joined=True))
        body += [[method, str(n), f"{v:,.0f}", f"{v / single.mean:.2f}"] for n, v in zip(counts, y, strict=True)]
        gains[method] = max(y) / single.mean
    faster = "more" if gains[ASYNCHRONOUS] > gains[SYNCHRONOUS] else "less"
    series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [single.mean, single.mean]))
    return Section(
        "Throughput",
        f"At best asynchronous learners did {gains[ASYNCHRONOUS]:.2f} times the samples per second of one process, {faster} "
        f"than synchronous ranks with {gains[SYNCHRONOUS]:.2f} times.",
        intro="Samples per second between the ends of steps, over all learning rates and seeds. "
        f"The machine: {results.environment.get('processor', 'unknown')}, one thread per learner or rank.",
        figure=Figure([Lines("learners or ranks", "samples/s", series, from_zero=True, x_ticks=learners)]),
        table=Table(["method", "learners or ranks", "samples/s", "times single"], body, {1, 2, 3}),
    )


def _parts_section(rows: Sequence[Row]) -> Section:
    body, exchanged = [], []
    for ranks in _learners(rows):
        times = [spread(rows, part, method=ASYNCHRONOUS, ranks=ranks).mean for part in PARTS]
        exchanged.append(1 - times[1] / sum(times))
        body.append([str(ranks), *(f"{1e3 * t:.2f}" for t in times), f"{100 * exchanged[-1]:.0f} %"])
    columns = ["learners", "pull, ms", "compute, ms", "push, ms", "pull and push"]
    return Section(
        "Where a learner's time goes",
        f"Waiting for servers took {100 * exchanged[0]:.0f} % of a learner's time with {body[0][0]} learner and "
        f"{100 * exchanged[-1]:.0f} % with {body[-1][0]}.",
        table=Table(columns, body, set(range(len(columns)))),
    )


def _time_section(results: Results) -> Section:
    """Accuracy against seconds at the largest rate, with the most learners."""
    rows = results.rows["runs"]
    rate, most = _rates(rows)[-1], max(_learners(rows))
    methods = {method: (1 if method == SINGLE else most) for method in (SINGLE, SYNCHRONOUS, ASYNCHRONOUS, AWARE)}
    names = [_name(method, ranks, rate) for method, ranks in methods.items()]
    seconds = {name: spread(rows, "seconds", experiment=name).mean for name in names}
    best = max(names, key=lambda name: spread(rows, experiment=name).mean)
    first = min(names, key=lambda name: seconds[name])
    return Section(
        "Accuracy against time",
        f"First through its samples was {first} ({seconds[first]:.1f} s); most accurate at the end was {best} "
        f"({spread(rows, experiment=best).percent()} after {seconds[best]:.1f} s).",
        figure=Figure([accuracy_panel(results.curves, names, "seconds", "training time, s")]),
    )


_SMOKE = {
    "data": "digits", "network": "small-cnn", "samples": 200, "test_samples": None, "image_size": 8,
    "learners": [1, 2], "servers": 1, "learning_rates": [0.05], "momentum": 0.0, "epochs": 2, "batch": 20, "seeds": 1,
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "network": "small-cnn", "samples": 4000, "test_samples": 4000, "image_size": 16,
    "learners": [1, 2, 4], "servers": 1, "learning_rates": [0.02, 0.1], "momentum": 0.9, "epochs": 8, "batch": 32,
    "seeds": 2,
}  # fmt: skip
_PAPER = {
    "data": "cifar10", "network": "resnet20", "samples": None, "test_samples": None, "image_size": 32,
    "learners": [1, 4, 10, 30], "servers": 1, "learning_rates": [0.02, 0.1], "momentum": 0.9, "epochs": 140,
    "batch": 128, "seeds": 3,
}  # fmt: skip

STUDY = Study(
    name="asynchronous-sgd",
    question="What do stale gradients cost in accuracy, and what does not waiting win in throughput?",
    hypothesis="With n learners a gradient is n − 1 updates old: harmless at a low rate, ruinous at a high one, unless the "
    "rate is divided by it; and learners that do not wait for each other do more samples per second",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)
