"""Asynchronous SGD: what stale gradients cost in accuracy, and what not waiting wins in throughput.

J. Dean et al., Large scale distributed deep networks, 2012; W. Zhang et al., Staleness-aware async-SGD, arXiv 1511.05950.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.figure import Figure, Lines, Series
from chronograd.job import Job
from chronograd.words import how_many
from chronograd_lab.common.arms import Arm, curves_of, job_of, mean_curve, points, train_arms
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import Spread, distinct, grouped, matching, points_apart, spread
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed

SINGLE, SYNCHRONOUS = "single", "synchronous"
ASYNCHRONOUS, AWARE = "asynchronous", "staleness-aware"
SEVERAL = (ASYNCHRONOUS, AWARE, SYNCHRONOUS)
PARTS = ("pull_s", "compute_s", "push_s")


def job(settings: Settings, method: str, ranks: int, rate: float) -> Job:
    """All have the same samples and epochs. Minibatches of a rank are equally large.

    So `synchronous` makes 1/ranks of the updates, of ranks times the batch, at ranks times the rate.
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
    """By name, such as `asynchronous, 4 at 0.1`. With one learner nothing is stale, so staleness changes nothing."""
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
    runner.parallel = runner.threads = 1  # runs are timed, so each has the machine to itself, and a rank one core
    trained = train_arms(runner, [*experiments(settings).values()])
    rows, stale = [], []
    for one in trained:
        record = one.run.record()
        parts = {name: record[name].value for name in ("staleness", *PARTS)}
        rows.append(one.row(samples_per_s=one.run.job().training.batch / record.value("step_time_s"), **parts))
        stale += [{**one.arm.known, "seed": one.seed, **row} for row in record.tables.staleness]
    return runner.results(settings, rows={"runs": rows, "staleness": stale}, curves=curves_of(trained))


def page(results: Results) -> Answer:
    rows = results.rows["runs"]
    made_of = (_accuracy_section, _staleness_section, _throughput_section, _parts_section, _time_section)
    sections = [section(results) for section in made_of]
    rate, most = _best_rate(rows), max(_learners(rows))
    worst = spread(rows, method=ASYNCHRONOUS, ranks=most, rate=rate)
    detail = f"rate {rate:g}; {_single(rows, rate).percent()} with `single`"
    highlight = Highlight(f"accuracy with {how_many(most, 'learners')}", worst.percent(), detail)
    return STUDY.answer(results, sections, [highlight])


def _best_rate(rows: Sequence[Row]) -> float:
    """That at which one process learns most: where it learns nothing, learners have nothing to lose."""
    return max(_rates(rows), key=lambda rate: _single(rows, rate).mean)


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted(distinct(rows, "rate"))


def _learners(rows: Sequence[Row]) -> list[int]:
    return sorted(distinct(rows, "ranks", method=ASYNCHRONOUS))


def _single(rows: Sequence[Row], rate: float) -> Spread:
    return spread(rows, method=SINGLE, rate=rate)


def _accuracy_section(results: Results) -> Section:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    panels, body, said = [], [], []
    for rate in _rates(rows):
        series = []
        for method in SEVERAL:
            by_ranks = grouped(matching(rows, method=method, rate=rate), "ranks")
            spreads = {n: spread(by_ranks[n]) for n in learners if n in by_ranks}
            series.append(points(method, list(spreads), list(spreads.values())))
            cells = {n: [s.percent(), points_apart(s, _single(rows, rate))] for n, s in spreads.items()}
            body += [[f"{rate:g}", method, str(n), *of_ranks] for n, of_ranks in cells.items()]
        level = 100 * _single(rows, rate).mean
        series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [level, level]))
        panels.append(Lines(f"learners, rate {rate:g}", "test accuracy, %", series, x_ticks=learners))
        plain, aware = (spread(rows, method=m, ranks=learners[-1], rate=rate) for m in (ASYNCHRONOUS, AWARE))
        said.append(
            f"At rate {rate:g}, {learners[-1]} learners change accuracy by {points_apart(plain, _single(rows, rate))} against one process. "
            f"With the rate divided by staleness, they change it by {points_apart(aware, _single(rows, rate))}."
        )
        if rate != _best_rate(rows):
            said.append(f"That rate is too high for one process, too: {_single(rows, rate).percent()}.")
    columns = ["learning rate", "method", "learners or ranks", "test accuracy", "against single"]
    return Section(
        "Accuracy after the same samples",
        " ".join(said),
        intro="Asynchronous runs make the same updates as `single`, of the same minibatches. Synchronous ones (`ddp`) add "
        "up the minibatches of all ranks, so they make fewer updates, at a rate that is larger by as much.",
        figure=Figure(panels),
        table=Table(columns, body, {0, 2, 3, 4}),
    )


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
        series.append(Series(how_many(ranks, "learners"), "measured", list(shares), percents, is_joined=True))
        beyond = sum(share for value, share in shares.items() if value > 2 * (ranks - 1))
        body.append([str(ranks), str(ranks - 1), f"{mean:.2f}", str(max(shares)), f"{100 * beyond:.1f} %"])
        if ranks > 1:
            said.append(f"{mean:.2f} with {how_many(ranks, 'learners')}")
    columns = ["learners", "learners − 1", "mean staleness", "most", "share beyond 2 (learners − 1)"]
    return Section(
        "Staleness",
        f"Mean staleness was {', '.join(said)}, where learners of equal speed that never meet would have one less than "
        "their number.",
        figure=Figure([Lines("staleness, updates", "share of updates, %", series)]),
        table=listed(columns, body, 0),
    )


def _throughput_section(results: Results) -> Section:
    rows, learners = results.rows["runs"], _learners(results.rows["runs"])
    single = spread(rows, "samples_per_s", method=SINGLE)
    series, body = [], [[SINGLE, "1", f"{single.mean:,.0f}", "1.00"]]
    gains: dict[str, float] = {}
    for method in SEVERAL:
        by_ranks = grouped(matching(rows, method=method), "ranks")
        rates = {n: spread(by_ranks[n], "samples_per_s") for n in learners if n in by_ranks}
        series.append(points(method, list(rates), list(rates.values()), scale=1.0))
        body += [[method, str(n), f"{r.mean:,.0f}", f"{r.mean / single.mean:.2f}"] for n, r in rates.items()]
        gains[method] = max(rate.mean for rate in rates.values()) / single.mean
    faster = "more" if gains[ASYNCHRONOUS] > gains[SYNCHRONOUS] else "less"
    series.append(Series(SINGLE, "reference", [learners[0], learners[-1]], [single.mean, single.mean]))
    return Section(
        "Throughput",
        f"At best asynchronous learners did {gains[ASYNCHRONOUS]:.2f} times the samples per second of one process, {faster} "
        f"than synchronous ranks with {gains[SYNCHRONOUS]:.2f} times.",
        intro="Samples per second between the ends of steps, over all learning rates and seeds. "
        f"The machine: {results.environment.get('processor', 'unknown')}, one thread per learner or rank.",
        figure=Figure([Lines("learners or ranks", "samples/s", series, from_zero=True, x_ticks=learners)]),
        table=listed(["method", "learners or ranks", "samples/s", "times single"], body),
    )


def _parts_section(results: Results) -> Section:
    rows, body, exchanged = results.rows["runs"], [], []
    for ranks in _learners(rows):
        times = [spread(rows, part, method=ASYNCHRONOUS, ranks=ranks).mean for part in PARTS]
        exchanged.append(1 - times[1] / sum(times))
        body.append([str(ranks), *(f"{1e3 * t:.2f}" for t in times), f"{100 * exchanged[-1]:.0f} %"])
    columns = ["learners", "pull, ms", "compute, ms", "push, ms", "pull and push"]
    return Section(
        "Where a learner's time goes",
        f"Waiting for servers took {100 * exchanged[0]:.0f} % of a learner's time with {body[0][0]} learner and "
        f"{100 * exchanged[-1]:.0f} % with {body[-1][0]}.",
        table=listed(columns, body, 0),
    )


def _time_section(results: Results) -> Section:
    """Accuracy against seconds at the largest rate, with the most learners."""
    rows = results.rows["runs"]
    rate, most = _rates(rows)[-1], max(_learners(rows))
    names = [_name(SINGLE, 1, rate), *(_name(m, most, rate) for m in (SYNCHRONOUS, ASYNCHRONOUS, AWARE))]
    seconds = {name: spread(rows, "seconds", experiment=name).mean for name in names}
    series = [mean_curve(results.curves, name, "seconds") for name in names]
    best = max(names, key=lambda name: spread(rows, experiment=name).mean)
    first = min(names, key=lambda name: seconds[name])
    return Section(
        "Accuracy against time",
        f"First through its samples was {first} ({seconds[first]:.1f} s); most accurate at the end was {best} "
        f"({spread(rows, experiment=best).percent()} after {seconds[best]:.1f} s).",
        figure=Figure([Lines("training time, s", "test accuracy, %", series)]),
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
    **_LAPTOP, "network": "resnet20", "samples": None, "test_samples": None, "image_size": 32,
    "learners": [1, 4, 10, 30], "epochs": 140, "batch": 128, "seeds": 3,
}  # fmt: skip

STUDY = Study(
    name="asynchronous-sgd",
    question="What do stale gradients cost in accuracy, and what does not waiting win in throughput?",
    hypothesis="With n learners a gradient is n − 1 updates old: harmless at a low rate, ruinous at a high one, unless the "
    "rate is divided by it; and learners that do not wait for each other do more samples per second",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    computed=page,
)
