"""ONNX: is an exported network the same network, and to which precision do PyTorch and ONNX Runtime agree?

Every network takes the path of `chronograd export`: capture with a dummy input, write, load again, check, run in ONNX Runtime.
The outputs of both are compared with each other and with those of the same network in float64, which are nearer to the truth.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from chronograd.answer import Table
from chronograd.figure import Bar, Bars, Figure
from chronograd.files import write_json
from chronograd.job import Job, from_dict
from chronograd.measure import environment
from chronograd.units import memory, percent, seconds, upwards
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, mean, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed, table
from chronograd_lab.common.weights import weights_file
from chronograd_lab.common.written import Block

if TYPE_CHECKING:
    from chronograd.deploy.export_source import ExportSource
    from chronograd.deploy.quantise import Turns

PYTORCH, RUNTIME, APART = "PyTorch, off float64", "ONNX Runtime, off float64", "off each other"
ERRORS = {PYTORCH: "error of PyTorch", RUNTIME: "error of ONNX Runtime", APART: "difference of the two"}
COLORS = {ERRORS[PYTORCH]: "orange", ERRORS[RUNTIME]: "accent"}
TABLES = ("files", "checks", "times", "parity", "exact", "int8")
# A network ignores its inputs if its outputs differ by less than this between inputs, as a share of the largest.
SAME_FOR_ALL = 1e-4
# Passes are still timed if other processes and one of our threads exceed the cores by this share of a core.
SPARE = 0.25
# Faults of a file, and the check that should detect each.
SOUND, HALF, EDGE, WEIGHT = "as exported", "cut in half", "an edge renamed", "one tensor of weights 1 % larger"


# -- conduct ------------------------------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    networks: Mapping[str, Row] = settings["networks"]
    trained = runner.train({name: _job(own) for name, own in networks.items() if "training" in own})
    rows: dict[str, list[Row]] = {title: [] for title in TABLES}
    for name, own in networks.items():
        for title, more in _measured(runner, settings, name, own, trained.get(name)).items():
            rows[title] += [{"network": name, **row} for row in more]
    return runner.results(settings, rows=rows)


def _measured(runner: StudyRunner, settings: Settings, name: str, own: Row, run: Any) -> dict[str, list[Row]]:
    """Return rows of one network, by table. A file stores them, so that an interrupted study continues with the next
    network.
    """
    asked = {**{key: value for key, value in settings.items() if key != "networks"}, **own}
    kept = runner.folder / "networks" / f"{runner.path(name).name}.json"
    if not kept.exists() or not _is_done(json.loads(kept.read_text()), asked):
        begun = time.monotonic()
        with TemporaryDirectory() as folder, _one_thread():
            rows = _rows(settings, own, _source(own, run), Path(folder) / "net.onnx", name == settings["checked"])
        kept.parent.mkdir(exist_ok=True)
        write_json(kept, {"asked": asked, "rows": rows})
        is_timed = not any(row["refused"] for row in rows["times"])
        refusal = "" if is_timed else "  not timed: other processes keep the machine busy; run the same command again"
        runner.say(f"{name:<40} {time.monotonic() - begun:6.1f} s{refusal}")
    return dict(json.loads(kept.read_text())["rows"])


def _is_done(stored: Row, asked: Row) -> bool:
    """Return whether stored rows have the same settings and were timed."""
    return bool(stored["asked"] == asked) and not any(row.get("refused", True) for row in stored["rows"]["times"])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run PyTorch and ONNX Runtime on one thread each: several threads wait for the slowest, whose core other processes use."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _job(own: Row) -> Job:
    weights = own.get("weights")
    network = {"name": own["network"], "options": own.get("options", {}), "weights": weights and weights_file(weights)}
    given = {"task": own.get("task", "classification"), "network": network, "data": own["data"]}
    return from_dict({**given, "training": own["training"]} if "training" in own else given)


def _source(own: Row, run: Any) -> ExportSource:
    from chronograd.deploy import export_source

    return export_source.of_run(run) if run is not None else export_source.of_job(_job(own), own["network"])


def _rows(settings: Settings, own: Row, source: ExportSource, path: Path, is_checked: bool) -> dict[str, list[Row]]:
    from chronograd.deploy import parity as parities
    from chronograd.deploy.export import EXAMPLES
    from chronograd.deploy.export_answer import export
    from chronograd.deploy.parity import Tolerance

    count: int = own.get("samples") or settings["samples"]
    # This writes the file whatever the error: its size is the question here.
    file = export(
        source,
        path,
        batches=[max(settings["batches"])],
        num_samples=1,
        int8=own.get("int8"),
        tolerance=Tolerance(atol=math.inf),
    ).data
    random, real = source.random(count, None), source.real(count, None)
    samples = [random] if real is None else [random, real]
    compared: list[Row] = []
    tolerance = Tolerance(settings["rtol"], settings["atol"])
    for batch in settings["batches"]:
        one = parities.compare(path, source.network, samples, batches=[batch], tolerance=tolerance)
        compared += [{"batch": batch, **row} for row in parities.data_of(one)["outputs"]]
    about = {"weights": source.weights.partition(" (")[0], "is_trained": not source.weights.startswith("initial"),
             "dummy": [EXAMPLES, *source.card.shape], "holds": all(row["holds"] for row in compared),
             "operators": sum(file["operators"].values())}  # fmt: skip
    rows = {
        "files": [{**about, **{key: file[key] for key in ("inputs", "outputs", "opset", "bytes")}}],
        "parity": compared,
    }
    seen = samples[-1].seen
    rows |= {"exact": _exact(source, path, seen), "times": _times(source, path, seen, settings)}
    rows["checks"] = _checks(source, path, samples) if is_checked else []
    rows["int8"] = [{**file["int8"], "float_bytes": file["bytes"], "file": "FILE-int8.onnx"}] if file["int8"] else []
    return rows


def _outputs(path: Path, batch: Any) -> list[np.ndarray]:
    from chronograd.deploy.parity import session

    running = session(path)
    return [np.asarray(one) for one in running.run(None, {running.get_inputs()[0].name: batch.numpy()})]


def _exact(source: ExportSource, path: Path, seen: Any) -> list[Row]:
    """Return the errors of both against the network in float64 and against each other, over one batch of all samples."""
    import copy

    import torch

    from chronograd.deploy.export import flat

    wide = copy.deepcopy(source.network).double()
    with torch.no_grad():
        exact = [one.numpy() for one in flat(wide(seen if source.is_text else seen.double()))]
        torchs = [one.numpy() for one in flat(source.network(seen))]
    rows = []
    for output, truth, ours, theirs in zip(_names(source), exact, torchs, _outputs(path, seen), strict=True):
        apart = {PYTORCH: ours - truth, RUNTIME: theirs - truth, APART: theirs.astype(np.float64) - ours}
        rows.append(
            {"output": output, "size": float(np.abs(truth).max()), "varies": float((truth.max(0) - truth.min(0)).max()),
             "largest": {what: float(np.abs(errors).max()) for what, errors in apart.items()},
             "runtime_nearer": float((np.abs(apart[RUNTIME]) < np.abs(apart[PYTORCH])).mean()),
             "pytorch_nearer": float((np.abs(apart[PYTORCH]) < np.abs(apart[RUNTIME])).mean())}
        )  # fmt: skip
    return rows


def _names(source: ExportSource) -> Sequence[str]:
    return getattr(source.network, "output_names", ("logits",))


def _times(source: ExportSource, path: Path, seen: Any, settings: Settings) -> list[Row]:
    """Return the seconds of a pass by PyTorch and by ONNX Runtime, called in turn in one process, at the smallest and largest
    batch.
    """
    import torch

    from chronograd.deploy.parity import session
    from chronograd.deploy.quantise import in_turn

    running = session(path)
    port = running.get_inputs()[0].name

    @torch.inference_mode()
    def torchs(batch: Any) -> Any:
        return source.network(batch)

    rows = []
    for size in dict.fromkeys((min(settings["batches"]), max(settings["batches"]))):
        batch = seen[:size].contiguous()
        turns = in_turn(partial(torchs, batch), partial(running.run, None, {port: batch.numpy()}), settings["seconds"])
        rows.append({"batch": len(batch), "threads": torch.get_num_threads(), **timed(turns, environment.cores())})
    return rows


def timed(turns: Turns, cores: int) -> Row:
    """Return a row with the times of both functions, or a refused row if the machine was busier than `cores` and `SPARE` of one."""
    is_refused = turns.others + 1 > cores + SPARE
    row: Row = {"refused": is_refused, "others": turns.others, "cores": cores, "pairs": len(turns.first_s)}
    if is_refused:
        return row
    walls, cpus = (turns.first_s, turns.second_s), (turns.first_cpu_s, turns.second_cpu_s)
    for unit, (first, second) in (("", walls), ("cpu_", cpus)):
        for who, times in (("pytorch", first), ("runtime", second)):
            for what, share in (("median_s", 0.5), ("p95_s", 0.95)):
                row[f"{who}_{unit}{what}"] = float(np.quantile(times, share))
        for what, share in (("low", 0.1), ("ratio", 0.5), ("high", 0.9)):
            row[f"{unit}{what}"] = float(np.quantile(second / first, share))
    return row


def _checks(source: ExportSource, path: Path, samples: Sequence[Any]) -> list[Row]:
    """Return the results of loading, the checker and the comparison for a file, and for the same file with a fault of each
    kind.
    """
    from chronograd.deploy import parity as parities
    from chronograd.deploy.export import check_onnx, read_graph

    content, port = path.read_bytes(), read_graph(path).inputs[0].name.encode()
    rows = []
    for fault, faulty in (
        (SOUND, content),
        (HALF, content[: len(content) // 2]),
        (EDGE, content.replace(port, b"?" * len(port), 1)),
        (WEIGHT, _with_larger_weights(source, content)),
    ):
        file = path.with_name("checked.onnx")
        file.write_bytes(faulty)
        said = [_said(lambda: read_graph(file)), _said(lambda: check_onnx(file))]  # noqa: B023, called at once
        compared = parities.compare(file, source.network, samples, batches=[len(samples[0].seen)])
        beyond = sum(one.num_beyond for one in compared.differences)
        said.append("" if compared.holds else compared.failure or f"{beyond:,} values beyond the tolerance")
        load, checker, parity = (_without_folder(one, path.parent) for one in said)
        rows.append({"fault": fault, "load": load, "checker": checker, "parity": parity})
    return rows


def _said(call: Callable[[], Any]) -> str:
    """Return the error of a call in one line; empty if there is none."""
    from chronograd.errors import ExportError

    try:
        call()
    except ExportError as error:
        return error.message
    return ""


def _without_folder(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "")


def _with_larger_weights(source: ExportSource, content: bytes) -> bytes:
    """Return the file with its first uncompressed tensor of weights made larger by a hundredth."""
    for tensor in (one for one in source.network.state_dict().values() if one.ndim > 1):
        raw = tensor.numpy().tobytes()
        if raw in content:
            return content.replace(raw, (tensor * 1.01).numpy().tobytes())
    raise AssertionError("no tensor of weights stands in the file as it is")


# -- page ------------------------------------------------------------------------------------------


def values(results: Results) -> dict[str, Any]:
    rows, settings = results.rows, results.settings
    own, faults = rows["parity"], [row for row in rows["checks"] if row["fault"] != SOUND]
    worst = max(own, key=lambda row: math.inf if row["tightest"] is None else row["tightest"])
    times = [row for row in rows["times"] if "cpu_ratio" in row]
    off = [row["largest"] for row in rows["exact"] if row["largest"][PYTORCH]]
    ratios = [one[RUNTIME] / one[PYTORCH] for one in off]
    eight = [row for row in rows["int8"] if row["before"] is not None]
    gains = {row["network"]: 100 * (row["after"]["accuracy"] - row["before"]["accuracy"]) for row in eight}
    sizes = [row["bytes"] / row["float_bytes"] for row in rows["int8"]]
    return {
        "match": {
            "count": sum(row["holds"] for row in rows["files"]), "of": len(rows["files"]), "digits": _fewest_digits(own), "equal": _equal(own),
            **{name: upwards(worst["tightest"] * settings[name]) for name in ("rtol", "atol")},
        },
        "worst": worst,
        "rows": {name: sum(row[name] for row in own if row["num_rows"]) for name in ("num_same", "num_rows")},
        "first": {"takes": _ports(rows["files"][0]["inputs"]), "gives": _ports(rows["files"][0]["outputs"], " and "),
                  "opset": rows["files"][0]["opset"]},
        "faults": {"of": len(faults), **{who: sum(bool(row[who]) for row in faults) for who in ("load", "checker", "parity")}},
        "times": {
            "of": len(times), "less": sum(row["cpu_high"] < 1 for row in times), "pairs": min(row["pairs"] for row in times),
            "threads": times[0]["threads"],
        },
        "off": {
            "low": min(ratios), "high": max(ratios),
            "most": f"{max(row['largest'][who] / row['size'] for row in rows['exact'] for who in (PYTORCH, RUNTIME)):.0e}",
        },
        "same_for_all": {"names": ", ".join(_same_for_all(rows["exact"])), "share": SAME_FOR_ALL},
        "eight": {
            "smallest": min(sizes), "largest": max(sizes), "gain": max(gains.values()), "loss": min(gains.values()),
            "worst": min(gains, key=gains.__getitem__), "of": len(sizes),
            "faster": sum(row["speed"]["ratio_high"] < 1 for row in rows["int8"]),
        },
    }  # fmt: skip


def blocks(results: Results) -> dict[str, Block]:
    rows = results.rows
    shown = {
        "Exported with a dummy input": Block(table(rows["files"], {
            "network": "network", "weights": "weights", "dummy": lambda row: " × ".join(map(str, row["dummy"])),
            "takes": ("inputs", _ports), "gives": ("outputs", _ports), "operators": ("operators", "{:,}".format), "file": ("bytes", memory),
        }, text=5)),
        "Loaded and checked": Block(table(rows["checks"], {
            "file": "fault", "onnx.load": lambda row: row["load"] or "fine", "onnx.checker, with shapes": lambda row: row["checker"] or "fine",
            "outputs, compared with PyTorch": lambda row: row["parity"] or "matches",
        }, text=4)),
        "Run by ONNX Runtime": Block(_timed(rows["times"])),
        "Do the outputs match, and to which precision?": Block(_parity(rows["parity"])),
        "Which of the two is nearer to the truth?": Block(_errors(rows["exact"]), _errors_shown(rows["exact"])),
    }  # fmt: skip
    if rows["int8"]:
        shown["Eight bits"] = Block(_eight_bits(rows["int8"]))
    return shown


def _digits(row: Row) -> int | None:
    """Return the significant digits of the largest output that all values share; None if the outputs are equal.

    The largest error is below half of the last such digit.
    """
    share = row["largest_absolute"] / row["largest_output"] if row["largest_output"] else 0.0
    return math.floor(-math.log10(2 * share)) if share else None


def _fewest_digits(rows: Sequence[Row]) -> int | None:
    return min((digits for row in rows if (digits := _digits(row)) is not None), default=None)


def _equal(rows: Sequence[Row]) -> float:
    """Return the share of values that are equal bit for bit."""
    return float(sum(row["num_equal"] for row in rows) / sum(row["num_values"] for row in rows))


def _ports(ports: Sequence[Mapping[str, Any]], joint: str = "; ") -> str:
    return joint.join(f"{port['name']} ({', '.join(map(str, port['shape']))})" for port in ports)


def _timed(rows: Sequence[Row]) -> Table:
    known = [row for row in rows if "cpu_ratio" in row]
    body = [
        [row["network"], str(row["batch"]), *(seconds(row[f"{who}_{unit}median_s"]) for who in ("pytorch", "runtime") for unit in ("cpu_", "")),
         *(f"{row[f'{unit}ratio']:.2f} ({row[f'{unit}low']:.2f} … {row[f'{unit}high']:.2f})" for unit in ("cpu_", ""))]
        for row in known
    ]  # fmt: skip
    columns = [
        "network",
        "batch",
        "PyTorch, CPU",
        "wall",
        "ONNX Runtime, CPU",
        "wall",
        "ratio of CPU times",
        "of wall times",
    ]
    missing = [
        f"{row['network']} at batch {row['batch']} was not timed: other processes used the cores."
        for row in rows
        if row not in known
    ]
    return listed(columns, body, notes=missing)


def _parity(rows: Sequence[Row]) -> Table:
    batches = sorted(distinct(rows, "batch"))
    body = []
    for (network, output, kind), group in grouped(rows, "network", "output", "kind").items():
        by_batch = [shown(mean(group, "largest_absolute", batch=batch), "{:.1e}".format, "") for batch in batches]
        tightest = [row["tightest"] for row in group]
        body.append(
            [network, output, kind, *by_batch, f"{max(row['largest_relative'] for row in group):.1e}",
             f"{max(row['largest_ulp'] for row in group):,}", percent(_equal(group), 0), shown(_fewest_digits(group), str, "all"),
             "–" if None in tightest else f"{max(tightest):.2g}"]
        )  # fmt: skip
    columns = ["network", "output", "inputs", *(f"batch {batch}" for batch in batches)]
    return listed([*columns, "relative", "ULP", "equal", "digits", "of tolerance"], body, 3)


def _same_for_all(exact: Sequence[Row]) -> list[str]:
    """Return the names of networks whose output does not depend on the input."""
    by_network = grouped(exact, "network").items()
    return [name for name, own in by_network if all(row["varies"] < SAME_FOR_ALL * row["size"] for row in own)]


def _named(row: Row) -> str:
    return f"{row['network']}, {row['output']}"


def _largest(who: str, errors: Row) -> str:
    return f"{errors[who]:.1e}"


def _errors(rows: Sequence[Row]) -> Table:
    return table(rows, {
        "network and output": _named, "largest output": ("size", "{:.3g}".format),
        **{name: ("largest", partial(_largest, who)) for who, name in ERRORS.items()},
        "PyTorch nearer": lambda row: percent(row["pytorch_nearer"], 0), "ONNX Runtime nearer": lambda row: percent(row["runtime_nearer"], 0),
    })  # fmt: skip


def _errors_shown(rows: Sequence[Row]) -> Figure:
    bars = [
        Bar(
            f"{_named(row)}: {who.partition(',')[0]}",
            "measured",
            {ERRORS[who]: 1e6 * row["largest"][who] / row["size"]},
        )
        for row in rows
        for who in (PYTORCH, RUNTIME)
    ]
    return Figure([Bars("millionths of the largest output", "largest error", bars, COLORS)])


def _eight_bits(rows: Sequence[Row]) -> Table:
    def accuracy(when: str) -> Callable[[Row], str]:
        return lambda row: "–" if row[when] is None else percent(row[when]["accuracy"], 2)

    def time_(row: Row) -> str:
        speed = row["speed"]
        return f"{speed['ratio']:.2f} ({speed['ratio_low']:.2f} … {speed['ratio_high']:.2f})"

    return table(rows, {
        "network": "network", "how": "how", "file": lambda row: percent(row["bytes"] / row["float_bytes"], 0),
        "float32": accuracy("before"), "int8": accuracy("after"),
        "lost : won": ("changed", lambda own: "–" if own is None else f"{own['lost']:,} : {own['won']:,} (p {own['p']:.2g})"),
        "batch": lambda row: str(row["speed"]["batch"]), "time": time_,
    }, text=2)  # fmt: skip


_DIGITS: Row = {
    "network": "resnet8", "data": {"name": "digits"},
    "training": {"recipe": "sgd-one-cycle", "epochs": 12, "batch": 64, "learning_rate": 0.1}, "int8": "static",
}  # fmt: skip
_TEXT: Row = {
    "network": "gpt2-small", "task": "language", "options": {"layers": 2, "width": 192, "heads": 4, "vocab": 2000, "sequence": 64},
    "data": {"name": "tokens", "shape": [64], "classes": 2000, "samples": 512, "test_samples": 128},
    "training": {"recipe": "adamw", "learning_rate": 0.003, "epochs": 4, "batch": 16}, "int8": "dynamic",
}  # fmt: skip
_CIFAR: Row = {"network": "resnet20", "data": {"name": "cifar10", "normalisation": "imagenet"}}
_LAPTOP: dict[str, Any] = {
    "networks": {
        "SSD-MobileNet-V1, 20 classes": {
            "network": "ssd-mobilenet-v1", "data": {"name": "synthetic", "shape": [3, 300, 300], "classes": 20}, "samples": 8,
        },
        "SSD-MobileNet-V1 × 0.25, blood cells": {
            "network": "ssd-mobilenet-v1", "task": "detection", "options": {"width": 0.25}, "data": {"name": "voc:bccd", "image_size": 160},
            "training": {"recipe": "adamw", "learning_rate": 0.002, "epochs": 15, "batch": 16, "evaluate_every": 15}, "int8": "static",
        },
        "ResNet-20, CIFAR-10": {**_CIFAR, "weights": "resnet20-12fca82f.th", "int8": "static"},
        "ResNet-20, untrained": _CIFAR,
        "ResNet-8, digits": _DIGITS,
        "GPT of two layers, drawn tokens": _TEXT,
    },
    "batches": [1, 2, 8], "samples": 64, "rtol": 1e-3, "atol": 1e-5, "seconds": 3.0, "checked": "ResNet-20, CIFAR-10",
}  # fmt: skip
_SMOKE: dict[str, Any] = {
    "networks": {
        "SSD-MobileNet-V1 × 0.25": {
            "network": "ssd-mobilenet-v1", "options": {"width": 0.25, "image_size": 64},
            "data": {"name": "synthetic", "shape": [3, 64, 64], "classes": 3},
        },
        "ResNet-8, digits": {**_DIGITS, "training": {**_DIGITS["training"], "epochs": 2}},
    },
    "batches": [1, 2], "samples": 8, "rtol": 1e-3, "atol": 1e-5, "seconds": 0.1, "checked": "ResNet-8, digits",
}  # fmt: skip

STUDY = Study(
    name="onnx-parity",
    question="Is a network exported to ONNX the same network, and to which precision do ONNX Runtime and PyTorch agree?",
    hypothesis="Both compute in float32 and round differently, so outputs agree to some 1e-6 of their size and not bit for bit. Weights "
    "of eight bits cost a fraction of a percentage point of accuracy",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    values=values,
    blocks=blocks,
)
