"""Accuracy of predictions against published and own measurements, by fixed rules.

    python -m benchmarks.accuracy --measured DIR [--only SOURCE ...] [--json] [--save FILE]
    python -m benchmarks.accuracy --measured DIR --since [TAG] [--only SOURCE ...] [--save FILE]
    python -m benchmarks.accuracy --page FILE --from RESULTS.json

The command runs every source with tables under DIR; sources measured here read benchmarks/results. Only the seed chooses the rows that
calibrate; no rule depends on a model or a family. --page writes docs/accuracy.md.

--since also scores the same tables with the code of TAG (default: the newest tag) and prints both errors of each rule. The exit status is 1
if a rule is gone, or if its mean error is worse by 2 percentage points and a tenth. The source timm takes most of an hour, the others minutes.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reasons import reason
from benchmarks.sources import Row
from chronograd.figure import Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.report import plots
from chronograd.words import how_many

ROOT = Path(__file__).parents[1]
_COMPARED = ("source", "rule", "n", "mape", "bias", "coverage80")
SOURCES = (
    "timm",
    "nvidia",
    "own_gpu",
    "cnn_benchmarks",
    "neusight",
    "deepbench",
    "tensorflow",
    "pollux",
    "paleo",
    "cifar",
    "local_cpu",
    "large_models",
)
# Its predictions were stored with the measurements, so no other code can make them again.
STORED = ("local_cpu",)
_TITLES = (
    "timm",
    "NVIDIA",
    "GPUs timed here",
    "CNNs",
    "NeuSight",
    "DeepBench",
    "TensorFlow",
    "Pollux",
    "PALEO",
    "CIFAR",
    "an EPYC",
    "large models",
)


def run(measured: Path, names: Sequence[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Run every source in turn and return its rows with the versions of the software."""
    rows: list[Row] = []
    seconds = {}
    for name in names:
        start = time.monotonic()
        found = importlib.import_module(f"benchmarks.sources.{name}")
        takes_say = "say" in inspect.signature(found.rows).parameters
        rows += found.rows(measured, say) if takes_say else found.rows(measured)
        seconds[name] = round(time.monotonic() - start, 1)
        say(f"{name}: {seconds[name]:.0f} s")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {n: version(n) for n in ("chronograd", "torch", "torchvision", "timm", "numpy", "scipy")},
        "python": platform.python_version(),
        "seconds": seconds,
        "rows": [r.to_json() for r in rows],
    }


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def scored_at(tag: str, measured: Path, names: Sequence[str], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Score sources with the code of a tag, in a temporary folder, and return its rows.

    Its own benchmarks run, because they fit its functions. They read this tree's results, so both score the same measurements.
    """
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        with tarfile.open(fileobj=io.BytesIO(_git("archive", tag, "src", "benchmarks"))) as archive:
            archive.extractall(tree, filter="data")
        shutil.rmtree(tree / "benchmarks" / "results")
        (tree / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
        for name in names:
            command = ["-m", "benchmarks.accuracy", "--measured", str(measured.resolve()), "--only", name, "--json"]
            environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
            done = subprocess.run([sys.executable, *command], cwd=tree, env=environment, stdout=subprocess.PIPE)
            if done.returncode == 0:
                found += json.loads(done.stdout)["rows"]
            elif done.returncode == 2:
                say(f"{name}: {tag} has no such source")
            else:
                raise RuntimeError(f"{tag} could not score {name}: see its message above")
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of `new`, and those of `old` from sources that were not run again; the same for the rows before."""
    again = {r["source"] for r in new["rows"]}
    kept = [r for r in old.get("rows", []) if r["source"] not in again]
    rows = sorted([*kept, *new["rows"]], key=lambda r: _place(r["source"]))
    found = {**new, "seconds": {**old.get("seconds", {}), **new["seconds"]}, "rows": rows}
    past, before = old.get("before"), new.get("before")
    if past and before and past["version"] == before["version"]:
        before = {**before, "rows": [*(r for r in past["rows"] if r["source"] not in again), *before["rows"]]}
    return {**found, "before": before or past} if before or past else found


def _place(title: str) -> int:
    """Return the position of a source on the page, by the first word of its title."""
    return next((i for i, start in enumerate(_TITLES) if title.startswith(start)), len(_TITLES))


def percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def signed(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:+.{digits}f} %".replace("-", "−")


def title(row: dict[str, Any]) -> str:
    return f"{row['source']}: {row['rule']}"


# A mean error counts as changed if it changed by both.
_POINTS, _SHARE = 0.02, 0.1
CHANGES = ("source", "rule", "n", "mean", "bias", "80 % covers", "verdict")
FAILING = ("gone", "worse")


def verdict(old: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return `new`, `gone`, `worse` or `better` for the row of a rule before and now; else ""."""
    if old is None or now is None:
        return "new" if old is None else "gone"
    low, high = sorted((old["mape"], now["mape"]))
    if high <= low + _POINTS or high <= low * (1 + _SHARE):
        return ""
    return "worse" if now["mape"] == high else "better"


def changes(result: dict[str, Any]) -> list[list[str]]:
    """Return a line of cells for each rule whose source was scored before: its figures before and now, and the verdict."""
    old, now = ({title(row): row for row in rows} for rows in (result["before"]["rows"], result["rows"]))
    sources = {row["source"] for row in old.values()}
    lines = []
    for name in dict.fromkeys([*now, *old]):
        first, last = old.get(name), now.get(name)
        row = last or first
        assert row is not None
        if row["source"] in sources:
            shown: tuple[Callable[[Any], str], ...] = (str, percent, signed, lambda share: percent(share, 0))
            cells_of = [
                " → ".join(dict.fromkeys(show(one.get(key)) for one in (first, last) if one is not None))
                for key, show in zip(("n", "mape", "bias", "coverage80"), shown, strict=True)
            ]
            lines.append([row["source"], row["rule"], *cells_of, verdict(first, last)])
    return lines


COLUMNS = ("source", "rule", "n", "mean", "bias", "median", "90 % below", "aim", "80 % covers")


def cells(row: dict[str, Any]) -> list[str]:
    digits = 2 if row["aim"] is not None and row["aim"] < 0.01 else 1
    return [
        row["source"],
        row["rule"],
        str(row["n"]),
        percent(row["mape"], digits),
        signed(row.get("bias"), digits),
        percent(row["median_ape"], digits),
        percent(row["p90_ape"], digits),
        percent(row["aim"], digits),
        percent(row["coverage80"], 0),
    ]


def coverage(rows: Sequence[dict[str, Any]]) -> tuple[float, int]:
    """Return the mean share of values inside their 80 % interval, all rows with equal weight, and the number of rows."""
    found = [r["coverage80"] for r in rows if r["coverage80"] is not None]
    return (float(np.mean(found)) if found else float("nan")), len(found)


def print_table(result: dict[str, Any]) -> None:
    _print([list(COLUMNS), *(cells(r) for r in result["rows"])])
    share, count = coverage(result["rows"])
    print(f"80 % intervals cover {percent(share, 0)} on average over {count} rows (aim 75 to 88 %)")


def _print(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells in columns: the first two to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        left = [c.ljust(w) for c, w in zip(line[:2], widths[:2], strict=True)]
        print("  ".join([*left, *(c.rjust(w) for c, w in zip(line[2:], widths[2:], strict=True))]).rstrip())


# The first questions of a reader: the question, the rows that answer it, and whether it is among the five lines at the top.
_QUESTIONS = (
    ("an unseen network on a GPU, from 25 timed networks", r"timm, .*rtx3090.*: fit on 25 rows", True),
    ("an unseen network on a CPU, compiled, from 25 timed networks", r"timm, .*12700h", False),
    ("an unseen network on a CPU after `chronograd calibrate`", r"cores, .*24 unseen.*at the speed", True),
    ("the same for small images, batch 1 to 64", r"cores, .*six small.*at the speed", False),
    ("a GPU without timings, from its data sheet and other GPUs", r"NVIDIA.*left out|CNNs|NeuSight: each", True),
    (
        "a new chip without timings (an H200), all kinds of network",
        r"GPUs timed here: no measurement of the chip$",
        True,
    ),
    ("the H200 after `chronograd calibrate`", r"GPUs timed here: chronograd calibrate", False),
    ("up to 64 GPUs, from timings on a few", r"TensorFlow|Pollux", True),
    ("a step of a large model, from the catalogue", r"large models: step", True),
    ("the peak memory of a large model", r"large models: peak", True),
)


def asked(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that answer each question; a question without rows is left out."""
    found = {question: [r for r in rows if re.search(pattern, title(r))] for question, pattern, _ in _QUESTIONS}
    return {question: own for question, own in found.items() if own}


def span(values: Sequence[float | None], show: Callable[[float], str]) -> str:
    """Return the least and the largest value, such as "7.3 % to 13.4 %"; one value if they are equal."""
    known = sorted(value for value in values if value is not None)
    return " to ".join(dict.fromkeys(show(value) for value in (known[0], known[-1]))) if known else ""


def expectations(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines at the top of the page: how far off predictions are on average, and nine of ten of them at most."""
    first = {question for question, _, is_first in _QUESTIONS if is_first}
    lines = []
    for question, own in asked(rows).items():
        if question in first:
            mean, most = (span([r[key] for r in own], lambda v: percent(v, 0)) for key in ("mape", "p90_ape"))
            lines.append(
                f"- **{question[0].upper()}{question[1:]}**: {mean} off on average, nine of ten within {most}."
            )
    return lines


def picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the error below which half and nine tenths of the cases lie, for each question; rows weigh by their cases."""
    bars = []
    for question, own in asked(rows).items():
        cases = [r["n"] for r in own]
        half, most = (
            100 * float(np.average([r[key] for r in own], weights=cases)) for key in ("median_ape", "p90_ape")
        )
        note = f"{half:.0f} % and {most:.0f} %"
        bars.append(
            Bar(
                question.replace("`", ""),
                "measured",
                {"half of the cases": half, "nine of ten": most - half},
                note=note,
            )
        )
    colors = {"half of the cases": "blue", "nine of ten": "sky"}
    return Figure([Bars("error of a prediction, %", "", bars, colors)])


def answers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of all questions: the span of mean error, bias and coverage over the rows of each."""
    found = []
    for question, own in asked(rows).items():
        columns = (
            span([r["mape"] for r in own], percent),
            span([r.get("bias") for r in own], signed),
            span([r["coverage80"] for r in own], lambda value: percent(value, 0)),
            f"{sum(r['n'] for r in own):,}",
        )
        found.append(f"| {question} | {' | '.join(columns)} |")
    return ["| what is predicted | mean error | bias | 80 % covers | n |", "|---|---:|---:|---:|---:|", *found]


def line_of(device: Device) -> str:
    """Return the line of a GPU: desktop, server, AMD server, or small server for cards of at most 80 W."""
    if device.is_desktop:
        return "desktop"
    small = "small " if device.tdp_w is not None and device.tdp_w <= 80 else ""
    return f"{'AMD ' if 'AMD' in device.title else small}server"


def left_out(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of the GPUs that were left out in turn, by line of cards: all rules together, weighted by their cases."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for row in rows:
        groups = row.get("groups", {})
        if re.search(r"each device left out|of its host", row["rule"]) and "8" not in row["rule"]:
            for value, group in groups.get("device", groups.get("device, precision", {})).items():
                device = catalog.device(value.partition(",")[0])
                found.setdefault(line_of(device), {}).setdefault(device.name, []).append(group)
    lines = []
    for line, devices in sorted(found.items()):
        for name, of in [*sorted(devices.items()), ("**all**", [g for own in devices.values() for g in own])]:
            cases = [g["n"] for g in of]
            mean, bias, covered = (float(np.average([g[key] for g in of], weights=cases)) for key in _OF_GROUP)
            shown = (percent(mean), signed(bias), percent(covered, 0))
            lines.append(f"| {line} | {name} | {sum(cases)} | {' | '.join(shown)} |")
    return [
        "| line | GPU left out | n | mean error | bias | 80 % covers |",
        "|---|---|---:|---:|---:|---:|",
        *lines,
        "",
    ]


_OF_GROUP = ("mape", "bias", "coverage80")

# The parts of the page: a heading, what its tables show, and how the titles of its sources begin.
_LEFT_OUT = "GPUs without timings"
_KINDS = (
    (
        "Unseen networks",
        "The device is known. Each prediction is of a network that took no part in the calibration.",
        ("timm", "CIFAR", "an EPYC"),
    ),
    (
        _LEFT_OUT,
        "Each GPU is left out in turn and predicted from its data sheet and from other GPUs, unless a table states otherwise. The time of the H200's host comes from its rows.",
        ("NVIDIA", "GPUs timed here", "CNNs", "NeuSight"),
    ),
    ("More GPUs", "Timings on a few GPUs predict those on more.", ("TensorFlow", "Pollux", "PALEO")),
    ("Single operators", "Matrix products, convolutions and all-reduces instead of whole networks.", ("DeepBench",)),
    ("Other tables", "", ("",)),
)


def page(result: dict[str, Any]) -> str:
    """Return docs/accuracy.md from saved results: what to expect, then the tables of each kind, collapsed."""
    rows = result["rows"]
    is_old = any(r.get("bias") is None for r in rows)
    versions = ", ".join(f"{k} {v}" for k, v in result["versions"].items() if k != "chronograd")
    text = [
        "# Accuracy",
        "",
        "How far is a predicted time from a measured one? We compare predictions with measurements, ours and published ones, that the fit",
        "did not use:",
        "",
        *expectations(rows),
        "",
        "![Errors of predicted times](accuracy.svg)",
        "",
        "The first part of a bar ends at the error of the median case. The whole bar ends at the error that nine of ten cases stay below.",
        "Predictions for a new chip are the least accurate: run `chronograd calibrate` on it first.",
        "",
        "## By question",
        "",
        *answers(rows),
        "",
        "An error is |predicted / measured − 1| of a time. *Bias* is the mean with its sign: above 0, predicted times are too long.",
        "*80 % covers* is the share of measured values inside the predicted interval; it should be 80 %.",
        "",
        "## All rules",
        "",
        "A rule states which rows calibrate and which are predicted. Only a random seed chooses the rows that calibrate. No rule depends on a",
        "network or a family.",
        "",
        "- *Prior of round numbers*: the fit starts from rounded default rates.",
        "- *Prior of nhwc*: the fit starts from the rates of the table in that memory layout.",
        "- *At the speed of the calibration*: measured times are converted to the speed that the machine had during its calibration.",
        "",
        *collapsed(
            f"{len(rows)} rules, one line each",
            [
                "*90 % below* is the error that nine of ten cases stay below.",
                "",
                "| " + " | ".join(COLUMNS) + " |",
                "|---|---|" + "---:|" * (len(COLUMNS) - 2),
                *("| " + " | ".join(marked(r)) + " |" for r in rows),
                "",
                *verdicts(rows),
                *(["Rows without a bias come from an older version.", ""] if is_old else []),
            ],
        ),
        *(collapsed("Changes since the last version", since(result)) if "before" in result else []),
    ]
    reasons = {""}  # one that explains several sources is printed once
    left = list(dict.fromkeys(r["source"] for r in rows))
    for kind, intro, starts in _KINDS:
        sources = [source for source in left if source.startswith(starts)]
        left = [source for source in left if source not in sources]
        if sources:
            text += [f"## {kind}", "", *([intro, ""] if intro else [])]
        if sources and kind == _LEFT_OUT:
            text += left_out(rows)
        for source in sources:
            text += collapsed(source, tables(source, [r for r in rows if r["source"] == source], reasons))
    text += [
        "## How this page is made",
        "",
        "```sh",
        "python -m benchmarks.accuracy --page docs/accuracy.md --from benchmarks/results/accuracy.json",
        "```",
        "",
        f"This command writes the page and its figure from saved results ({result['date']}; {versions}).",
        "`python -m benchmarks.accuracy --measured DIR` computes the results again from tables of the same file names under DIR. With",
        "`--since TAG` it also scores the same rows with the code of TAG, and fails if a rule is gone or worse.",
    ]
    return "\n".join(text) + "\n"


def collapsed(summary: str, lines: Sequence[str]) -> list[str]:
    """Return lines that a reader opens with a click."""
    return [
        "<details>",
        f"<summary>{summary}</summary>",
        "",
        *"\n".join(lines).strip().splitlines(),
        "",
        "</details>",
        "",
    ]


def tables(source: str, group: Sequence[dict[str, Any]], reasons: set[str]) -> list[str]:
    """Return the tables of a source, its worst cases and the reason for its error, unless `reasons` already has it."""
    text = []
    for note in dict.fromkeys(r["note"] for r in group if r["note"]):
        text += [f"{note}.".replace("..", "."), ""]
    for r in group:
        seeds = ", ".join(percent(e) for e in r["by_seed"])
        if seeds:
            text.append(f"- {r['rule']}: by seed {seeds}")
    if any(r["by_seed"] for r in group):
        text.append("")
    for r in group:
        text += breakdown(r)
    text += [f"| furthest off: {group[-1]['rule']} | predicted / measured |", "|---|---:|"]
    text += [f"| {name} | {ratio:.2f} |" for name, ratio in group[-1]["worst_cases"][:8]]
    if reason(source) not in reasons:
        text += ["", *textwrap.wrap(reason(source), 118, break_long_words=False, break_on_hyphens=False)]
        reasons.add(reason(source))
    return text


# An 80 % interval of the right width covers between these shares.
_COVERAGE = (0.75, 0.85)


def misses(row: dict[str, Any]) -> bool:
    """Return whether the mean error of a row is above its aim."""
    return row["aim"] is not None and row["mape"] > row["aim"]


def width(row: dict[str, Any]) -> str:
    """Return `narrow` or `wide` if the intervals of a row are; else ""."""
    low, high = _COVERAGE
    share = row["coverage80"]
    return "" if share is None or low <= round(share, 2) <= high else "narrow" if share < low else "wide"


def marked(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row on the page: a mean that misses its aim is bold, and intervals are marked narrow or wide."""
    found = cells(row)
    if misses(row):
        found[COLUMNS.index("mean")] = f"**{found[COLUMNS.index('mean')]}**"
    found[-1] = f"{found[-1]} {width(row)}".strip()
    return found


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the number of rows that miss their aim, and of intervals that are too narrow or too wide."""
    aimed = [r for r in rows if r["aim"] is not None]
    share, count = coverage(rows)
    narrow, wide = (sum(width(r) == what for r in rows) for what in ("narrow", "wide"))
    return [
        f"{sum(map(misses, rows))} of {len(aimed)} rows with an aim miss it: their mean is bold. 80 % intervals cover "
        f"{percent(share, 0)} on average over {count} rows.",
        f"{narrow} are too narrow (less than 75 %) and {wide} too wide (more than 85 %).",
        "",
    ]


def since(result: dict[str, Any]) -> list[str]:
    """Return the rules that are new, better, worse or gone since the version whose rows the results have."""
    found, version = changes(result), result["before"]["version"]
    told = f"{version} and this version scored the same rows of {how_many(len({line[0] for line in found}), 'sources')} in one run"
    changed = [line for line in found if line[-1]]
    if not changed:
        return [f"{told}. No rule is new, better, worse or gone."]
    head = ["| " + " | ".join(CHANGES) + " |", "|---|---|" + "---:|" * (len(CHANGES) - 2)]
    return [
        f"{told}. {len(changed)} of {len(found)} rules changed by 2 percentage points and a tenth, or are new or gone:",
        "",
        *head,
        *("| " + " | ".join(line) + " |" for line in changed),
    ]


def breakdown(row: dict[str, Any]) -> list[str]:
    """Return tables of a row's groups: by device, precision, mode, network."""
    text = []
    for what, groups in row.get("groups", {}).items():
        if len(groups) > 1:
            head = f"| {row['rule']}: {what} | n | mean | bias | 80 % covers |"
            text += [head, "|---|---:|---:|---:|---:|"]
            text += [
                f"| {value} | {g['n']} | {percent(g['mape'])} | {signed(g['bias'])} | {percent(g['coverage80'], 0)} |"
                for value, g in groups.items()
            ]
            text.append("")
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="folder of published tables")
    parser.add_argument(
        "--only", nargs="+", choices=SOURCES, help="these sources instead of all that need no measuring"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--save", type=Path, help="add to this file of results")
    parser.add_argument("--page", type=Path, help="write the page from --from")
    parser.add_argument("--from", dest="saved", type=Path, help="saved results")
    parser.add_argument(
        "--since", nargs="?", const="", metavar="TAG", help="compare with this tag; default: the newest"
    )
    options = parser.parse_args(arguments)
    if options.page is not None:
        if options.saved is None:
            parser.error("--page needs --from RESULTS.json")
        result = json.loads(options.saved.read_text(encoding="utf-8"))
        options.page.write_text(page(result), encoding="utf-8")
        plots.save(picture(result["rows"]), options.page.with_suffix(".svg"))
        return 0
    if options.measured is None or not options.measured.is_dir():
        parser.error(f"--measured must be a folder of tables, and is {options.measured}")
    names = options.only or [name for name in SOURCES if options.since is None or name not in STORED]
    tag = ""
    if options.since is not None:  # before an hour of work
        tag = options.since or _git("describe", "--tags", "--abbrev=0").decode().strip()
        _git("rev-parse", "--verify", "--quiet", f"{tag}^{{commit}}")
    result = run(options.measured, names, _say)
    if tag:
        rows = scored_at(tag, options.measured, names, _say)
        result["before"] = {"version": tag, "rows": [{key: row.get(key) for key in _COMPARED} for row in rows]}
    if options.save is not None:
        old = json.loads(options.save.read_text(encoding="utf-8")) if options.save.exists() else {}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(merged(old, result), indent=1) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(result, indent=1))
    elif not tag:
        print_table(result)
    else:
        print(f"{result['before']['version']} → this tree")
        _print([CHANGES, *changes(result)])
    return int("before" in result and any(line[-1] in FAILING for line in changes(result)))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
