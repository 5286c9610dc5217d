"""Depth and device: what the training curves of some networks tell of one never trained, and whether the device matters.

Published runs: ResNets of five depths on CIFAR-10, each on K80, P100 and V100; SGD with rate 0.01 and momentum 0.9, batch 128,
350 epochs, no schedule; and three of ResNet-50, which nothing is fitted to. Own runs: 6n + 2 ResNets on a part of CIFAR-10, a few epochs, with a depth that is left to predict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section
from chronograd.data.trace_job import trace_job
from chronograd.errors import InputError
from chronograd.figure import Figure, Lines, Series
from chronograd.forecast.curves import FAMILIES
from chronograd.job import Job
from chronograd.units import number, percent
from chronograd.words import how_many, signed_percent
from chronograd_lab.common import depth_runs as runs_of
from chronograd_lab.common import optimus_chain as chain
from chronograd_lab.common.arms import Arm, job_of, train_arms
from chronograd_lab.common.curve_regression import EPOCH_BY_EPOCH, Run, epochs_to
from chronograd_lab.common.depth_runs import AT_BOUND, CIFAR, FEATURES, FULL, IMAGENET, OPTIMUS, Logs
from chronograd_lab.common.optimus_chain import BEFORE, CHAIN, FORECAST, TARGET
from chronograd_lab.common.optimus_sections import (
    OF_LARGEST,
    alike,
    curve_section,
    epochs_section,
    epochs_words,
    held_counts,
    kinds_section,
    name_of,
    regression_section,
    share_of,
    signed_share,
    triples_section,
)
from chronograd_lab.common.published_runs import HELD_BACK, MEASURED_VARIABLE
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, mean, shown
from chronograd_lab.common.runner import StudyRunner, curve
from chronograd_lab.common.study import Study, listed, table

Rows = dict[str, list[Row]]
Curves = dict[str, dict[str, list[float | None]]]
PUBLISHED, OWN, TRUTH = "published", "own", "truth"
OWN_FEATURES: dict[str, tuple[str, ...]] = {"none": (), "depth": ("depth",), "params, MACs": ("params", "macs")}
BESIDE = "depth"  # the regression that the exercise asks for
FACTOR = "off by\na factor of"


def job(settings: Settings, network: str) -> Job:
    """On one core, with the optimizer of the published runs: no weight decay, no schedule, no augmentation."""
    parts = {"cluster": {"device": "cpu", "threads": 1}}
    return job_of(settings, network, parts=parts, recipe="sgd-momentum", weight_decay=0.0)


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    """Raises InputError if published runs are wanted and not there."""
    folder, accuracies = _published(settings, runner.truth), settings["accuracy_targets"]
    rows: Rows = {}
    curves: Curves = {}
    notes: list[str] = []
    if settings["networks"]:
        own = _own(runner, settings)
        known, held = own.of([settings["target"]], False), own.of([settings["target"]])
        _add(rows, runs_of.analysed(known, notes))
        _score(rows, curves, known, held)
    if folder is not None:
        published = runs_of.read_logs(PUBLISHED, sorted(folder.glob("history*.json")), accuracies)
        found, drawn = of_published(published, settings["ahead"], notes)
        _add(rows, found)
        curves |= drawn
        if runner.truth:
            truth = runs_of.read_logs(TRUTH, runner.truth, accuracies)
            _score(rows, curves, published.of(truth.networks, False), truth)
    elif settings["published"]:
        notes.append(f"the published runs are not at hand: {MEASURED_VARIABLE} names no folder with them")
    return runner.results(settings, rows=rows, curves=curves, notes=notes)


def of_published(published: Logs, ahead: Sequence[int], notes: list[str]) -> tuple[Rows, Curves]:
    """What the published runs say: of themselves, of each network left out, and of depths of which they have none."""
    rows: Rows = {}
    curves: Curves = {}
    analysed = runs_of.analysed(published, notes)
    slopes = runs_of.slope_rows(published, analysed["coefficients"])
    _add(rows, {**analysed, "devices": runs_of.device_rows(published, notes), "slopes": slopes})
    _add(rows, {"triples": chain.triple_rows(published), "pairs": chain.pair_rows(published)})
    form, features = (analysed["chosen"][0][key] for key in ("form", "features"))
    for network in published.networks:
        kept, held = published.of([network], False), published.of([network])
        curves |= dict(runs_of.curve_columns(kept, held, form, features, BESIDE))
    for depth in ahead:
        if len({run.labels["family"] for run in published.runs}) > 1 and len(published.reached) == len(
            published.targets
        ):
            _add(rows, chain.ahead_rows(published, runs_of.ahead(depth, published).runs[0]))
            held_back = _held_back(depth, published)
            curves |= dict(chain.curve_columns(published, runs_of.ahead(depth, published).runs[0], held_back))
            if held_back is not None:
                _add(
                    rows,
                    {
                        "held": chain.epoch_rows(published, held_back),
                        "held_curves": chain.score_rows(published, held_back),
                    },
                )
                _add(rows, {"held_runs": _test_accuracies()})
    return rows, curves


def _held_back(depth: int, published: Logs) -> Logs | None:
    """Runs of that depth that were kept aside; None if they are not at hand."""
    folder = runs_of.published_folder(HELD_BACK)
    files = sorted(folder.glob(f"history{depth}_*.json")) if folder else []
    accuracies = [float(target.split()[1]) / 100 for target in published.targets]
    return runs_of.read_logs("held back", files, accuracies) if files else None


def _test_accuracies() -> list[Row]:
    """The highest accuracy on the test set of each run that was kept aside."""
    folder = runs_of.published_folder(HELD_BACK)
    assert folder is not None
    accuracies = {
        path.stem.partition("_")[2]: json.loads(path.read_text()).get("val_acc")
        for path in sorted(folder.glob("*.json"))
    }
    return [{"run": run, "best_test_accuracy": max(values) if values else None} for run, values in accuracies.items()]


def _published(settings: Settings, truth: Sequence[Path]) -> Path | None:
    """Where they are, where they are wanted; what is scored by them is read once before anything runs."""
    folder = runs_of.published_folder() if settings["published"] or truth else None
    if folder is None and (truth or not settings["networks"]):
        raise InputError(
            f"the published runs are not at hand: {MEASURED_VARIABLE} names no folder with them",
            "name the folder of measured runs there, or leave --truth out and run --size laptop",
        )
    if truth:
        runs_of.read_logs(TRUTH, truth, settings["accuracy_targets"])
    return folder


def _own(runner: StudyRunner, settings: Settings) -> Logs:
    """Own runs, seeds in place of devices: trained networks and the one left to predict."""
    runner.threads = 1
    arms = [
        Arm(network, job(settings, network), seeds=range(settings["seeds"]))
        for network in (*settings["networks"], settings["target"])
    ]
    traces = {arm.name: trace_job(arm.job) for arm in arms}
    runs, epochs = [], []
    for one in train_arms(runner, arms):
        losses = np.array(curve(one.run.record())["train_loss"], dtype=float)
        trace, depth = traces[one.arm.name], one.arm.name.removeprefix("resnet").removesuffix("-cifar")
        numbers = {"depth": float(depth), "params": float(trace.params), "macs": float(trace.macs())}
        runs.append(Run(one.arm.name, numbers, {"family": CIFAR, "seed": str(one.seed)}, losses))
        epochs.append([epochs_to(losses, target) or np.nan for target in settings["loss_targets"]])
    targets = tuple(f"loss {target:g}" for target in settings["loss_targets"])
    return Logs(OWN, tuple(runs), OWN_FEATURES, targets, np.array(epochs, dtype=float))


def _score(rows: Rows, curves: Curves, known: Logs, held: Logs) -> None:
    """Real runs of networks that the known ones do not have, against what these predict, each way."""
    errors, _, chosen = runs_of.choice(known)
    form, features = chosen["form"], chosen["features"]
    forms = tuple(dict.fromkeys((form, runs_of.best_formula(errors), OPTIMUS)))
    scored = runs_of.truth_rows(known, held, forms)
    _add(rows, {"scored": scored, "scored_epochs": runs_of.truth_epoch_rows(known, held)})
    if held.name == TRUTH:
        _add(rows, {"chosen": [{**chosen, "set": TRUTH}]})
    curves |= dict(runs_of.curve_columns(known, held, form, features, BESIDE))


def _add(rows: Rows, more: Rows) -> None:
    for name, own in more.items():
        rows.setdefault(name, []).extend(own)


# -- the page ------------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows = results.rows
    sections, answers = [], []
    if matching(rows.get("scored", []), set=TRUTH):
        sections += [_scored_section(results, TRUTH, "Scored on further runs"), *_scored_epochs(results, TRUTH)]
    if matching(rows["networks"], set=PUBLISHED):
        triples, device = triples_section(rows), _device_section(rows)
        sections.append(triples)
        if rows.get("ahead"):
            curves, epochs = curve_section(results), epochs_section(rows)
            sections += [regression_section(rows), curves, epochs]
            answers = [section.takeaway for section in (triples, curves, epochs, device)]
        sections.append(device)
        if rows.get("ahead"):
            sections.append(kinds_section(rows))
        left = matching(rows["targets"], set=PUBLISHED)
        sections.append(_runs_section(rows, PUBLISHED, "The published runs"))
        if left and matching(rows["networks"], set=PUBLISHED, family=IMAGENET):
            sections.append(_confound_section(rows))
        sections.append(_validation_section(results))
        if left:
            sections.append(_targets_section(left, _chosen(rows, PUBLISHED)["target_features"]))
    if matching(rows["networks"], set=OWN):
        sections += [_runs_section(rows, OWN, "Our own runs"), _scored_section(results, OWN, "A depth left to predict")]
        sections += _scored_epochs(results, OWN)
    answer = STUDY.answer(results, sections, _highlights(rows))
    return replace(answer, summary=answers)


def _chosen(rows: Mapping[str, list[Row]], of_set: str) -> Row:
    return matching(rows["chosen"], set=of_set)[0]


def _errors(rows: Sequence[Row], of: str = "") -> str:
    return f"{share_of(mean(rows, 'mape'))} ({share_of(mean(rows, 'error_of_largest'))}{of})"


def _marked(name: str, ours: str) -> str:
    return f"{name} ←" if name == ours else name


def _runs_section(rows: Mapping[str, list[Row]], of_set: str, title: str) -> Section:
    """Per network: features, epochs to the targets in each of its runs, and the coefficients of Optimus' form."""
    own, fits = matching(rows["networks"], set=of_set), matching(rows["coefficients"], set=of_set)
    networks = grouped(sorted(own, key=lambda row: row["depth"]), "network")
    targets, forms = list(own[0]["epochs"]), list(dict.fromkeys((OPTIMUS, *distinct(fits, "form"))))
    columns: dict[str, Any] = {
        "network": str, "params, M": lambda n: f"{networks[n][0]['params'] / 1e6:.3g}",
        "MACs, M": lambda n: f"{networks[n][0]['macs'] / 1e6:.3g}",
    }  # fmt: skip
    for target in targets:
        columns[f"epochs to\n{target}"] = lambda n, target=target: ", ".join(
            str(run["epochs"][target] or "–") for run in networks[n]
        )
    for form in forms:
        by_network = grouped(matching(fits, form=form), "network")
        columns[f"{form}:\n{', '.join(FAMILIES[form].names)}"] = lambda n, by_network=by_network: "\n".join(
            f"{value:.3g}" if value > AT_BOUND else "0"
            for value in np.mean([row["coefficients"] for row in by_network[n]], axis=0)
        )
        columns[f"{form}:\nerror"] = lambda n, by_network=by_network: share_of(mean(by_network[n], "error_of_largest"))
    error, better = (mean(fits, "error_of_largest", form=form) for form in (OPTIMUS, forms[-1]))
    labels = ", ".join(dict.fromkeys(str(row.get("device") or f"seed {row['seed']}") for row in own))
    article = {"exponential": "an exponential", "power": "a power law"}.get(forms[-1], "another")
    return Section(
        title,
        f"The curves are closer to {article} than to 1/(b0·k + b1) + b2: off by {share_of(better)} of the largest loss "
        f"against {share_of(error)}. {_fewest(own, targets[-1])}",
        intro=f"Epochs are given for {labels}; coefficients are means over these runs, of the weighted fit to losses as they are, "
        "and errors the mean of |fit − loss| over the largest loss.",
        table=table(networks, columns),
    )


def _fewest(rows: Sequence[Row], target: str) -> str:
    """Which network needs the fewest epochs, and whether it is the deepest."""
    networks = grouped(rows, "network")
    epochs = {network: mean([row["epochs"] for row in own], target) for network, own in networks.items()}
    reached = {network: value for network, value in epochs.items() if value is not None}
    if not reached:
        return f"None reached {target}."
    first = min(reached, key=lambda network: reached[network])
    which = "the deepest" if networks[first][0]["depth"] == max(row["depth"] for row in rows) else "not the deepest"
    return f"Fewest epochs to {target} needs {first}, {which} ({number(reached[first], '.1f')})."


def _device_section(rows: Mapping[str, list[Row]]) -> Section:
    title, tested, pairs = "Does the device matter?", rows["devices"], rows["pairs"]
    if not tested:
        return Section(title, "It could not be tested: see what fell short.")
    least, worst = min(row["p_value"] for row in tested), max(row["spread"] for row in tested)
    bounds = [abs(bound) for row in pairs for bound in (row["low"], row["high"]) if bound is not None]
    is_none = least * len(tested) > 0.05 and not any(row["is_seen"] for row in pairs)
    verdict = (
        "Epochs do not depend on the device, as far as these runs can tell" if is_none else "Epochs differ by device"
    )
    by_target = grouped(pairs, "target")
    held = matching(rows.get("held", []), rule=CHAIN, target=TARGET)
    alone = ", ".join(f"{row['seen']:.0f} ({row['run']})" for row in held)
    lines = [
        f"The runs of {name_of(held[0]['network'])} took {alone} epochs to 92 %. With one run on each device that may be chance: their "
        "losses jump, at other epochs in each."
    ] if held else []  # fmt: skip

    def apart(row: Row) -> str:
        told = [
            f"{r['a']} − {r['b']}: {_signed_1(r['ratio'])} ({_signed_1(r['low'])} to {_signed_1(r['high'])})"
            for r in by_target.get(row["target"], [])
        ]
        return "\n".join(told)

    return Section(
        title,
        f"{verdict}: of {len(pairs)} differences between two devices none is told from 0, and all are within {percent(max(bounds, default=0.0), 0)} "
        f"with 95 % confidence." if is_none else
        f"{verdict}: the least p of {len(tested)} targets is {least:.2f}, and device means differ by up to {percent(worst)}.",
        intro="A device does the same arithmetic, so only the time of an epoch should depend on it. Log epochs to a training "
        "accuracy, less each network's mean: of each two devices Welch's interval, networks as repeats; and over all devices an "
        f"exact test over {tested[0]['num_permutations']:,} permutations within networks. A whole epoch is the resolution: rounding "
        "alone is a noise of 0.29 epochs.",
        lines=lines,
        table=table(tested, {
            "target": lambda row: row["target"].partition(" ")[2], "mean epochs": ("mean_epochs", "{:.1f}".format),
            "difference of two devices (95 %)": apart, "p of any\ndifference": ("p_value", "{:.2f}".format),
            "largest mean\nover the least": lambda row: f"+{percent(row['spread'])}",
            "noise,\nepochs": lambda row: f"{row['noise'] * row['mean_epochs']:.2f}",
        }),
    )  # fmt: skip


def _signed_1(error: float | None) -> str:
    return shown(error, lambda share: percent(share) if share < 0 else f"+{percent(share)}")


def _confound_section(rows: Mapping[str, list[Row]]) -> Section:
    """Slopes over depth with and without the other family, and what each regression says of it."""
    params = {row["network"]: row["params"] for row in matching(rows["networks"], set=PUBLISHED)}
    outsider = next((row["network"] for row in rows["networks"] if row.get("family") == IMAGENET), "")
    left = matching(rows["targets"], set=PUBLISHED)
    body, slopes_of_target = [], ""
    for y, slopes in grouped(rows["slopes"], "target").items():
        cells = [f"{row['slope']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})" for row in slopes]
        of_target = matching(left, network=outsider, target=y)
        by = [mean(of_target, "seen"), *(mean(of_target, "epochs", features=name) for name in FEATURES)]
        body.append([y, *cells, *(shown(value, "{:.1f}".format) for value in by)])
        if of_target:
            slopes_of_target = f"{y}: {cells[0]} with {outsider}, {cells[1]} without"
    by_depth, by_all = (share_of(mean(left, "error", network=outsider, features=name)) for name in ("depth", FULL))
    full = matching(left, features=FULL)
    leverage = mean(full, "leverage", network=outsider) or 0.0
    others = max(row["leverage"] for row in full if row["network"] != outsider)
    return Section(
        "The confound at depth 18",
        f"d log epochs / d log depth, {slopes_of_target}. Predicted from the {CIFAR} networks, epochs of {outsider} are off by "
        f"{by_depth} by depth and by {by_all} by {FULL}, the latter partly by luck.",
        intro=f"The network of depth 18 is not the shallowest of one kind: it is {outsider}, an ImageNet-style network with "
        f"{params[outsider] / min(params.values()):.0f} times the params of the smallest; the others are {CIFAR}. So depth and "
        "family cannot be told apart. Slopes are d log y / d log depth, of epochs and of the coefficients above 0, with the "
        f"80 % interval; at the right is what the others say of {outsider}. Luck, as params and MACs go together within {CIFAR}: "
        f"what each of them does is not known from those, and the leverage is {leverage:.0f}, where that of other networks left "
        f"out is at most {others:.1f}.",
        table=listed(
            ["y", "slope,\nall networks", f"slope,\n{CIFAR} only", "real\nepochs", *(f"by\n{n}" for n in FEATURES)],
            body,
        ),
    )


def _validation_section(results: Results) -> Section:
    """Curves of networks left out: errors by form and features, and the curves themselves."""
    rows, chosen = matching(results.rows["curves"], set=PUBLISHED), _chosen(results.rows, PUBLISHED)
    outside = {row["network"] for row in results.rows["networks"] if row.get("family") == IMAGENET}
    body = []
    for (form, features), own in grouped(rows, "form", "features").items():
        of_family = [row for row in own if row["network"] not in outside]
        whole, inside = ([share_of(mean(of, key)) for key in ("mape", "error_of_largest")] for of in (own, of_family))
        name = _marked(features, chosen["features"]) if form == chosen["form"] else features
        body.append([form, name, *whole, f"{mean(own, 'factor'):,.3g}", *inside])
    within = f"{CIFAR} only:\npercentage error"
    columns = ["form", "features", "percentage error", OF_LARGEST, FACTOR, within, OF_LARGEST]
    ours = matching(rows, form=chosen["form"], features=chosen["features"])
    plain = matching(rows, form=OPTIMUS, features="depth and device")
    again = matching(rows, features="its other runs")
    return Section(
        "The curve of a depth never trained",
        f"Our prediction is {_curve_of(chosen)}: it has the least percentage error of networks left out, "
        f"{_errors(ours, ' of the largest loss')}, where the runs of the very network on other devices are off by "
        f"{share_of(mean(again, 'mape'))}. The coefficients of Optimus' form on depth and device: {_errors(plain)}.",
        intro="Every network in turn is left out, its runs on all devices together, and predicted from the others. Percentage "
        "errors are means of |predicted / loss − 1| over all epochs, which losses near 0 make explode; the factor is exp of the "
        f"mean |log(predicted / loss)|. `{EPOCH_BY_EPOCH}` has no formula: the log loss of each epoch is regressed by itself. "
        "The device is a category.",
        figure=Figure(_panels(results, PUBLISHED)),
        caption="Real runs as points, our prediction with its 80 % interval, and that by depth alone dashed.",
        table=listed(columns, body, 2),
    )


def _curve_of(chosen: Row) -> str:
    by = "of the mean network" if chosen["features"] == "none" else f"on {chosen['features']}"
    return f"“{chosen['form']} {by}”"


def _panels(results: Results, of_set: str) -> list[Lines]:
    """One per network: its runs as points, our prediction with its band, that by depth dashed."""
    panels = []
    for name, columns in results.curves.items():
        if not name.startswith(f"{of_set}: "):
            continue
        x = [float(epoch or 0) for epoch in columns["epoch"]]
        series = [Series("our prediction", "predicted", x, columns["predicted"], columns["low"], columns["high"])]
        series.append(Series("by depth", "reference", x, columns["depth"]))
        runs = [key for key in columns if key not in ("epoch", "predicted", "low", "high", "depth")]
        series += [Series(run, "measured", x, columns[run]) for run in runs]
        label = f"epoch, {name.partition(': ')[2]}"
        panels.append(Lines(label, "training loss", series, log_x=x[-1] > 50, log_y=True))
    return panels


def _bias(rows: Sequence[Row]) -> str:
    """Mean of predicted over real, less 1, of epochs to a target."""
    off = [row["epochs"] / row["seen"] - 1 for row in rows if row["seen"]]
    return signed_percent(float(np.mean(off))) if off else "–"


def _targets_section(rows: Sequence[Row], ours_by: str) -> Section:
    targets = distinct(rows, "target")
    columns: dict[str, Any] = {"features": lambda own: _marked(own[0]["features"], ours_by)}
    columns |= {t: lambda own, target=t: share_of(mean(own, "error", target=target)) for t in targets}
    columns["mean"] = lambda own: share_of(mean(own, "error"))
    columns["bias"] = _bias
    columns["within its own\n80 % interval"] = lambda own: _inside(own, "low_alone", "high_alone")
    ours = matching(rows, features=ours_by)
    return Section(
        "Epochs to an accuracy of a network left out",
        f"Our prediction, the one with the least error, is by {ours_by}: off by {share_of(mean(ours, 'error'))} on average "
        f"(bias {_bias(ours)}){_beside(rows, ours)}. {_inside(ours)} lie within the 80 % interval of all regressions together.",
        intro="Log epochs are regressed themselves; errors are means of |predicted / real − 1| over networks left out and their "
        "runs. The intervals given with predictions hold all regressions in equal parts: which of them goes on where no network "
        "has been is not known.",
        table=table(grouped(rows, "features").values(), columns),
    )


def _beside(rows: Sequence[Row], ours: Sequence[Row]) -> str:
    """What it would be by depth alone, where that is not our prediction."""
    is_depth = ours[0]["features"] == "depth"
    return "" if is_depth else f", by depth alone {share_of(mean(rows, 'error', features='depth'))}"


def _inside(rows: Sequence[Row], low: str = "low", high: str = "high") -> str:
    inside = [row[low] <= row["seen"] <= row[high] for row in rows if row["seen"] is not None]
    return f"{sum(inside)} of {len(inside)}"


def _scored_section(results: Results, of_set: str, title: str) -> Section:
    rows, chosen = matching(results.rows["scored"], set=of_set), _chosen(results.rows, of_set)
    form, by_form = chosen["form"], sorted(grouped(rows, "form", "features").items(), key=lambda item: item[0][0])
    groups = [own for _, of_form in by_form for own in grouped(of_form, "network").values()]
    ours, depth = (matching(rows, form=form, features=features) for features in (chosen["features"], "depth"))
    runs = ", ".join(dict.fromkeys(f"{row['network']} ({row['run']})" for row in rows))
    return Section(
        title,
        f"Our prediction, {_curve_of(chosen)}, is off by {_errors(ours, ' of the largest loss')}; by depth alone "
        f"{_errors(depth)}. {share_of(mean(ours, 'inside'))} of the epochs lie within the 80 % interval.",
        intro=f"Runs that no prediction has seen: {runs}. Our prediction is the one with the least error of networks left out, "
        "before these runs are read.",
        figure=Figure(_panels(results, of_set)),
        caption="Real runs as points, our prediction with its 80 % interval, and that by depth alone dashed.",
        table=table(groups, {
            "network": lambda own: own[0]["network"], "form": lambda own: own[0]["form"],
            "features": lambda own: _marked(own[0]["features"], chosen["features"] if own[0]["form"] == form else ""),
            "percentage error": lambda own: share_of(mean(own, "mape")),
            OF_LARGEST: lambda own: share_of(mean(own, "error_of_largest")),
            FACTOR: lambda own: f"{mean(own, 'factor'):,.3g}",
            "epochs within\nthe 80 % interval": lambda own: share_of(mean(own, "inside")),
        }, text=3),
    )  # fmt: skip


def _scored_epochs(results: Results, of_set: str) -> list[Section]:
    """None, if there is no target that all known runs reached."""
    rows = matching(results.rows["scored_epochs"], set=of_set)
    if not rows:
        return []
    ours_by = _chosen(results.rows, of_set)["target_features"]
    groups = grouped(rows, "network", "target", "features")
    ours = matching(rows, features=ours_by)
    columns: dict[str, Any] = {
        "network": lambda own: own[0]["network"], "target": lambda own: own[0]["target"],
        "features": lambda own: _marked(own[0]["features"], ours_by),
        "predicted epochs": lambda own: epochs_words(own[0]),
        "real epochs": lambda own: ", ".join(shown(row["seen"], "{:.0f}".format) for row in own),
        "error": lambda own: share_of(mean(own, "error")),
    }  # fmt: skip
    takeaway = (
        f"Our prediction, by {ours_by}, is off by {share_of(mean(ours, 'error'))} on average (bias {_bias(ours)})"
        f"{_beside(rows, ours)}; "
        f"{_inside(ours)} lie within the 80 % interval."
    )
    title = "Its epochs to a target" if of_set == OWN else "Their epochs to a target"
    in_order = [groups[key] for key in sorted(groups, key=lambda key: key[:2])]
    return [Section(title, takeaway, table=table(in_order, columns, text=3))]


def _highlights(rows: Mapping[str, list[Row]]) -> list[Highlight]:
    highlights = []
    for row in matching(rows.get("ahead", []), rule=CHAIN, target=TARGET):
        detail = f"{number(row['low'], '.1f')} to {number(row['high'], '.1f')}"
        real = [r["seen"] for r in alike(rows.get("held", []), row)]
        detail += f"; real {min(real):.0f} to {max(real):.0f}" if real else ""
        highlights.append(
            Highlight(f"epochs of {name_of(row['network'])} to 92 %, predicted", number(row["epochs"], ".1f"), detail)
        )
    said = [row for row in matching(rows.get("held", []), rule=BEFORE) if row["target"] in FORECAST]
    if said:
        off = signed_share(mean(said, "error"))
        highlights.append(
            Highlight("error of the forecast made beforehand", off, f"its interval held {held_counts(said)}")
        )
    for of_set, name in ((TRUTH, "scored_epochs"), (PUBLISHED, "targets"), (OWN, "scored_epochs")):
        own = matching(rows.get(name, []), set=of_set)
        if own:
            ours = matching(own, features=_chosen(rows, of_set)["target_features"])
            error, detail = share_of(mean(ours, "error")), f"networks left out{_beside(own, ours)}"
            highlights.append(
                Highlight(f"error of the epochs of a known kind, {how_many(of_set, 'runs')}", error, detail)
            )
    return highlights


_ACCURACIES = [0.9, 0.92, 0.95, 0.99]
_SMOKE = {
    "data": "digits", "samples": 100, "test_samples": 20, "image_size": 8, "networks": ["resnet8", "resnet14", "resnet20"],
    "target": "resnet32", "epochs": 3, "batch": 20, "learning_rate": 0.01, "momentum": 0.9, "seeds": 1,
    "loss_targets": [2.2], "published": False, "accuracy_targets": _ACCURACIES, "ahead": [],
}  # fmt: skip
_LAPTOP = {
    "data": "cifar10", "samples": 2000, "test_samples": 200, "image_size": 16,
    "networks": ["resnet8", "resnet14", "resnet20", "resnet32", "resnet44"], "target": "resnet50-cifar", "epochs": 16,
    "batch": 32, "learning_rate": 0.01, "momentum": 0.9, "seeds": 2, "loss_targets": [1.75, 1.5, 1.25], "published": True,
    "accuracy_targets": _ACCURACIES, "ahead": [50],
}  # fmt: skip
_PAPER = {"networks": [], "published": True, "accuracy_targets": _ACCURACIES, "ahead": [50]}

STUDY = Study(
    name="depth-and-device",
    question="What do the training curves of some networks tell of one never trained, and do epochs depend on the device?",
    hypothesis="Epochs to an accuracy are a matter of the network and the same on every device; deeper networks of one family "
    "need fewer, and depth alone cannot tell of another family",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    computed=page,
    truth="logs of further runs, history{depth}_{device}.json: depth 18, 34, 50, 101, 152 are torchvision's, others 6n + 2",
)
