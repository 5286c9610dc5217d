"""Tables and figures of the published runs, of our runs, and of the network predicted from them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Figure, Lines, Series
from chronograd.forecast.curves import FAMILIES
from chronograd.units import number, percent
from chronograd.units import signed as minus
from chronograd.words import signed_percent
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import distinct, grouped, matching, mean, shown
from chronograd_lab.common.study import listed, table
from chronograd_lab.common.written import Block
from chronograd_lab.studies.depth_and_device.depth_runs import AT_BOUND, CIFAR, FEATURES, IMAGENET, OPTIMUS
from chronograd_lab.studies.depth_and_device.optimus_chain import AFTER, BEFORE, CHAIN, FORECAST, RULES

Rows = Mapping[str, list[Row]]
PUBLISHED, OWN, TRUTH = "published", "own", "truth"
DEVICE_COLORS = {"K80": "vermilion", "P100": "teal", "V100": "purple"}
OF_LARGEST, FACTOR = "error of\nlargest loss", "off by\na factor of"
PANELS = {BEFORE: "made beforehand", CHAIN: "coefficients (afterwards)", AFTER: "mean network (afterwards)"}


def blocks(results: Results) -> dict[str, Block]:
    rows, made = results.rows, dict[str, Block]()
    if matching(rows.get("scored", []), set=TRUTH):
        made["Scored on further runs"] = _scored(results, TRUTH)
        made |= _scored_epochs(rows, TRUTH, "Their epochs to a target")
    if matching(rows["networks"], set=PUBLISHED):
        made |= _published(results)
    if matching(rows["networks"], set=OWN):
        made["Our own runs"] = Block(_networks(rows, OWN))
        made["A depth left to predict"] = _scored(results, OWN)
        made |= _scored_epochs(rows, OWN, "Its epochs to a target")
    return made


def _published(results: Results) -> dict[str, Block]:
    rows, made = results.rows, dict[str, Block]()
    count = "fifteen runs" if len(rows["triples"]) == 15 else "runs"
    made[f"Optimus' coefficients of the {count}"] = Block(_triples(rows))
    if ahead := rows.get("ahead"):
        network, real = name_of(ahead[0]["network"]), " and real" if rows.get("held") else ""
        made["Coefficients on depth and device"] = _regression(rows)
        made[f"{network}'s curve, predicted{real}"] = _curve(results)
        made[f"{network}'s epochs to 92 %"] = Block(_epochs(rows))
    made["Does the device matter?"] = Block(_devices(rows))
    if ahead:
        made["How far a kind is from the others"] = Block(_kinds(rows))
    made["The published runs"] = Block(_networks(rows, PUBLISHED))
    left = matching(rows["targets"], set=PUBLISHED)
    if left and matching(rows["networks"], set=PUBLISHED, family=IMAGENET):
        made["The confound at depth 18"] = Block(_confound(rows))
    made["The curve of a depth never trained"] = _left_out(results)
    if left:
        made["Epochs to an accuracy of a network left out"] = Block(_targets(left, _chosen(rows, PUBLISHED)))
    return made


# -- words of cells ------------------------------------------------------------------------------------


def share_of(value: float | None) -> str:
    """Return a percentage, or a dash.

    >>> share_of(0.00123), share_of(0.123), share_of(12.3), share_of(None)
    ('0.12 %', '12.3 %', '1,230 %', '–')
    """
    if value is None or value < 1:
        return shown(value, lambda share: percent(share, 2 if share < 0.01 else 1))
    return f"{100 * float(f'{value:.3g}'):,.0f} %"


def name_of(network: str) -> str:
    """Return the name of a network in the page.

    >>> name_of("torchvision:resnet18"), name_of("resnet20")
    ('ResNet-18', 'ResNet-20')
    """
    return network.rpartition(":")[2].replace("resnet", "ResNet-")


def epochs_words(row: Row) -> str:
    """Return predicted epochs with their interval."""
    value, low, high = (number(row[name], ".1f") for name in ("epochs", "low", "high"))
    return f"{value} ({low} to {high})"


def signed_share(error: float | None, digits: int = 0) -> str:
    """Return an error with its sign, as a percentage.

    >>> signed_share(-0.554), signed_share(0.1, 1)
    ('−55 %', '+10.0 %')
    """
    return shown(error, lambda share: percent(share, digits) if share < 0 else f"+{percent(share, digits)}")


def held_counts(held: Sequence[Row]) -> str:
    return f"{sum(row['low'] <= row['seen'] <= row['high'] for row in held)} of {len(held)}"


def inside(rows: Sequence[Row], low: str = "low", high: str = "high") -> str:
    within = [row[low] <= row["seen"] <= row[high] for row in rows if row["seen"] is not None]
    return f"{sum(within)} of {len(within)}"


def _slope(slope: Sequence[float]) -> str:
    return "{} ({} to {})".format(*(minus(f"{value:+.2f}") for value in slope))


def _rule(rule: str) -> str:
    """Return a rule and whether it was made beforehand or afterwards.

    >>> _rule("mean of the networks")
    'Mean of the networks (made afterwards)'
    """
    return f"{rule[0].upper()}{rule[1:]}{'' if rule == BEFORE else ' (made afterwards)'}"


def _accuracy(row: Row) -> str:
    return str(row["target"].partition(" ")[2])


def _marked(name: str, ours: str) -> str:
    return f"{name} ←" if name == ours else name


def _chosen(rows: Rows, of_set: str) -> Row:
    return matching(rows["chosen"], set=of_set)[0]


# -- the network ahead ---------------------------------------------------------------------------------


def _triples(rows: Rows) -> Table:
    """Return b0, b1 and b2 of each run, by a plain fit and by the weighted one."""

    def cell(fit: str, j: int) -> Any:
        return lambda row: f"{row[fit][j]:.3f}" if row[fit][j] > AT_BOUND else "0"

    columns: dict[str, Any] = {"network": lambda row: name_of(row["network"]), "device": "run"}
    for fit in ("plain", "weighted"):
        columns |= {f"{fit}:\nb{j}": cell(fit, j) for j in range(3)}
        columns[f"{fit}:\nerror"] = (f"{fit}_error", percent)
    columns["largest\nloss"] = ("largest_loss", "{:.2f}".format)
    return table(sorted(rows["triples"], key=lambda row: row["depth"]), columns, text=2)


def _regression(rows: Rows) -> Block:
    """Return coefficients against depth and device, and their values at the depth ahead."""

    def power(over: str) -> Any:
        return lambda row: _slope(row[f"slope_{over}"]) if f"slope_{over}" in row else "0 in every run"

    network = name_of(rows["ahead"][0]["network"])
    columns = {"coefficient": "coefficient", "power of depth, all": power("all"), f"{CIFAR} only": power(CIFAR)}
    for i, device in enumerate(rows["regression"][0]["devices"]):
        columns[f"{network}, {device},\npredicted"] = lambda row, i=i: f"{row['predicted'][i]:.3f}"
    real = {
        (row["run"], f"b{j}"): value for row in rows.get("held_triples", []) for j, value in enumerate(row["plain"])
    }
    real |= {(row["run"], "largest loss"): row["largest_loss"] for row in rows.get("held_triples", [])}
    for device in dict.fromkeys(device for device, _ in real):
        columns[f"{network}, {device},\nreal"] = lambda row, device=device: f"{real[device, row['coefficient']]:.3f}"
    return Block(table(rows["regression"], columns), Figure([_against_depth(rows, j) for j in (0, 1)]))


def _against_depth(rows: Rows, j: int) -> Lines:
    """Return b0 or b1 of the plain fit with the regression over all networks, that within one kind, and the network ahead."""
    triples = sorted([*rows["triples"], *rows.get("held_triples", [])], key=lambda row: row["depth"])
    ahead, fit = rows["ahead"][0]["network"], rows["regression"][j]
    of_kind, depths = matching(rows["triples"], family=CIFAR), distinct(triples, "depth")
    series = []
    for device, own in grouped(triples, "run").items():
        x, y = [row["depth"] for row in own], [row["plain"][j] for row in own]
        series.append(Series(device, "measured", x, y, color=DEVICE_COLORS.get(device, "")))
    # Each network has the same number of runs, so the means of logarithms give each the same weight.
    depth, level = (
        np.exp(np.mean(np.log(values)))
        for values in zip(*((row["depth"], row["plain"][j]) for row in of_kind), strict=True)
    )
    through = {"all networks": (fit["slope_all"][0], float(re.sub(r"\D", "", name_of(ahead))), np.mean(fit["predicted"])),
               f"{CIFAR} only": (fit[f"slope_{CIFAR}"][0], depth, level)}  # fmt: skip
    for (label, (power, at, value)), color in zip(through.items(), ("accent", "grey"), strict=True):
        line = [float(value * (x / at) ** power) for x in depths]
        series.append(Series(f"regression, {label}", "predicted", depths, line, color=color))
    return Lines("depth", f"b{j}", series, x_ticks=depths, title=f"b{j}, plain fit")


def _curve(results: Results) -> Block:
    """Return the curve of the network ahead by each rule, and real curves if there are any."""
    network, panels = name_of(results.rows["ahead"][0]["network"]), []
    for rule in RULES:
        columns = results.curves[f"{network}: {rule}"]
        x = [float(epoch or 0) for epoch in columns["epoch"]]
        series = [Series("predicted", "predicted", x, columns["predicted"], columns["low"], columns["high"])]
        devices = [name for name in columns if name in DEVICE_COLORS]
        series += [Series(device, "measured", x, columns[device], color=DEVICE_COLORS[device]) for device in devices]
        panels.append(Lines("epoch", "training loss", series, log_x=True, log_y=True, title=PANELS[rule]))
    scores = results.rows.get("held_curves")
    columns_of: dict[str, Any] = {
        "rule": lambda row: _rule(row["rule"]), "device": "run", "percentage error\nwhile it learns": ("mape_learning", share_of),
        "of all epochs": ("mape", share_of), OF_LARGEST: ("error_of_largest", share_of),
        "in the band\nwhile it learns": ("inside_learning", lambda share: percent(share, 0)),
        "of all epochs ": ("inside", lambda share: percent(share, 0)),
    }  # fmt: skip
    return Block(table(scores, columns_of, text=2) if scores else None, Figure(panels))


def _epochs(rows: Rows) -> Table:
    """Return the epochs of the network ahead to each target, by each rule, and those of real runs."""
    held = rows.get("held", [])

    def as_given(row: Row) -> Row:
        """Return the forecast as printed beforehand, if there was one."""
        given = FORECAST.get(row["target"]) if row["rule"] == BEFORE else None
        return row if given is None else {**row, **dict(zip(("epochs", "low", "high"), given, strict=True))}

    def alike(row: Row) -> list[Row]:
        return matching(held, rule=row["rule"], target=row["target"])

    columns: dict[str, Any] = {
        "rule": lambda row: _rule(row["rule"]), "target": _accuracy, "predicted epochs": lambda row: epochs_words(as_given(row)),
    }  # fmt: skip
    if held:
        columns["real epochs"] = lambda row: ", ".join(f"{one['seen']:.0f}" for one in alike(row))
        columns["error"] = lambda row: signed_share(mean(alike(row), "error"))
        columns["in the interval"] = lambda row: held_counts(alike(row))
    return table(rows["ahead"], columns, text=2)


def _kinds(rows: Rows) -> Table:
    """Return the errors for whole kinds left out, and for two others under other recipes."""
    body = []
    for (rule, kind), own in grouped(rows["kinds"], "rule", "kind").items():
        body.append([_rule(rule), f"{kind} from the other", *(f"{row['ratio']:.2f} ×" for row in own)])
    others = [{**row, "pair": " over ".join(row["kinds"])} for row in rows["other_kinds"]]
    for (recipe, pair), own in grouped(others, "recipe", "pair").items():
        body.append([f"our runs: {recipe}", pair, *(f"{row['ratio']:.2f} ×" for row in own)])
    targets = [row["target"].partition(" ")[2] for row in rows["levels"]]
    return listed(["rule", "left out", *targets], body, text=2)


# -- the runs ------------------------------------------------------------------------------------------


def _devices(rows: Rows) -> Table:
    by_target = grouped(rows["pairs"], "target")

    def apart(row: Row) -> str:
        signed = [
            [signed_share(r[name], 1) for name in ("ratio", "low", "high")] for r in by_target.get(row["target"], [])
        ]
        names = [f"{r['a']} − {r['b']}" for r in by_target.get(row["target"], [])]
        return "\n".join(
            f"{name}: {ratio} ({low} to {high})" for name, (ratio, low, high) in zip(names, signed, strict=True)
        )

    return table(rows["devices"], {
        "target": _accuracy, "mean epochs": ("mean_epochs", "{:.1f}".format),
        "difference of two devices (95 %)": apart, "p of any\ndifference": ("p_value", "{:.2f}".format),
        "largest mean\nover the least": lambda row: f"+{percent(row['spread'])}",
        "noise,\nepochs": lambda row: f"{row['noise'] * row['mean_epochs']:.2f}",
    })  # fmt: skip


def _networks(rows: Rows, of_set: str) -> Table:
    """Return the features of each network, the epochs of each run to the targets, and the coefficients of the forms."""
    own, fits = matching(rows["networks"], set=of_set), matching(rows["coefficients"], set=of_set)
    networks = grouped(sorted(own, key=lambda row: row["depth"]), "network")
    columns: dict[str, Any] = {
        "network": str, "params, M": lambda n: f"{networks[n][0]['params'] / 1e6:.3g}",
        "MACs, M": lambda n: f"{networks[n][0]['macs'] / 1e6:.3g}",
    }  # fmt: skip
    for target in own[0]["epochs"]:
        columns[f"epochs to\n{target}"] = lambda n, target=target: ", ".join(
            str(run["epochs"][target] or "–") for run in networks[n]
        )
    for form in dict.fromkeys((OPTIMUS, *distinct(fits, "form"))):
        by_network = grouped(matching(fits, form=form), "network")
        columns[f"{form}:\n{', '.join(FAMILIES[form].names)}"] = lambda n, by_network=by_network: "\n".join(
            f"{value:.3g}" if value > AT_BOUND else "0"
            for value in np.mean([row["coefficients"] for row in by_network[n]], axis=0)
        )
        columns[f"{form}:\nerror"] = lambda n, by_network=by_network: share_of(mean(by_network[n], "error_of_largest"))
    return table(networks, columns)


def _confound(rows: Rows) -> Table:
    """Return slopes over depth with and without the other family, and the prediction of each regression for it."""
    (outsider,) = distinct(rows["networks"], "network", set=PUBLISHED, family=IMAGENET)
    body = []
    for y, slopes in grouped(rows["slopes"], "target").items():
        of_target = matching(rows["targets"], set=PUBLISHED, network=outsider, target=y)
        by = [mean(of_target, "seen"), *(mean(of_target, "epochs", features=name) for name in FEATURES)]
        cells = [_slope([row[end] for end in ("slope", "low", "high")]) for row in slopes]
        body.append([y, *cells, *(shown(value, "{:.1f}".format) for value in by)])
    heads = ["y", "slope,\nall networks", f"slope,\n{CIFAR} only", "real\nepochs", *(f"by\n{n}" for n in FEATURES)]
    return listed(heads, body)


def _left_out(results: Results) -> Block:
    """Return curves of networks left out: errors by form and features, and the curves themselves."""
    rows, chosen = matching(results.rows["curves"], set=PUBLISHED), _chosen(results.rows, PUBLISHED)
    outside = distinct(results.rows["networks"], "network", family=IMAGENET)
    body = []
    for (form, features), own in grouped(rows, "form", "features").items():
        of_family = [row for row in own if row["network"] not in outside]
        whole, family = ([share_of(mean(of, name)) for name in ("mape", "error_of_largest")] for of in (own, of_family))
        name = _marked(features, chosen["features"]) if form == chosen["form"] else features
        body.append([form, name, *whole, f"{mean(own, 'factor'):,.3g}", *family])
    within = f"{CIFAR} only:\npercentage error"
    columns = ["form", "features", "percentage error", OF_LARGEST, FACTOR, within, OF_LARGEST]
    return Block(listed(columns, body, 2), Figure(_panels(results, PUBLISHED)))


def _panels(results: Results, of_set: str) -> list[Lines]:
    """Return one panel per network: its runs as points, our prediction with its band, the prediction by depth dashed."""
    panels = []
    for name, columns in results.curves.items():
        if not name.startswith(f"{of_set}: "):
            continue
        x = [float(epoch or 0) for epoch in columns["epoch"]]
        series = [Series("our prediction", "predicted", x, columns["predicted"], columns["low"], columns["high"])]
        series.append(Series("by depth", "reference", x, columns["depth"]))
        runs = [run for run in columns if run not in ("epoch", "predicted", "low", "high", "depth")]
        series += [Series(run, "measured", x, columns[run]) for run in runs]
        label = f"epoch, {name.partition(': ')[2]}"
        panels.append(Lines(label, "training loss", series, log_x=x[-1] > 50, log_y=True))
    return panels


def _targets(rows: Sequence[Row], chosen: Row) -> Table:
    def bias(own: Sequence[Row]) -> str:
        off = [row["epochs"] / row["seen"] - 1 for row in own if row["seen"]]
        return signed_percent(float(np.mean(off))) if off else "–"

    columns: dict[str, Any] = {"features": lambda own: _marked(own[0]["features"], chosen["target_features"])}
    for target in distinct(rows, "target"):
        columns[target] = lambda own, target=target: share_of(mean(own, "error", target=target))
    columns["mean"] = lambda own: share_of(mean(own, "error"))
    columns["bias"] = bias
    columns["within its own\n80 % interval"] = lambda own: inside(own, "low_alone", "high_alone")
    return table(grouped(rows, "features").values(), columns)


def _scored(results: Results, of_set: str) -> Block:
    rows, chosen = matching(results.rows["scored"], set=of_set), _chosen(results.rows, of_set)
    by_form = sorted(grouped(rows, "form", "features").values(), key=lambda own: own[0]["form"])
    columns: dict[str, Any] = {
        "network": lambda own: own[0]["network"], "form": lambda own: own[0]["form"],
        "features": lambda own: _marked(own[0]["features"], chosen["features"] if own[0]["form"] == chosen["form"] else ""),
        "percentage error": lambda own: share_of(mean(own, "mape")),
        OF_LARGEST: lambda own: share_of(mean(own, "error_of_largest")),
        FACTOR: lambda own: f"{mean(own, 'factor'):,.3g}",
        "epochs within\nthe 80 % interval": lambda own: share_of(mean(own, "inside")),
    }  # fmt: skip
    groups = [own for of_form in by_form for own in grouped(of_form, "network").values()]
    return Block(table(groups, columns, text=3), Figure(_panels(results, of_set)))


def _scored_epochs(rows: Rows, of_set: str, title: str) -> dict[str, Block]:
    """Return predicted and real epochs to the targets; no section if all known runs share no target."""
    groups = grouped(matching(rows["scored_epochs"], set=of_set), "network", "target", "features")
    columns: dict[str, Any] = {
        "network": lambda own: own[0]["network"], "target": lambda own: own[0]["target"],
        "features": lambda own: _marked(own[0]["features"], _chosen(rows, of_set)["target_features"]),
        "predicted epochs": lambda own: epochs_words(own[0]),
        "real epochs": lambda own: ", ".join(shown(row["seen"], "{:.0f}".format) for row in own),
        "error": lambda own: share_of(mean(own, "error")),
    }  # fmt: skip
    in_order = [groups[name] for name in sorted(groups, key=lambda name: name[:2])]
    return {title: Block(table(in_order, columns, text=3))} if groups else {}
