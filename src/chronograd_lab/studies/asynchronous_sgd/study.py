"""Asynchronous SGD: the cost of stale gradients in accuracy, and the gain of not waiting in throughput.

J. Dean et al., Large scale distributed deep networks, 2012; W. Zhang et al., Staleness-aware async-SGD, arXiv 1511.05950.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job
from chronograd.units import percent
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, curves_of, job_of, mean_curve, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, distinct, grouped, matching, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.written import Block, key

SINGLE, SYNCHRONOUS = "single", "synchronous"
ASYNCHRONOUS, AWARE = "asynchronous", "staleness-aware"
SEVERAL = (ASYNCHRONOUS, AWARE, SYNCHRONOUS)
PARTS = ("pull_s", "compute_s", "push_s")


def job(settings: Settings, method: str, ranks: int, rate: float) -> Job:
    """Return the job of a method. All jobs have the same samples, epochs, and minibatch per rank.

    `synchronous` therefore makes 1/ranks of the updates, at ranks times the batch and ranks times the rate.
    """
    times = ranks if method == SYNCHRONOUS else 1
    parts = {
        "backend": {SINGLE: "single", SYNCHRONOUS: "ddp"}.get(method, "parameter_server"),
        "cluster": {"device": "cpu", "count": ranks, "threads": 1},
        "communication": {"servers": settings["servers"], "staleness_aware": method == AWARE},
    }
    training: Row = {"recipe": "sgd-momentum", "batch": settings["batch"] * times, "learning_rate": rate * times}
    return job_of(settings, settings["network"], parts=parts, **training)


def experiments(settings: Settings) -> dict[str, Arm]:
    """Return the arms by name, such as `asynchronous, 4 at 0.1`. With one learner no gradient is stale."""
    arms = {}
    for rate in settings["learning_rates"]:
        several = [
            (m, n) for n in settings["learners"] for m in (SYNCHRONOUS, *SEVERAL[:2]) if n > 1 or m == ASYNCHRONOUS
        ]
        for method, ranks in [(SINGLE, 1), *several]:
            name = _name(method, ranks, rate)
            known = {"experiment": name, "method": method, "ranks": ranks, "rate": rate}
            arms[name] = Arm(name, job(settings, method, ranks, rate), known, range(settings["seeds"]))
    return arms


def _name(method: str, ranks: int, rate: float) -> str:
    return f"{method}, {ranks} at {rate:g}"


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine, and each rank a core
    trained = train_arms(runner, [*experiments(settings).values()])
    rows, stale = [], []
    for one in trained:
        record = one.run.record()
        parts = {name: record[name].value for name in ("staleness", *PARTS)}
        rows.append(one.row(samples_per_s=one.run.job().training.batch / record.value("step_time_s"), **parts))
        stale += [{**one.arm.known, "seed": one.seed, **row} for row in record.tables.staleness]
    return runner.results(settings, rows={"runs": rows, "staleness": stale}, curves=curves_of(trained))


# -- the page --------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows = results.rows["runs"]
    arms = {(row["rate"], row["method"], row["ranks"]): row["experiment"] for row in rows}
    accuracies: dict[str, dict[str, Spread]] = {}
    for (rate, method, ranks), experiment in arms.items():
        accuracies.setdefault(key(f"rate_{rate:g}"), {})[f"{key(method)}_{ranks}"] = spread(rows, experiment=experiment)
    return {
        **accuracies,
        "staleness": {f"with_{n}": _mean_staleness(results, n) for n in _learners(rows)},
        "gains": {key(method): max(gains.values()) for method in SEVERAL if (gains := _gains(rows, method))},
        "exchanging": {f"with_{n}": _exchanging(rows, n) for n in _learners(rows)},
        "seconds": {
            key(experiment): spread(rows, "seconds", experiment=experiment).mean for experiment in arms.values()
        },
    }


def blocks(results: Results) -> dict[str, Block]:
    return {
        "Accuracy after the same samples": _accuracies(results),
        "Staleness": _staleness(results),
        "Throughput": _throughput(results),
        "Where a learner's time goes": Block(_parts(results)),
        "Accuracy against time": Block(figure=_against_time(results)),
    }


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted(distinct(rows, "rate"))


def _learners(rows: Sequence[Row]) -> list[int]:
    return sorted(distinct(rows, "ranks", method=ASYNCHRONOUS))


def _accuracies(results: Results) -> Block:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    panels, body = [], []
    for rate in _rates(rows):
        series, single = [], spread(rows, method=SINGLE, rate=rate)
        for method in SEVERAL:
            by_ranks = grouped(matching(rows, method=method, rate=rate), "ranks")
            spreads = {n: spread(by_ranks[n]) for n in learners if n in by_ranks}
            series.append(points(method, list(spreads), list(spreads.values())))
            body += [[f"{rate:g}", method, str(n), f"{s:%}", f"{s - single:%}"] for n, s in spreads.items()]
        level = 100 * single.mean
        series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [level, level]))
        panels.append(Lines(f"learners, rate {rate:g}", "test accuracy, %", series, x_ticks=learners))
    columns = ["learning rate", "method", "learners or ranks", "test accuracy", "against single"]
    return Block(Table(columns, body, {0, 2, 3, 4}), Figure(panels))


def staleness_shares(rows: Sequence[Row], ranks: int) -> dict[int, float]:
    """Return the share of the updates of asynchronous runs by their staleness, over all rates and seeds.

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


def _mean_staleness(results: Results, ranks: int) -> float:
    return sum(value * share for value, share in staleness_shares(results.rows["staleness"], ranks).items())


def _staleness(results: Results) -> Block:
    series, body = [], []
    for ranks in _learners(results.rows["runs"]):
        shares = staleness_shares(results.rows["staleness"], ranks)
        percents = [100 * share for share in shares.values()]
        series.append(Series(how_many(ranks, "learners"), "measured", list(shares), percents, is_joined=True))
        beyond = sum(share for value, share in shares.items() if value > 2 * (ranks - 1))
        mean = _mean_staleness(results, ranks)
        body.append([str(ranks), str(ranks - 1), f"{mean:.2f}", str(max(shares)), f"{100 * beyond:.1f} %"])
    columns = ["learners", "learners − 1", "mean staleness", "most", "share beyond 2 (learners − 1)"]
    return Block(listed(columns, body, 0), Figure([Lines("staleness, updates", "share of updates, %", series)]))


def _gains(rows: Sequence[Row], method: str) -> dict[int, float]:
    """Return samples per second over those of one process, by number of learners or ranks."""
    single = spread(rows, "samples_per_s", method=SINGLE).mean
    by_ranks = grouped(matching(rows, method=method), "ranks")
    return {n: spread(by_ranks[n], "samples_per_s").mean / single for n in _learners(rows) if n in by_ranks}


def _throughput(results: Results) -> Block:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    single = spread(rows, "samples_per_s", method=SINGLE)
    series, body = [], [[SINGLE, "1", f"{single.mean:,.0f}", "1.00"]]
    for method in SEVERAL:
        gains = _gains(rows, method)
        rates = [spread(rows, "samples_per_s", method=method, ranks=n) for n in gains]
        series.append(points(method, list(gains), rates, scale=1.0))
        body += [[method, str(n), f"{r.mean:,.0f}", f"{gains[n]:.2f}"] for n, r in zip(gains, rates, strict=True)]
    series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [single.mean, single.mean]))
    return Block(
        listed(["method", "learners or ranks", "samples/s", "times single"], body),
        Figure([Lines("learners or ranks", "samples/s", series, from_zero=True, x_ticks=learners)]),
    )


def _times(rows: Sequence[Row], ranks: int) -> list[float]:
    return [spread(rows, part, method=ASYNCHRONOUS, ranks=ranks).mean for part in PARTS]


def _exchanging(rows: Sequence[Row], ranks: int) -> float:
    """Return the share of a learner's time in which it pulls and pushes."""
    pull, compute, push = _times(rows, ranks)
    return 1 - compute / (pull + compute + push)


def _parts(results: Results) -> Table:
    rows = results.rows["runs"]
    body = [
        [str(ranks), *(f"{1e3 * t:.2f}" for t in _times(rows, ranks)), percent(_exchanging(rows, ranks), 0)]
        for ranks in _learners(rows)
    ]
    return listed(["learners", "pull, ms", "compute, ms", "push, ms", "pull and push"], body, 0)


def _against_time(results: Results) -> Figure:
    """Return accuracy against time, at the largest rate and with the most learners."""
    rows = results.rows["runs"]
    rate, most = _rates(rows)[-1], max(_learners(rows))
    names = [_name(SINGLE, 1, rate), *(_name(m, most, rate) for m in (SYNCHRONOUS, ASYNCHRONOUS, AWARE))]
    series = [mean_curve(results.curves, name, "seconds") for name in names]
    return Figure([Lines("training time, s", "test accuracy, %", series)])


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
    **_LAPTOP, "network": "resnet20", "samples": None, "test_samples": None, "image_size": 32,
    "learners": [1, 4, 10, 30], "epochs": 140, "batch": 128, "seeds": 3,
}  # fmt: skip

STUDY = Study(
    name="asynchronous-sgd",
    question="How much accuracy do stale gradients cost, and how much throughput does not waiting gain?",
    hypothesis="With n learners a gradient is n − 1 updates old. This is harmless at a low rate, and ruinous "
    "at a high one unless the rate is divided by the age. Learners that do not wait process more samples per second",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
