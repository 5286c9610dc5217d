"""What is said of Optimus' coefficients of the published runs, and of a network of another kind that follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chronograd.answer import Section
from chronograd.figure import Figure, Lines, Series
from chronograd.units import number, percent
from chronograd.words import how_many
from chronograd_lab.common.depth_runs import AT_BOUND, CIFAR
from chronograd_lab.common.optimus_chain import AFTER, BEFORE, CHAIN, FORECAST, RULES, TARGET
from chronograd_lab.common.results import Results, Row
from chronograd_lab.common.rows import distinct, grouped, matching, mean, shown
from chronograd_lab.common.study import listed, table

SOURCE = "github.com/alexunxus/DLSP_hw4_p4"
DEVICE_COLORS = {"K80": "vermilion", "P100": "teal", "V100": "purple"}
OF_LARGEST = "error of\nlargest loss"
PANELS = {BEFORE: "made beforehand", CHAIN: "coefficients (afterwards)", AFTER: "mean network (afterwards)"}


def share_of(value: float | None) -> str:
    """
    >>> share_of(0.00123), share_of(0.123), share_of(12.3), share_of(None)
    ('0.12 %', '12.3 %', '1,230 %', '–')
    """
    if value is None or value < 1:
        return shown(value, lambda share: percent(share, 2 if share < 0.01 else 1))
    return f"{100 * float(f'{value:.3g}'):,.0f} %"


def name_of(network: str) -> str:
    """
    >>> name_of("torchvision:resnet18"), name_of("resnet20")
    ('ResNet-18', 'ResNet-20')
    """
    return network.rpartition(":")[2].replace("resnet", "ResNet-")


def triples_section(rows: Mapping[str, list[Row]]) -> Section:
    """b0, b1 and b2 of each run, by a plain fit and by the weighted one."""
    triples, means = _by_network(rows)
    family = {row["network"]: row["family"] for row in triples}
    first, *_, last = inside = [network for network in means if family[network] == CIFAR]
    between = ", ".join(f"{means[network][0]:.2f}" for network in inside)
    apart = "".join(
        f"; {name_of(network)}, of another kind, has {means[network][0]:.2f} and {means[network][1]:.2f}"
        for network in means if family[network] != CIFAR
    )  # fmt: skip
    none = sum(row["plain"][2] < AT_BOUND for row in triples)
    lost = sum(row["is_lost_without_bounds"] for row in triples)
    weighted = sum(row["weighted"][1] < AT_BOUND for row in triples)
    digits = "{:.3f}".format

    def cell(fit: str, j: int) -> Any:
        return lambda row: digits(row[fit][j]) if row[fit][j] > AT_BOUND else "0"

    columns: dict[str, Any] = {"network": lambda row: name_of(row["network"]), "device": "run"}
    for fit in ("plain", "weighted"):
        columns |= {f"{fit}:\nb{j}": cell(fit, j) for j in range(3)}
        columns[f"{fit}:\nerror"] = lambda row, fit=fit: percent(row[f"{fit}_error"])
    columns["largest\nloss"] = ("largest_loss", "{:.2f}".format)
    return Section(
        "Optimus' coefficients of the fifteen runs" if len(triples) == 15 else "Optimus' coefficients of the runs",
        f"By a plain curve_fit b0 rises with depth, {between} from {name_of(first)} to {name_of(last)}, b1 falls from "
        f"{means[first][1]:.2f} to {means[last][1]:.2f}, and b2 is 0 in {none} of {how_many(len(triples), 'runs')}{apart}.",
        intro=f"Loss over the largest = 1/(b0·k + b1) + b2 at epoch k, no coefficient below 0. Logs: {SOURCE}, ResNets on "
        "CIFAR-10, 350 epochs of SGD at 0.01 with momentum 0.9, batch 128. Plain: scipy.optimize.curve_fit, all epochs alike. "
        "Weighted: as Optimus' code, where each later third has a fourth of the sigma. Errors are means of |fit − loss| over the "
        "largest loss.",
        lines=[
            f"The weighted fit has b1 at 0 in {weighted} of {how_many(len(triples), 'runs')}: its last third weighs 256 times the first, and "
            "there the loss is near 0 whatever b1 is. That says something of the weights and nothing of the runs.",
            f"Without bounds curve_fit, from its own start, ends at no falling curve in {lost} of {how_many(len(triples), 'runs')}.",
        ],
        table=table(triples, columns, text=2),
    )


def _by_network(rows: Mapping[str, list[Row]]) -> tuple[list[Row], dict[str, Any]]:
    """Rows of runs by depth, and of each network the mean of its plain coefficients."""
    triples = sorted(rows["triples"], key=lambda row: row["depth"])
    return triples, {
        network: np.mean([row["plain"] for row in own], axis=0) for network, own in grouped(triples, "network").items()
    }


def _coefficients_figure(rows: Mapping[str, list[Row]]) -> Figure:
    """b0 and b1 of the plain fit against depth: points of one kind, and the mean of another beside them."""
    triples, means = _by_network(rows)
    of_kind, others = matching(triples, family=CIFAR), [row for row in triples if row["family"] != CIFAR]
    depths = distinct(of_kind, "depth")
    panels = []
    for j in (0, 1):
        series = []
        for device, own in grouped(of_kind, "run").items():
            x, y = [row["depth"] for row in own], [row["plain"][j] for row in own]
            series.append(Series(device, "measured", x, y, color=DEVICE_COLORS.get(device, "")))
        for network in distinct(others, "network"):
            series.append(
                Series(name_of(network), "reference", [depths[0], depths[-1]], [means[network][j]] * 2, color="grey")
            )
        panels.append(Lines("depth", f"b{j}", series, x_ticks=depths, title=f"b{j}, plain fit"))
    return Figure(panels)


def regression_section(rows: Mapping[str, list[Row]]) -> Section:
    """How the coefficients go with depth and device, and what they are at the depth ahead."""
    regressed = {row["coefficient"]: row for row in rows["regression"]}
    b0, b1, largest = (regressed[name] for name in ("b0", "b1", "largest loss"))
    network = name_of(rows["ahead"][0]["network"])
    apart = max(max(row["predicted"]) / min(row["predicted"]) - 1 for row in (b0, b1, largest))
    at = ", ".join(
        f"{name} {np.mean(row['predicted']):.2f}" for name, row in (("b0", b0), ("b1", b1), ("largest loss", largest))
    )

    def exponent(row: Row, over: str) -> str:
        told = row.get(f"slope_{over}")
        return "0 in every run" if told is None else "{:+.2f} ({:+.2f} to {:+.2f})".format(*told)

    columns: dict[str, Any] = {"coefficient": "coefficient", "power of depth, all": lambda row: exponent(row, "all")}
    columns[f"{CIFAR} only"] = lambda row: exponent(row, CIFAR)
    for i, device in enumerate(b0["devices"]):
        columns[f"{network},\n{device}"] = lambda row, i=i: f"{row['predicted'][i]:.3f}"
    return Section(
        "Coefficients on depth and device",
        f"Within one kind b0 goes as depth to the power {b0[f'slope_{CIFAR}'][0]:+.2f} and b1 to {b1[f'slope_{CIFAR}'][0]:+.2f}; with "
        f"ResNet-18 among them {b0['slope_all'][0]:+.2f} and {b1['slope_all'][0]:+.2f} are left; the device moves none by more than "
        f"{percent(apart)}. For {network}: {at}.",
        intro="Logarithms are regressed on log depth and on the device as a category, each network weighing the same. Powers of "
        "depth with the 80 % interval.",
        figure=_coefficients_figure(rows),
        caption=f"Points: a run of a {CIFAR} network each. Dashed: the mean of ResNet-18, which is of another kind.",
        table=table(rows["regression"], columns),
    )


def curve_section(results: Results) -> Section:
    """The curve of the network ahead by each rule, against real ones where there are any."""
    rows, network = results.rows, name_of(results.rows["ahead"][0]["network"])
    panels = []
    for rule in RULES:
        columns = results.curves[f"{network}: {rule}"]
        x = [float(epoch or 0) for epoch in columns["epoch"]]
        series = [Series("predicted", "predicted", x, columns["predicted"], columns["low"], columns["high"])]
        devices = [key for key in columns if key in DEVICE_COLORS]
        series += [Series(device, "measured", x, columns[device], color=DEVICE_COLORS[device]) for device in devices]
        panels.append(Lines("epoch", "training loss", series, log_x=True, log_y=True, title=PANELS[rule]))
    scores = rows.get("held_curves", [])
    figure = Figure(panels)
    intro = (
        "Losses of 350 epochs. The forecast made beforehand regresses the loss of each epoch on family, params and MACs; the "
        "second is the curve of the regressed coefficients; the third, made afterwards, is the mean of the networks, as no slope "
        "of one kind is known to hold in another. Percentage errors are means of |predicted / real − 1|: first until a run is right "
        "about 99 % of the training set, then over all epochs, where losses near 0 make it explode."
    )
    if not scores:
        return Section(
            f"{network}'s curve, predicted",
            f"No run of {network} is at hand to hold it against.",
            intro=intro,
            figure=figure,
        )
    errors = {rule: mean(scores, "mape_learning", rule=rule) for rule in RULES}
    devices = [key for key in results.curves[f"{network}: {CHAIN}"] if key in DEVICE_COLORS]
    firsts = [f"{results.curves[f'{network}: {CHAIN}'][device][0]:.2f}" for device in devices]
    of_each = ", ".join(f"{row['run']} {share_of(row['mape_learning'])}" for row in matching(scores, rule=CHAIN))
    return Section(
        f"{network}'s curve, predicted and real",
        f"The curve from the regressed coefficients is {share_of(errors[CHAIN])} off while {network} learns ({of_each}), the "
        f"forecast made beforehand {share_of(errors[BEFORE])}: {network} learns far more slowly than any rule said.",
        intro=intro,
        figure=figure,
        lines=[
            f"It starts above guessing: the losses of the first epoch are {', '.join(firsts)}, where guessing among ten classes has "
            f"{math.log(10):.2f}."
        ],
        caption="Points: the real runs. Line and band: predicted, with the 80 % interval; first as it was given beforehand, then "
        "that of a network that learns as much faster or slower as kinds differ.",
        table=table(scores, {
            "rule": lambda row: _titled(row["rule"]), "device": "run", "percentage error\nwhile it learns": ("mape_learning", share_of),
            "of all epochs": ("mape", share_of), OF_LARGEST: ("error_of_largest", share_of),
            "in the band\nwhile it learns": ("inside_learning", lambda share: percent(share, 0)),
            "of all epochs ": ("inside", lambda share: percent(share, 0)),
        }, text=2),
    )  # fmt: skip


def _titled(rule: str) -> str:
    """A rule as a title, with when it was made.

    >>> _titled("mean of the networks")
    'Mean of the networks (made afterwards)'
    """
    return f"{rule[0].upper()}{rule[1:]}{'' if rule == BEFORE else ' (made afterwards)'}"


def epochs_section(rows: Mapping[str, list[Row]]) -> Section:
    """Epochs of the network ahead to each target, by each rule, and what real runs took."""
    network, held = name_of(rows["ahead"][0]["network"]), rows.get("held", [])
    ours = matching(rows["ahead"], rule=CHAIN, target=TARGET) or matching(rows["ahead"], rule=CHAIN)[:1]
    target = ours[0]["target"].partition(" ")[2]
    first = f"{network} is predicted to know {target} of the training set after {epochs_words(ours[0], ' epochs')}"
    lines: list[str] = []
    columns: dict[str, Any] = {"rule": lambda row: _titled(row["rule"]), "target": lambda row: row["target"].partition(" ")[2],
                "predicted epochs": lambda row: epochs_words(_as_given(row))}  # fmt: skip
    if held:
        seen = {row["run"]: row["seen"] for row in matching(held, rule=CHAIN, target=ours[0]["target"])}
        off = mean(matching(held, rule=CHAIN, target=ours[0]["target"]), "error")
        first += f"; the real runs took {', '.join(f'{epochs:.0f} ({device})' for device, epochs in seen.items())}: the prediction is {_too(off)}"
        lines.append(_beforehand(held))
        counts = {rule: held_counts(matching(held, rule=rule)) for rule in (CHAIN, AFTER)}
        lines.append(
            f"Made afterwards: intervals that leave whole kinds out hold {counts[CHAIN]} by the coefficients and {counts[AFTER]} by "
            f"the mean of the networks, which is {_too(mean(matching(held, rule=AFTER, target=ours[0]['target']), 'error'))} at "
            f"{target}."
        )
        best = [row["best_test_accuracy"] for row in rows["held_runs"] if row["best_test_accuracy"]]
        if best:
            lines.append(
                f"These are accuracies on the training set: without augmentation, on images that torchvision's stem halves twice, "
                f"the test accuracy of no {network} run is ever above {percent(max(best), 0)}."
            )
        columns["real epochs"] = lambda row: ", ".join(f"{r['seen']:.0f}" for r in alike(held, row))
        columns["error"] = lambda row: signed_share(mean(alike(held, row), "error"))
        columns["in the interval"] = lambda row: held_counts(alike(held, row))
    return Section(
        f"{network}'s epochs to {target}",
        f"{first}.",
        intro="From coefficients, an accuracy is reached where the curve comes down to the loss that the known runs had there: "
        f"{_levels(rows)}. Intervals are of 80 %. Of the forecast made beforehand they hold all regressions in equal parts, as if "
        "the next network were of a known kind; 92 % was not asked then, and is by the same rule. The other two leave whole kinds "
        "out, with Student's t of one degree of freedom, as there are two. Real epochs: K80, P100, V100.",
        lines=lines,
        table=table(rows["ahead"], columns, text=2),
    )


def epochs_words(row: Row, unit: str = "") -> str:
    """Predicted epochs with their interval."""
    value, low, high = (number(row[name], ".1f") for name in ("epochs", "low", "high"))
    return f"{value}{unit} ({low} to {high})"


def _as_given(row: Row) -> Row:
    """The forecast as it was printed beforehand, where it was."""
    given = FORECAST.get(row["target"]) if row["rule"] == BEFORE else None
    return row if given is None else {**row, **dict(zip(("epochs", "low", "high"), given, strict=True))}


def alike(held: Sequence[Row], row: Row) -> list[Row]:
    return matching(held, rule=row["rule"], target=row["target"])


def signed_share(error: float | None) -> str:
    """
    >>> signed_share(-0.554)
    '−55 %'
    """
    return shown(error, lambda share: percent(share, 0) if share < 0 else f"+{percent(share, 0)}")


def _too(error: float | None) -> str:
    """
    >>> _too(-0.554), _too(0.2)
    ('55 % too low', '20 % too high')
    """
    return shown(error, lambda share: f"{percent(abs(share), 0)} too {'low' if share < 0 else 'high'}")


def held_counts(held: Sequence[Row]) -> str:
    return f"{sum(row['low'] <= row['seen'] <= row['high'] for row in held)} of {len(held)}"


def _beforehand(held: Sequence[Row]) -> str:
    """What was forecast before the runs were read, and what happened."""
    said = [row for row in matching(held, rule=BEFORE) if row["target"] in FORECAST]
    of_each = []
    for target, own in grouped(said, "target").items():
        real = sorted(row["seen"] for row in own)
        of_each.append(
            f"{FORECAST[target][0]:.1f} epochs to {target.partition(' ')[2]} (real {real[0]:.0f} to {real[-1]:.0f})"
        )
    return f"The forecast made beforehand said {', '.join(of_each)}: about three times too few, and its interval held {held_counts(said)}."


def _levels(rows: Mapping[str, list[Row]]) -> str:
    return ", ".join(f"{row['loss']:.3f} at {row['target'].partition(' ')[2]}" for row in rows["levels"])


def kinds_section(rows: Mapping[str, list[Row]]) -> Section:
    """How far whole kinds are off when they are left out, and two others under other recipes."""
    target = TARGET if matching(rows["kinds"], target=TARGET) else rows["kinds"][0]["target"]
    targets = distinct(rows["kinds"], "target")
    body = []
    for (rule, kind), own in grouped(rows["kinds"], "rule", "kind").items():
        body.append([_titled(rule), f"{kind} from the other", *(f"{row['ratio']:.2f} ×" for row in own)])
    for (recipe, *_), own in grouped(
        [{**row, "pair": " and ".join(row["kinds"])} for row in rows["other_kinds"]], "recipe", "pair"
    ).items():
        body.append(
            [
                f"our runs: {recipe}",
                f"{own[0]['kinds'][0]} over {own[0]['kinds'][1]}",
                *(f"{row['ratio']:.2f} ×" for row in own),
            ]
        )
    plain = [row["ratio"] for row in matching(rows["kinds"], rule=AFTER, target=target)]
    other = [row["ratio"] for row in matching(rows["other_kinds"], target=target)]
    factors = [max(ratio, 1 / ratio) for ratio in (*plain, *other)]
    real = [row["seen"] / row["epochs"] for row in matching(rows.get("held", []), rule=AFTER, target=target)]
    further = (
        f"; {name_of(rows['ahead'][0]['network'])} took {min(real):.1f} to {max(real):.1f} times the epochs of the mean"
        if real
        else ""
    )
    by_rule = {
        rule: float(np.mean([abs(np.log(row["ratio"])) for row in matching(rows["kinds"], rule=rule)]))
        for rule in RULES
    }
    order = sorted(by_rule, key=lambda rule: by_rule[rule])
    return Section(
        "How far a kind is from the others",
        f"Kinds left out differ by a factor of {min(factors):.2f} to {max(factors):.2f} in their epochs to {target.partition(' ')[2]}{further}: "
        "a bottleneck network with stem stride 2 and pooling is of a kind that nothing here tells of, and only a run of it does.",
        intro="Made afterwards. Predicted over real epochs, the geometric mean of a kind's runs, with the whole kind left out. Our "
        "own runs: two other kinds under one recipe, epochs to the same losses.",
        lines=[
            f"By these factors alone “{_titled(order[0])}” would still be chosen (off by a factor of {np.exp(by_rule[order[0]]):.2f} on "
            f"average, “{_titled(order[-1])}” by {np.exp(by_rule[order[-1]]):.2f}): with two kinds, leaving one out cannot tell luck from "
            "knowledge. It does tell how wide an interval must be."
        ],
        table=listed(["rule", "left out", *(t.partition(" ")[2] for t in targets)], body, text=2),
    )
