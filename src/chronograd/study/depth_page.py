"""The page of `depth_and_device`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chronograd.answer import Answer, Highlight, Section
from chronograd.figure import Figure, Lines, Series
from chronograd.fit.curve_regression import EPOCH_BY_EPOCH
from chronograd.fit.curves import FAMILIES
from chronograd.study.depth_runs import CIFAR, FEATURES, IMAGENET, OPTIMUS
from chronograd.study.results import Results, Row
from chronograd.study.rows import distinct, matching, mean
from chronograd.study.study import Study
from chronograd.study.tables import listed, study_page, table
from chronograd.units import percent

PUBLISHED, OWN, TRUTH = "published", "own", "truth"
FULL = "family, params, MACs"
AT_BOUND = 1e-9  # a coefficient below is 0 but for where the fit stopped


def make_page(study: Study, results: Results) -> Answer:
    rows = results.rows
    sections = []
    if matching(rows.get("scored", []), set=TRUTH):
        sections += [_scored_section(results, TRUTH, "Scored on further runs"), *_scored_epochs(results, TRUTH)]
    if matching(rows["networks"], set=PUBLISHED):
        sections += [_runs_section(rows, PUBLISHED, "The published runs"), _device_section(rows["devices"])]
        left = matching(rows["targets"], set=PUBLISHED)
        if left and matching(rows["networks"], set=PUBLISHED, family=IMAGENET):
            sections.append(_confound_section(rows))
        sections.append(_validation_section(results))
        if left:
            sections.append(_targets_section(rows, PUBLISHED, "Epochs to an accuracy of a network left out"))
        sections += [_ahead_section(results, network) for network in distinct(rows.get("ahead", []), "network")]
    if matching(rows["networks"], set=OWN):
        sections += [_runs_section(rows, OWN, "Our own runs"), _scored_section(results, OWN, "A depth left to predict")]
        sections += _scored_epochs(results, OWN)
    return study_page(study, results, sections, _highlights(rows))


def _chosen(rows: Mapping[str, list[Row]], of_set: str) -> Row:
    return matching(rows["chosen"], set=of_set)[0]


def _share(value: float | None) -> str:
    """
    >>> _share(0.00123), _share(0.123), _share(12.3), _share(None)
    ('0.12 %', '12.3 %', '1,230 %', '–')
    """
    if value is None:
        return "–"
    if value < 0.01:
        return percent(value, 2)
    return percent(value) if value < 1 else f"{100 * float(f'{value:.3g}'):,.0f} %"


def _number(value: float) -> str:
    return f"{value:.3g}" if value > AT_BOUND else "0"


def _runs_section(rows: Mapping[str, list[Row]], of_set: str, title: str) -> Section:
    """Per network: features, epochs to the targets in each of its runs, and the coefficients of Optimus' form."""
    own, fits = matching(rows["networks"], set=of_set), matching(rows["coefficients"], set=of_set)
    other = next((row["form"] for row in fits if row["form"] != OPTIMUS), OPTIMUS)
    targets = list(own[0]["epochs"])
    body = []
    for network in dict.fromkeys(row["network"] for row in sorted(own, key=lambda row: row["depth"])):
        runs = matching(own, network=network)
        reached = [", ".join(str(run["epochs"][target] or "–") for run in runs) for target in targets]
        cells = [f"{runs[0]['params'] / 1e6:.3g}", f"{runs[0]['macs'] / 1e6:.3g}"]
        fitted = []
        for form in dict.fromkeys((OPTIMUS, other)):
            found = matching(fits, network=network, form=form)
            means = np.mean([row["coefficients"] for row in found], axis=0)
            fitted += ["\n".join(_number(value) for value in means), _share(mean(found, "error_of_largest"))]
        body.append([network, *cells, *reached, *fitted])
    heads = [f"{form}:\n{', '.join(FAMILIES[form].names)}" for form in dict.fromkeys((OPTIMUS, other))]
    columns = ["network", "params, M", "MACs, M", *(f"epochs to\n{target}" for target in targets)]
    for head, form in zip(heads, dict.fromkeys((OPTIMUS, other)), strict=True):
        columns += [head, f"{form}:\nerror"]
    optimus = [row["coefficients"] for row in matching(fits, form=OPTIMUS)]
    at_bound = [sum(row[i] < AT_BOUND for row in optimus) for i in (1, 2)]
    is_lone = min(at_bound) == len(optimus)
    error, better = (mean(fits, "error_of_largest", form=form) for form in (OPTIMUS, other))
    labels = ", ".join(dict.fromkeys(str(row.get("device") or f"seed {row['seed']}") for row in own))
    return Section(
        title,
        f"The curves are closer to {_article(other)} than to 1/(b0·k + b1) + b2: off by {_share(better)} of the largest loss "
        f"against {_share(error)}. Of the latter, b1 is at its bound of 0 in {at_bound[0]} and b2 in {at_bound[1]} of "
        f"{len(optimus)} runs{', so that only b0 is left to regress' if is_lone else ''}. {_fewest(own, targets[-1])}",
        intro=f"Epochs are given for {labels}; coefficients are means over these runs, of `fit loss` with the weights of Optimus, "
        "and errors the mean of |fit − loss| over the largest loss.",
        table=listed(columns, body),
    )


def _fewest(rows: Sequence[Row], target: str) -> str:
    """Which network needs the fewest epochs, and whether it is the deepest."""
    depths = {row["network"]: row["depth"] for row in rows}
    epochs = {network: mean([row["epochs"] for row in matching(rows, network=network)], target) for network in depths}
    reached = {network: value for network, value in epochs.items() if value is not None}
    if not reached:
        return f"None reached {target}."
    first = min(reached, key=lambda network: reached[network])
    which = "the deepest" if depths[first] == max(depths.values()) else "not the deepest"
    return f"Fewest epochs to {target} needs {first}, {which} ({reached[first]:.1f})."


def _article(form: str) -> str:
    return {"exponential": "an exponential", "power": "a power law"}.get(form, "another")


def _device_section(rows: Sequence[Row]) -> Section:
    if not rows:
        return Section("Does the device matter?", "It could not be tested: see what fell short.")
    least, worst = min(row["p_value"] for row in rows), max(row["spread"] for row in rows)
    is_none = least * len(rows) > 0.05
    verdict = "No difference between devices is seen" if is_none else "Epochs differ by device"
    return Section(
        "Does the device matter?",
        f"{verdict}: the least p of {len(rows)} targets is {least:.2f} and device means differ by at most {percent(worst)}. "
        f"Differences of more than {percent(max(row['high'] for row in rows), 0)} can be ruled out, smaller ones cannot.",
        intro="Log epochs to a training accuracy, depths as blocks: an exact test over all "
        f"{rows[0]['num_permutations']:,} permutations of the devices within depths, and Student's t on the residuals of the "
        "two-way table. A whole epoch is the resolution: rounding alone is a noise of 0.29 epochs.",
        table=table(rows, {
            "target": "target", "mean epochs": lambda row: f"{row['mean_epochs']:.1f}",
            "p": lambda row: f"{row['p_value']:.2f}",
            "largest device mean\nover the least, less 1": lambda row: percent(row["spread"]),
            "95 % interval": lambda row: f"{percent(row['low'])} to {percent(row['high'])}",
            "noise, epochs": lambda row: f"{row['noise'] * row['mean_epochs']:.2f}",
            "one epoch is": lambda row: percent(1 / row["mean_epochs"]),
            "variance explained\n(omega squared)": lambda row: percent(row["share"]),
        }),
    )  # fmt: skip


def _confound_section(rows: Mapping[str, list[Row]]) -> Section:
    """Slopes over depth with and without the other family, and what each regression says of it."""
    params = {row["network"]: row["params"] for row in matching(rows["networks"], set=PUBLISHED)}
    outsider = next((row["network"] for row in rows["networks"] if row.get("family") == IMAGENET), "")
    left = matching(rows["targets"], set=PUBLISHED)
    body, said = [], ""
    for y in dict.fromkeys(row["target"] for row in rows["slopes"]):
        slopes = [matching(rows["slopes"], target=y, over=over)[0] for over in ("all", CIFAR)]
        cells = [f"{row['slope']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})" for row in slopes]
        found = matching(left, network=outsider, target=y)
        by = [mean(found, "seen"), *(mean(found, "epochs", features=name) for name in FEATURES)]
        body.append([y, *cells, *("–" if value is None else f"{value:.1f}" for value in by)])
        if found:
            said = f"{y}: {cells[0]} with {outsider}, {cells[1]} without"
    errors = {name: _share(mean(left, "error", network=outsider, features=name)) for name in FEATURES}
    full = matching(left, features=FULL)
    leverage = mean(full, "leverage", network=outsider) or 0.0
    others = max(row["leverage"] for row in full if row["network"] != outsider)
    return Section(
        "The confound at depth 18",
        f"d log epochs / d log depth, {said}. Predicted from the {CIFAR} networks, epochs of {outsider} are off by "
        f"{errors['depth']} by depth and by {errors[FULL]} by {FULL}, the latter partly by luck.",
        intro=f"The network of depth 18 is not the shallowest of one kind: it is {outsider}, an ImageNet-style network with "
        f"{params[outsider] / min(params.values()):.0f} times the params of the smallest; the others are {CIFAR}. So depth and "
        "family cannot be told apart. Slopes are d log y / d log depth, of epochs and of the coefficients above 0, with the "
        f"middle 80 %; at the right is what the others say of {outsider}. Luck, as params and MACs go together within {CIFAR}: "
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
    for form, features in dict.fromkeys((row["form"], row["features"]) for row in rows):
        found = matching(rows, form=form, features=features)
        within = [row for row in found if row["network"] not in outside]
        name = f"{features} ←" if (form, features) == (chosen["form"], chosen["features"]) else features
        cells = [_share(mean(found, key)) for key in ("mape", "error_of_largest")]
        body.append(
            [form, name, *cells, f"{mean(found, 'factor'):,.3g}", _share(mean(within, "mape")),
             _share(mean(within, "error_of_largest"))]
        )  # fmt: skip
    columns = ["form", "features", "percentage error", "error of\nlargest loss", "off by\na factor of",
               f"{CIFAR} only:\npercentage error", "error of\nlargest loss"]  # fmt: skip
    ours = matching(rows, form=chosen["form"], features=chosen["features"])
    plain = matching(rows, form=OPTIMUS, features="depth and device")
    again = matching(rows, features="its other runs")
    return Section(
        "The curve of a depth never trained",
        f"Our prediction is {_named(chosen)}: it has the least percentage error of networks left out, {_share(mean(ours, 'mape'))} "
        f"({_share(mean(ours, 'error_of_largest'))} of the largest loss), where the runs of the very network on other devices "
        f"are off by {_share(mean(again, 'mape'))}. The coefficients of Optimus' form on depth and device: "
        f"{_share(mean(plain, 'mape'))} ({_share(mean(plain, 'error_of_largest'))}).",
        intro="Every network in turn is left out, its runs on all devices together, and predicted from the others. Percentage "
        "errors are means of |predicted / loss − 1| over all epochs, which losses near 0 make explode; the factor is exp of the "
        f"mean |log(predicted / loss)|. `{EPOCH_BY_EPOCH}` has no formula: the log loss of each epoch is regressed by itself. "
        "The device is a category.",
        figure=Figure(_panels(results, PUBLISHED)),
        caption="Real runs as points, our prediction with its middle 80 %, and that by depth alone dashed.",
        table=listed(columns, body, 2),
    )


def _named(chosen: Row, key: str = "features") -> str:
    features = chosen[key]
    by = "of the mean network" if features == "none" else f"on {features}"
    if key != "features":
        return f"by {features}"
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
        network = name.partition(": ")[2]
        panels.append(Lines(f"epoch, {network}", "training loss", series, log_x=x[-1] > 50, log_y=True))
    return panels


def _targets_section(rows: Mapping[str, list[Row]], of_set: str, title: str) -> Section:
    own, chosen = matching(rows["targets"], set=of_set), _chosen(rows, of_set)
    targets = distinct(own, "target")
    body = []
    for features in distinct(own, "features"):
        found = matching(own, features=features)
        name = f"{features} ←" if features == chosen["target_features"] else features
        errors = [_share(mean(found, "error", target=target)) for target in targets]
        body.append([name, *errors, _share(mean(found, "error")), _inside(found, "low_alone", "high_alone")])
    ours = matching(own, features=chosen["target_features"])
    columns = ["features", *targets, "mean", "within its own\nmiddle 80 %"]
    return Section(
        title,
        f"Our prediction, the one with the least error, is {_named(chosen, 'target_features')}: off by "
        f"{_share(mean(ours, 'error'))} on average{_beside(own, ours)}. {_inside(ours)} lie within the middle 80 % of all regressions "
        "together.",
        intro="Log epochs are regressed themselves; errors are means of |predicted / real − 1| over networks left out and their "
        "runs. The intervals given with predictions hold all regressions in equal parts: which of them goes on where no network "
        "has been is not known.",
        table=listed(columns, body),
    )


def _beside(rows: Sequence[Row], ours: Sequence[Row]) -> str:
    """What it would be by depth alone, where that is not our prediction."""
    is_depth = ours[0]["features"] == "depth"
    return "" if is_depth else f", by depth alone {_share(mean(matching(rows, features='depth'), 'error'))}"


def _inside(rows: Sequence[Row], low: str = "low", high: str = "high") -> str:
    seen = [row[low] <= row["seen"] <= row[high] for row in rows if row["seen"] is not None]
    return f"{sum(seen)} of {len(seen)}"


def _ahead_section(results: Results, network: str) -> Section:
    """A network of which no run is at hand."""
    own, ours_by = matching(results.rows["ahead"], network=network), _chosen(results.rows, PUBLISHED)["target_features"]
    body, said, apart = [], [], 1.0
    for target in distinct(own, "target"):
        at = {row["features"]: row for row in matching(own, target=target)}
        ours, epochs = at[ours_by], [at[name]["epochs"] for name in FEATURES]
        interval = f"{ours['low']:.1f} to {ours['high']:.1f}"
        said.append(f"{target} after {ours['epochs']:.0f} epochs ({interval})")
        apart = max(apart, max(epochs) / min(epochs))
        body.append([target, *(f"{count:.1f}" for count in epochs), interval])
    columns = ["target", *(f"{name} ←" if name == ours_by else name for name in FEATURES), "middle 80 %"]
    return Section(
        f"What is to be expected of {network}",
        f"Our prediction: {'; '.join(said)}. The regressions differ by up to a factor of {apart:.2f}.",
        intro=f"No run of {network} is here, and only one network of its family: its params lie beyond all others, and its "
        "bottleneck blocks are of a kind that no regression has seen. The interval holds all regressions in equal parts.",
        figure=Figure(_panels(results, f"ahead, {network}")),
        caption="Our prediction with its middle 80 %, and that by depth alone dashed.",
        table=listed(columns, body),
    )


def _scored_section(results: Results, of_set: str, title: str) -> Section:
    rows, chosen = matching(results.rows["scored"], set=of_set), _chosen(results.rows, of_set)
    body = []
    for form, features in sorted(dict.fromkeys((row["form"], row["features"]) for row in rows), key=lambda key: key[0]):
        for network in distinct(rows, "network"):
            found = matching(rows, form=form, features=features, network=network)
            is_ours = (form, features) == (chosen["form"], chosen["features"])
            body.append(
                [network, form, f"{features} ←" if is_ours else features, _share(mean(found, "mape")),
                 _share(mean(found, "error_of_largest")), f"{mean(found, 'factor'):,.3g}", _share(mean(found, "inside"))]
            )  # fmt: skip
    ours = matching(rows, form=chosen["form"], features=chosen["features"])
    depth = matching(rows, form=chosen["form"], features="depth")
    runs = ", ".join(dict.fromkeys(f"{row['network']} ({row['run']})" for row in rows))
    columns = ["network", "form", "features", "percentage error", "error of\nlargest loss", "off by\na factor of",
               "epochs within\nthe middle 80 %"]  # fmt: skip
    return Section(
        title,
        f"Our prediction, {_named(chosen)}, is off by {_share(mean(ours, 'mape'))} ({_share(mean(ours, 'error_of_largest'))} of "
        f"the largest loss); by depth alone {_share(mean(depth, 'mape'))} ({_share(mean(depth, 'error_of_largest'))}). "
        f"{_share(mean(ours, 'inside'))} of the epochs lie within the middle 80 %.",
        intro=f"Runs that no prediction has seen: {runs}. Our prediction is the one with the least error of networks left out, "
        "before these runs are read.",
        figure=Figure(_panels(results, of_set)),
        caption="Real runs as points, our prediction with its middle 80 %, and that by depth alone dashed.",
        table=listed(columns, body, 3),
    )


def _scored_epochs(results: Results, of_set: str) -> list[Section]:
    """None, if there is no target that all known runs reached."""
    rows, chosen = matching(results.rows["scored_epochs"], set=of_set), _chosen(results.rows, of_set)
    if not rows:
        return []
    body = []
    keys = dict.fromkeys((row["network"], row["target"], row["features"]) for row in rows)
    for network, target, features in sorted(keys, key=lambda key: (key[0], key[1])):
        found = matching(rows, network=network, target=target, features=features)
        name = f"{features} ←" if features == chosen["target_features"] else features
        real = ", ".join("–" if row["seen"] is None else f"{row['seen']:.0f}" for row in found)
        bounds = f"{found[0]['epochs']:.1f} ({found[0]['low']:.1f} to {found[0]['high']:.1f})"
        body.append([network, target, name, bounds, real, _share(mean(found, "error"))])
    ours = matching(rows, features=chosen["target_features"])
    columns = ["network", "target", "features", "predicted epochs", "real epochs", "error"]
    takeaway = (
        f"Our prediction, {_named(chosen, 'target_features')}, is off by {_share(mean(ours, 'error'))} on average"
        f"{_beside(rows, ours)}; {_inside(ours)} lie within the middle 80 %."
    )
    title = "Its epochs to a target" if of_set == OWN else "Their epochs to a target"
    return [Section(title, takeaway, table=listed(columns, body, 3))]


def _highlights(rows: Mapping[str, list[Row]]) -> list[Highlight]:
    found = []
    for of_set, what in ((TRUTH, "scored"), (PUBLISHED, "targets"), (OWN, "scored")):
        own = matching(rows.get("scored_epochs" if what == "scored" else what, []), set=of_set)
        if own:
            ours = matching(own, features=_chosen(rows, of_set)["target_features"])
            detail = f"{of_set} runs{_beside(own, ours)}"
            found.append(
                Highlight("error of the epochs of a network never trained", _share(mean(ours, "error")), detail)
            )
    return found
