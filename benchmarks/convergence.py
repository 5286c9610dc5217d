"""Writer of forecast/published_curves.json, small_curves.json and small_losses.json: past runs used to forecast similar ones.

    python -m benchmarks.convergence --measured DIR [--write]
    python -m benchmarks.convergence --coverage
    python -m benchmarks.convergence --train NETWORK...

Without --write it reports how the files would change. --coverage forecasts the last level of every run from its first part,
without the runs of its team, network or data set. It also forecasts later training losses, curves that are unlike every known
run, and curves whose schedule is unknown. --train trains networks on digits for small_losses.json. The other runs come from `chronograd study run loss-curves`.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.forecast import published_curves
from chronograd.forecast.convergence import converged_at, from_curve, median_of_three
from chronograd.forecast.forecasting import forecast
from chronograd.forecast.learning_curves import LearningCurve, Metric, read_curve
from chronograd.forecast.loss import MIN_POINTS, fit_loss
from chronograd.forecast.published_curves import PublishedCurves, PublishedRun
from chronograd.forecast.schedule import Schedule
from chronograd.job import Job, from_dict
from chronograd.rundir import RunDir
from chronograd_lab.common.published_runs import PublishedCurve, cifar_resnets, dawnbench

FRACTIONS = (0.25, 0.5, 0.75)  # of the way to convergence
POINTS_PER_PHASE = 32


def table(measured: Path) -> dict[str, Any]:
    curves = [*dawnbench(measured), *cifar_resnets(measured)]
    falling = [one for one in curves if one.curve.schedule.kind != "constant"]
    ratios: dict[str, list[float]] = {}
    for one in curves:
        if one.curve.schedule.kind == "constant":
            ratios.setdefault(one.group, []).extend(ratios_of(one.curve))
    return {
        "source": "DAWNBench, and ResNets on CIFAR-10 at a constant rate (alexunxus/DLSP_hw4_p4) for the ratios",
        "runs": [run(one) for one in falling],
        "ratios": {group: values for group, values in sorted(ratios.items()) if values},
    }


def run(one: PublishedCurve) -> dict[str, Any]:
    """Return a run thinned to POINTS_PER_PHASE points between drops."""
    curve, schedule = one.curve, one.curve.schedule
    mine = schedule.progress(curve.steps)
    wanted = np.unique(
        np.concatenate([mine[:1], np.arange(1, 1 + POINTS_PER_PHASE * np.ceil(mine[-1])) / POINTS_PER_PHASE])
    )
    steps = np.unique([curve.steps[np.argmin(np.abs(mine - at))] for at in wanted])
    errors = np.interp(steps, curve.steps, median_of_three(curve.values))
    return {
        "name": curve.name, "team": one.group, "kind": schedule.kind, "drops": list(schedule.drops),
        "planned": round(schedule.planned or 0.0, 3), "converged": round(converged_at(curve.steps, curve.values), 3),
        "steps": [round(float(k), 2) for k in steps], "errors": [round(float(e), 4) for e in errors],
    }  # fmt: skip


def ratios_of(curve: LearningCurve) -> list[float]:
    """Return the ratios of the true to the forecast epoch of convergence, without correction."""
    converged, found = converged_at(curve.steps, curve.values), []
    for fraction in FRACTIONS:
        early = curve.first(int((curve.steps <= fraction * converged).sum()))
        if len(early.steps) >= MIN_POINTS:
            forecast = from_curve(early, PublishedCurves((), {})).step
            found.append(round(converged / max(forecast, float(early.steps[-1])), 3))
    return found


# Runs on small data: study, drops of the rate as shares of the run, and the key that distinguishes the runs.
STUDIES = Path(__file__).parents[1] / "docs" / "studies"
RESULTS = Path(__file__).parent / "results"
DROPS = {"cutout": (0.3, 0.6, 0.8), "batch-augmentation": (0.405, 0.61, 0.82), "transfer": (0.3, 0.6, 0.9)}


def small_table() -> dict[str, Any]:
    """Return the test errors of studies on 160 to 2,000 images with a falling rate."""
    curves = [one for name in ("loss-curves", *DROPS) for one in _of_study(name)]
    return {"source": f"docs/studies: loss-curves, {', '.join(DROPS)}", "runs": [run(one) for one in curves]}


def _of_study(study: str) -> Iterator[PublishedCurve]:
    for name, columns in json.loads((STUDIES / study / "results.json").read_text())["curves"].items():
        epochs = np.array(columns["epoch"], dtype=float)
        errors = np.array(columns["seen"]) if "seen" in columns else 1 - np.array(columns["test_accuracy"])
        shares = (0.5, 0.75) if "multi_step" in name else DROPS.get(study, ())
        if ", constant," in name:
            continue
        end = float(epochs[-1])
        drops = tuple(round(share * end, 3) for share in shares)
        schedule = Schedule("multi_step" if drops else "annealed", drops, end)
        network = _network_of(name)
        team = "ants and bees" if study == "transfer" else f"small CIFAR-10, {network}"
        yield PublishedCurve(
            LearningCurve(f"{study}: {name}", epochs, errors, "accuracy", "epoch", schedule), study, team
        )


# Training losses of small networks on digits, by schedule: job fields in addition to the recipe.
DIGITS = RESULTS / "digits_losses.json"
SCHEDULES: dict[str, dict[str, Any]] = {
    "one_cycle": {"recipe": "sgd-one-cycle"},
    "cosine": {"recipe": "sgd-momentum", "schedule": "cosine"},
    "multi_step": {"recipe": "sgd-momentum", "schedule": "multi_step", "milestones": [0.5, 0.75]},
}
LENGTHS = (6, 12)


def train_on_digits(networks: Sequence[str]) -> None:
    """Add the losses of these networks to DIGITS for every schedule and length that is missing."""
    losses = json.loads(DIGITS.read_text()) if DIGITS.exists() else {}
    for network, (name, fields), epochs in itertools.product(networks, SCHEDULES.items(), LENGTHS):
        key = f"{network}, {name}, {epochs} epochs"
        if key in losses:
            continue
        training = {**fields, "epochs": epochs, "batch": 64, "checkpoint_every": epochs, "evaluate_every": epochs}
        job = from_dict({"network": {"name": network}, "data": {"name": "digits"}, "training": training})
        with tempfile.TemporaryDirectory() as folder:
            values = read_curve(trained(job, Path(folder)).path, "loss").values
        losses[key] = [float(f"{loss:.4g}") for loss in values]
        DIGITS.write_text(json.dumps(losses).replace('], "', '],\n"') + "\n")


def trained(job: Job, folder: Path) -> RunDir:
    """Train a job in this process and return its run directory in `folder`."""
    from chronograd.data import datasets
    from chronograd.train import order
    from chronograd.train.communicator import communicator_of
    from chronograd.train.loop import seed_everything, train
    from chronograd.train.rank_context import rank_context_from_environment
    from chronograd.train.step import TrainingStep

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    run = RunDir.create(job, {}, out=folder / "run")
    place, dataset = rank_context_from_environment(job, communicator_of), datasets.load(job.data)
    step = TrainingStep(job, dataset, place, None)
    seed_everything(order.random_seed(job.training.seed, 0, 0))
    with run.step_writer() as lines:
        train(step, dataset, place, run, lines)
    return run


def loss_table() -> dict[str, Any]:
    """Return training losses by epoch with a falling rate, from studies on small images and from DIGITS."""
    runs = []
    for study, shares in DROPS.items():
        for name, columns in json.loads((STUDIES / study / "results.json").read_text())["curves"].items():
            team = "ants and bees" if study == "transfer" else f"small CIFAR-10, {_network_of(name)}"
            runs.append(_loss_run(f"{study}: {name}", team, columns["train_loss"], shares))
    for name, losses in json.loads(DIGITS.read_text()).items():
        network, schedule, _ = name.split(", ")
        shares = tuple(SCHEDULES[schedule].get("milestones", ()))
        runs.append(_loss_run(f"digits: {name}", f"digits, {network}", losses, shares))
    return {"source": f"docs/studies: {', '.join(DROPS)}; benchmarks/results/{DIGITS.name}", "runs": runs}


def _network_of(name: str) -> str:
    return "small-cnn" if "small-cnn" in name else "resnet8"


def _loss_run(name: str, team: str, losses: Sequence[float], shares: Sequence[float]) -> dict[str, Any]:
    end = len(losses)
    return {
        "name": name, "team": team, "kind": "multi_step" if shares else "annealed",
        "drops": [round(share * end, 3) for share in shares], "planned": end,
        "converged": converged_at(np.arange(1.0, end + 1), np.array(losses)),
        "steps": list(range(1, end + 1)), "errors": [float(f"{loss:.4g}") for loss in losses],
    }  # fmt: skip


def image_curve(run: PublishedRun, metric: Metric) -> LearningCurve:
    return LearningCurve(run.name, run.steps, run.errors, metric, "epoch", run.schedule, is_of_images=True)


SEEN = (0.1, 0.15, 0.25, 0.35, 0.5, 0.65, 0.75, 0.85)  # of the planned epochs


def coverage() -> None:
    """Print bias, size and coverage of forecasts of the last level, by kind of run and by the observed share."""
    known = published_curves.published()
    rows = []
    for one in (*known.runs, *known.small):
        is_small = one in known.small
        for share in SEEN:
            count = int((one.steps <= share * (one.schedule.planned or 0)).sum())
            if count < MIN_POINTS or one.schedule.next_fall(float(one.steps[count - 1])) is None:
                continue
            curve = image_curve(one, "accuracy")
            end, true = float(one.steps[-1]), float(np.median(one.errors[-3:]))
            left_out = [known.without(one.team)]
            if one.team.startswith("small CIFAR-10"):
                left_out.append(known.without("small CIFAR-10, small-cnn").without("small CIFAR-10, resnet8"))
            for asked, others in zip(("team", "all of its data"), left_out, strict=False):
                made = forecast(curve, count / len(one.steps) + 1e-9, at=[end], known=others, draws=20)
                at, way = made.expected(end), ", by its own curve" if made.unlike else ""
                off, width = np.log(true / (1 - at.value)), np.log((1 - at.low) / (1 - at.high))
                kind = f"{'small' if is_small else 'published'}, {one.schedule.kind}, {'early' if share <= 0.25 else 'later'}"
                rows.append((f"{kind}, without its {asked}{way}", off, width, at.low <= 1 - true <= at.high))
    print(f"{'forecasts of the last level':80} {'n':>4} {'bias':>6} {'off':>5} {'width':>5} inside")
    for kind in sorted({row[0] for row in rows}):
        off, width, inside = (
            np.array(column, dtype=float) for column in zip(*(row[1:] for row in rows if row[0] == kind), strict=True)
        )
        print(
            f"{kind:80} {len(off):4} {np.median(off):+6.2f} {np.median(abs(off)):5.2f} {np.median(width):5.2f} {np.mean(inside):5.0%}"
        )


def coverage_of_losses() -> None:
    """Print how often intervals contained later losses, leaving out the team of the run, or all runs on digits."""
    known = published_curves.published()
    digits = {one.team for one in known.losses if one.team.startswith("digits")}
    inside: dict[str, list[bool]] = {}
    for one, share in itertools.product(known.losses, (0.25, 0.5, 0.75)):
        count = max(MIN_POINTS, int(share * len(one.steps)))
        if one.schedule.next_fall(float(one.steps[count - 1])) is None:
            continue
        curve = image_curve(one, "loss")
        left_out = {one.team: known.without(one.team)}
        if one.team in digits:
            left_out["all of digits"] = functools.reduce(PublishedCurves.without, digits, known)
        for what, others in left_out.items():
            made = forecast(curve, count / len(one.steps) + 1e-9, known=others, draws=20)
            way = ", by its own curve" if made.unlike else ""
            inside.setdefault(what + way, []).extend(at.low <= (at.seen or 0) <= at.high for at in made.held_out)
    for what, held in sorted(inside.items()):
        print(f"losses, without {what:46} {len(held):4} {np.mean(held):5.0%}")


CUTS = (0.3, 0.5, 0.7)


def unknown_schedules() -> Iterator[tuple[str, PublishedRun, float]]:
    """Yield kind, run and cut of forecasts without a schedule, at a constant rate so far or without a column of rates."""
    known = published_curves.published()
    for one, cut in itertools.product((*known.runs, *known.small[::3]), CUTS):
        end = one.schedule.planned or 0.0
        if not one.schedule.drops:
            yield f"{'published' if one in known.runs else 'small'}, annealed without a column of rates", one, cut
        elif cut * end <= one.schedule.drops[0]:
            yield f"{'published' if one in known.runs else 'small'}, constant so far", one, cut


def coverage_of_unknown_schedules() -> None:
    """Print bias, mean error and coverage of forecasts of the last value: the planned end is stated, but not the schedule. The
    run shows that it trains an image classifier, or it does not. Its team, or all of its data, is left out.
    """
    known = published_curves.published()
    no_small = known.without("small CIFAR-10, small-cnn").without("small CIFAR-10, resnet8")
    print(f"{'without a schedule':60} {'n':>4} {'bias':>7} {'off':>6} {'width':>6} inside")
    for shown in (True, None):
        rows: dict[str, list[tuple[float, float, bool]]] = {}
        for kind, one, cut in unknown_schedules():
            end, count = one.schedule.planned or 0.0, int((one.steps <= cut * (one.schedule.planned or 0.0)).sum())
            if count < MIN_POINTS:
                continue
            others = no_small if one.team.startswith("small CIFAR-10") else known.without(one.team)
            curve = replace(image_curve(one, "accuracy"), schedule=Schedule(None, (), end), is_of_images=shown)
            at = forecast(curve, count / len(one.steps) + 1e-9, at=[end], known=others, draws=20).expected(end)
            true = 1 - float(np.median(one.errors[-3:]))
            width = float(np.log(max(1 - at.low, 1e-9) / max(1 - at.high, 1e-9)))
            rows.setdefault(kind, []).append(((at.value - true) / true, width, at.low <= true <= at.high))
        for kind, values in rows.items():
            off, width, inside = np.array(values, dtype=float).T
            name = f"{kind}, {'of images' if shown else 'kind not shown'}"
            print(
                f"{name:60} {len(off):4} {off.mean():+7.1%} {abs(off).mean():6.1%} {np.median(width):6.2f} "
                f"{inside.sum():3.0f} of {len(off)}"
            )


SIMULATED = 40  # language models
NOISE = (0.003, 0.01, 0.02)  # standard deviation of the log loss of each point


def language_model(seed: int, num_points: int = 60) -> LearningCurve:
    """Return a loss under a cosine: L0 + A · S1^-α - C · S2, with S1 the sum of the rates so far and S2 their total fall.

    Source of the form: Tissue et al. 2024, Scaling Law with Learning Rate Annealing. Offsets, exponents and gains are random:
    the fall of the rate gains 0 to 8 % of the loss, and the irreducible loss is 1.5 to 3.
    """
    chance = np.random.default_rng(seed)
    irreducible, size, exponent, gain = (chance.uniform(*ends) for ends in ((1.5, 3), (0.6, 8), (0.25, 0.6), (0, 0.08)))
    progress = np.arange(1, num_points + 1) / num_points
    rate = 0.1 + 0.9 * (1 + np.cos(np.pi * progress)) / 2
    losses = irreducible * (1 - gain * (1 - rate)) + size * (100 * np.cumsum(rate) / num_points) ** -exponent
    losses *= np.exp(chance.choice(NOISE) * chance.standard_normal(num_points))
    planned = 100.0 * num_points
    return LearningCurve(
        f"simulated {seed}", planned * progress, losses, "loss", "step", Schedule("annealed", (), planned)
    )


def fine_tuned(measured: Path) -> Iterator[LearningCurve]:
    """Yield losses of Llama-3.2-3B with many adapter methods, 5,000 steps each; the rate fell to the end (huggingface/peft)."""
    logs: dict[str, list[tuple[float, float]]] = {}
    with (measured / "large_models" / "peft_curves.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["task"] == "MetaMathQA" and row["train_loss"]:
                logs.setdefault(row["run"], []).append((float(row["step"]), float(row["train_loss"])))
    for name, points in logs.items():
        steps, losses = np.array(points).T
        yield LearningCurve(name, steps, losses, "loss", "step", Schedule("annealed", (), float(steps[-1])))


def coverage_of_unlike(measured: Path | None) -> None:
    """Print errors of forecasts of curves unlike every known run, and how often their intervals contain later points.

    Accuracies are those of published runs forecast from small runs only, and the reverse.
    """
    known = published_curves.published()
    kinds: dict[str, list[tuple[LearningCurve, PublishedCurves]]] = {
        "simulated language models": [(language_model(seed), known) for seed in range(SIMULATED)]
    }
    if measured is not None:
        kinds["fine-tuned Llama-3.2-3B"] = [(curve, known) for curve in fine_tuned(measured)]
    for name, runs, others in (
        ("published errors, small runs known", known.runs, PublishedCurves((), {}, known.small)),
        ("small errors, published runs known", known.small[::3], PublishedCurves(known.runs, {})),
    ):
        kinds[name] = [(image_curve(one, "accuracy"), others) for one in runs]
    print(
        f"{'curves':36} {'from':>5} {'n':>4} {'bias':>7} {'off':>6} {'power':>6} {'last':>6} {'width':>6} inside  by its own curve"
    )
    for kind, share in itertools.product(kinds, (0.25, 0.5, 0.75)):
        rows = []
        for curve, others in kinds[kind]:
            count = int((curve.steps <= share * (curve.schedule.planned or 0)).sum())
            if count < MIN_POINTS or curve.schedule.next_fall(float(curve.steps[count - 1])) is None:
                continue
            made = forecast(curve, count / len(curve.steps) + 1e-9, known=others, draws=50)
            last = made.held_out[-1]
            value, seen, low, high = (
                1 - x if curve.metric == "accuracy" else x for x in (last.value, last.seen or 0.0, last.low, last.high)
            )
            width = abs(np.log(max(high, 1e-12) / max(low, 1e-12)))
            early = curve.first(count)
            power = fit_loss(early.steps, early.values, "power", draws=0).at(last.step)
            others_off = (abs(np.log(seen / max(other, 1e-12))) for other in (power, float(early.values[-1])))
            inside = made.num_inside / len(made.held_out)
            rows.append((np.log(seen / value), *others_off, width, inside, bool(made.unlike)))
        if rows:
            off, by_power, by_last, widths, insides, own = np.array(rows, dtype=float).T
            print(
                f"{kind:36} {share:5.0%} {len(off):4} {np.median(off):+7.3f} {np.median(abs(off)):6.3f} {np.median(by_power):6.3f} "
                f"{np.median(by_last):6.3f} {np.median(widths):6.2f} {np.mean(insides):6.0%}  {np.mean(own):.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--train", nargs="+", metavar="NETWORK")
    given = parser.parse_args()
    if given.train:
        train_on_digits(given.train)
        return
    if given.coverage:
        coverage()
        coverage_of_losses()
        coverage_of_unlike(given.measured)
        coverage_of_unknown_schedules()
        return
    tables = {published_curves.SMALL_FILE: small_table(), published_curves.LOSS_FILE: loss_table()}
    if given.measured is not None:
        tables[published_curves.FILE] = table(given.measured)
    for file, data in tables.items():
        text = json.dumps(data, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n"
        if given.write:
            file.write_text(text)
        is_same = file.exists() and file.read_text() == text
        print(f"{file.name}: {len(text):,} bytes, {'as it is' if is_same else 'differs'}")


if __name__ == "__main__":
    main()
