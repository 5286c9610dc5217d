"""ONNX: is an exported network the same network, and to which precision do PyTorch and ONNX Runtime agree?

Every network goes the way of `chronograd export`: captured with a dummy input, written, loaded again, checked, run in ONNX Runtime.
What both give is held against each other and against the same network in float64, which is nearer to the truth than either.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from chronograd.answer import Answer, Highlight, Section
from chronograd.figure import Bar, Bars, Figure
from chronograd.files import write_json
from chronograd.job import Job, from_dict
from chronograd.measure import environment
from chronograd.units import memory, percent, seconds, upwards
from chronograd.words import how_many
from chronograd.words import listed as in_words
from chronograd_lab.common.results import Results, Row, Settings
from chronograd_lab.common.rows import distinct, grouped, matching, plural, shown
from chronograd_lab.common.runner import StudyRunner
from chronograd_lab.common.study import Study, listed
from chronograd_lab.common.weights import weights_file

if TYPE_CHECKING:
    from chronograd.deploy.export_source import ExportSource
    from chronograd.deploy.quantise import Turns

PYTORCH, RUNTIME, APART = "PyTorch, off float64", "ONNX Runtime, off float64", "off each other"
COLORS = {PYTORCH: "orange", RUNTIME: "accent"}
TABLES = ("files", "checks", "times", "parity", "exact", "objects", "int8")
# A network whose outputs differ by less than this between inputs, as a share of the largest, does not look at them.
SAME_FOR_ALL = 1e-4
# Errors of two that are no further apart than by this factor are alike.
ALIKE = 2.0
# Objects of one class whose corners are nearer than this, in sides of the picture, are the same.
SAME_CORNERS = 1e-3
# Passes are still timed if other processes and one thread of ours exceed the cores by this share of one.
SPARE = 0.25
# What is wrong with a file, and who should see it.
SOUND, HALF, EDGE, WEIGHT = "as exported", "cut in half", "an edge renamed", "one tensor of weights 1 % larger"


# -- what is done with a network -------------------------------------------------------------------


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    networks: Mapping[str, Row] = settings["networks"]
    trained = runner.train({name: _job(own) for name, own in networks.items() if "training" in own})
    rows: dict[str, list[Row]] = {table: [] for table in TABLES}
    for name, own in networks.items():
        for table, more in _measured(runner, settings, name, own, trained.get(name)).items():
            rows[table] += [{"network": name, **row} for row in more]
    return runner.results(settings, rows=rows)


def _measured(runner: StudyRunner, settings: Settings, name: str, own: Row, run: Any) -> dict[str, list[Row]]:
    """Rows of one network, by table. They are kept in a file, so that an interrupted study goes on with the next network."""
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

    count: int = own.get("samples") or settings["samples"]
    # Written whatever it gives: by how much that is off is the question here.
    file = export(
        source, path, batches=[max(settings["batches"])], num_samples=1, int8=own.get("int8"), atol=math.inf
    ).data
    random, real = source.random(count, None), source.real(count, None)
    samples = [random] if real is None else [random, real]
    compared: list[Row] = []
    for batch in settings["batches"]:
        one = parities.compare(
            path, source.network, samples, batches=[batch], rtol=settings["rtol"], atol=settings["atol"]
        )
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
    rows["objects"] = [_objects(source, path)] if source.is_detector and source.dataset is not None else []
    return rows


def _outputs(path: Path, batch: Any) -> list[np.ndarray]:
    from chronograd.deploy.parity import session

    running = session(path)
    return [np.asarray(one) for one in running.run(None, {running.get_inputs()[0].name: batch.numpy()})]


def _exact(source: ExportSource, path: Path, seen: Any) -> list[Row]:
    """How far each is off the network in float64, and from the other, over one batch of all samples."""
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
    """Seconds of a pass by PyTorch and by ONNX Runtime, called in turn in one process, at the smallest and the largest batch."""
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
    """What loading, the checker and the comparison say of a file, and of the same with a fault of each kind."""
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
    """The error of a call, in a line; empty where it has none."""
    from chronograd.errors import ExportError

    try:
        call()
    except ExportError as error:
        return error.message
    return ""


def _without_folder(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "")


def _with_larger_weights(source: ExportSource, content: bytes) -> bytes:
    """The first tensor of weights that stands in the file as it is, made larger by a hundredth."""
    for tensor in (one for one in source.network.state_dict().values() if one.ndim > 1):
        raw = tensor.numpy().tobytes()
        if raw in content:
            return content.replace(raw, (tensor * 1.01).numpy().tobytes())
    raise AssertionError("no tensor of weights stands in the file as it is")


def _objects(source: ExportSource, path: Path) -> Row:
    """What is left of both after suppression, over the test pictures."""
    import torch

    from chronograd.deploy.export_answer import score_of
    from chronograd.detect.suppression import detections

    seen, num_same, num_objects, apart = source.test_input(), 0, 0, 0.0
    for number in range(len(seen)):
        picture = seen.prepare(seen.gather(np.array([number])))
        with torch.no_grad():
            ours = detections(*(one[0] for one in source.network(picture)))
        theirs = detections(*(torch.from_numpy(one[0]) for one in _outputs(path, picture)))
        num_objects += max(len(ours.labels_D), len(theirs.labels_D))
        if len(ours.labels_D) and len(theirs.labels_D):
            corners_DE = (ours.boxes_D4[:, None] - theirs.boxes_D4[None]).abs().amax(2)
            corners_DE[ours.labels_D[:, None] != theirs.labels_D[None]] = math.inf
            nearest_D = corners_DE.amin(1)
            same_D = nearest_D[nearest_D < SAME_CORNERS]
            num_same += len(same_D)
            apart = max(apart, float(same_D.max()) if len(same_D) else 0.0)
    return {
        "pictures": len(seen),
        "objects": num_objects,
        "same": num_same,
        "apart": apart,
        "map": score_of(source, path).accuracy,
    }


# -- the page --------------------------------------------------------------------------------------


def page(results: Results) -> Answer:
    rows, settings = results.rows, results.settings
    sections = [_files_section(rows["files"]), _checks_section(rows["checks"]), _times_section(rows["times"]),
                _parity_section(rows, settings), _exact_section(rows["exact"])]  # fmt: skip
    sections += [_objects_section(rows["objects"])] if rows["objects"] else []
    sections += [_int8_section(rows["int8"])] if rows["int8"] else []
    own = [row for row in rows["parity"] if row["tightest"] is not None]
    worst = max(own, key=lambda row: row["tightest"])
    highlights = [
        Highlight("networks that match", f"{sum(row['holds'] for row in rows['files'])} of {len(rows['files'])}", _asked(settings)),
        Highlight("of that tolerance, at most", f"{worst['tightest']:.2g}", f"{worst['network']}, {worst['output']}"),
        Highlight("digits in common, at least", str(_fewest_digits(own)), "of the largest output"),
    ]  # fmt: skip
    summary = [_match(rows, settings), sections[4].takeaway]
    return replace(STUDY.answer(results, sections, highlights, summary), title="ONNX: the same network?")


def _asked(settings: Settings) -> str:
    return f"rtol {settings['rtol']:g}, atol {settings['atol']:g}"


def _digits(row: Row) -> int | None:
    """Significant digits of the largest output that all values share: the largest error is below half of the last; None if equal."""
    share = row["largest_absolute"] / row["largest_output"] if row["largest_output"] else 0.0
    return math.floor(-math.log10(2 * share)) if share else None


def _fewest_digits(rows: Sequence[Row]) -> int | None:
    return min((digits for row in rows if (digits := _digits(row)) is not None), default=None)


def _match(rows: Mapping[str, Sequence[Row]], settings: Settings) -> str:
    files = rows["files"]
    failing = [row["network"] for row in files if not row["holds"]]
    own = [row for row in rows["parity"] if row["network"] not in failing]
    worst = max(own, key=lambda row: row["tightest"])
    tightest = [upwards(worst["tightest"] * settings[key]) for key in ("rtol", "atol")]
    equal = f"{percent(sum(row['num_equal'] for row in own) / sum(row['num_values'] for row in own), 0)} of the values are equal bit for bit"
    beyond = f"; {in_words(failing)} {'does' if len(failing) == 1 else 'do'} not" if failing else ""
    return (
        f"{len(files) - len(failing)} of {len(files)} networks match within {_asked(settings)}{beyond}; all that do also match "
        f"within rtol {tightest[0]}, atol {tightest[1]}, and in {_fewest_digits(own)} digits of the largest output; {equal}."
    )


def _files_section(rows: Sequence[Row]) -> Section:
    body = [
        [row["network"], row["weights"], " × ".join(map(str, row["dummy"])), "; ".join(map(_port, row["inputs"])),
         "; ".join(map(_port, row["outputs"])), f"{row['operators']:,}", memory(row["bytes"])]
        for row in rows
    ]  # fmt: skip
    first = rows[0]
    gives = in_words([_port(port) for port in first["outputs"]])
    return Section(
        "Exported with a dummy input",
        f"`torch.onnx.export(network, (dummy,), dynamo=True)` writes all {how_many(len(rows), 'networks')}, at opset {first['opset']}; "
        f"{first['network']} takes {_port(first['inputs'][0])} and gives {gives}.",
        "Of the dummy only shape and type count, not its numbers. Its first size, of two samples, is declared as one that may be "
        "any; a dummy of one sample would be taken for a network of one sample. Suppression stays outside of a detector's graph.",
        table=listed(("network", "weights", "dummy", "takes", "gives", "operators", "file"), body, 5),
    )


def _port(port: Mapping[str, Any]) -> str:
    return f"{port['name']} ({', '.join(map(str, port['shape']))})"


def _checks_section(rows: Sequence[Row]) -> Section:
    seen = [sum(not row[who] for row in rows if row["fault"] != SOUND) for who in ("load", "checker")]
    faults = len(rows) - 1
    unseen = [row["fault"] for row in rows if row["fault"] != SOUND and not row["checker"] and row["parity"]]
    takeaway = f"`onnx.load` and `onnx.checker` accept every exported file; of {faults} faults loading finds {faults - seen[0]} and the checker {faults - seen[1]}"
    if unseen:
        takeaway += f", but not {in_words(unseen)}: only running both networks shows that"
    said = {"load": "fine", "checker": "fine", "parity": "matches"}
    body = [[row["fault"], *(row[who] or fine for who, fine in said.items())] for row in rows]
    return Section(
        "Loaded and checked",
        f"{takeaway}.",
        f"What is said of the file of {rows[0]['network']}, and of the same file with one fault. The checker looks at names, types, shapes "
        "and operators.",
        table=listed(("file", "onnx.load", "onnx.checker, with shapes", "ONNX Runtime beside PyTorch"), body, 4),
    )


def _times_section(rows: Sequence[Row]) -> Section:
    title = "Run by ONNX Runtime"
    runs = "`InferenceSession(file).run(None, {name: batch})` takes batches of any size from one file"
    known = [row for row in rows if not row.get("refused")]
    refused = [row for row in rows if row.get("refused")]
    missing = []
    if refused:
        names = in_words([f"{row['network']} at batch {row['batch']}" for row in refused])
        missing.append(
            f"Not timed: {names}. Other processes kept up to {max(row['others'] for row in refused):.1f} of {refused[0]['cores']} cores busy, so "
            "the times would depend on them. Run the study again on a quiet machine."
        )
    if not known:
        return Section(title, f"{runs}. {missing[0]}")
    if any("cpu_ratio" not in row for row in known):
        missing.append(
            "These times are void: processor time was not recorded, and other processes used the same cores. Run the study again on a quiet machine."
        )
        return Section(title, f"{runs}. {missing[-1]}", lines=missing[:-1])
    faster = [row for row in known if row["cpu_high"] < 1]
    slower = [row for row in known if row["cpu_low"] > 1]
    body = [
        [row["network"], str(row["batch"]), *(seconds(row[f"{who}_{unit}median_s"]) for who in ("pytorch", "runtime") for unit in ("cpu_", "")),
         *(f"{row[f'{unit}ratio']:.2f} ({row[f'{unit}low']:.2f} … {row[f'{unit}high']:.2f})" for unit in ("cpu_", ""))]
        for row in known
    ]  # fmt: skip
    named = [f"{row['network']} at batch {row['batch']}" for row in slower]
    columns = (
        "network",
        "batch",
        "PyTorch, CPU",
        "wall",
        "ONNX Runtime, CPU",
        "wall",
        "ratio of CPU times",
        "of wall times",
    )
    return Section(
        title,
        f"{runs}; of {len(known)} settings it takes less processor time than PyTorch in {len(faster)} and more in "
        f"{len(slower)}{f' ({in_words(named)})' if named else ''}.",
        f"Medians of passes in turn in one process on the CPU, {plural(known[0]['threads'], 'thread')} each, PyTorch eager in inference mode; after a warm-up "
        f"{min(row['pairs'] for row in known)} pairs or more. CPU is the processor time of all threads, wall the time until the pass is done; if they differ, other processes "
        "used the core. Ratio: ONNX Runtime's time over PyTorch's, with the middle 80 % of pairs; less or more where that of processor time excludes 1.",
        lines=missing,
        table=listed(columns, body, 1),
    )


def _parity_section(rows: Mapping[str, Sequence[Row]], settings: Settings) -> Section:
    own = rows["parity"]
    batches = sorted(distinct(own, "batch"))
    body = []
    for (network, output, kind), group in grouped(own, "network", "output", "kind").items():
        worst = max(group, key=lambda row: math.inf if row["tightest"] is None else row["tightest"])
        by_batch = [
            f"{matching(group, batch=batch)[0]['largest_absolute']:.1e}" if matching(group, batch=batch) else ""
            for batch in batches
        ]
        equal = sum(row["num_equal"] for row in group) / sum(row["num_values"] for row in group)
        body.append(
            [network, output, kind, *by_batch, f"{max(row['largest_relative'] for row in group):.1e}",
             f"{max(row['largest_ulp'] for row in group):,}", percent(equal, 0), shown(_fewest_digits(group), str, 'all'),
             "–" if worst["tightest"] is None else f"{worst['tightest']:.2g}"]
        )  # fmt: skip
    kinds = [row for row in own if row["num_rows"]]
    same, of = (sum(row[key] for row in kinds) for key in ("num_same", "num_rows"))
    return Section(
        "Do the outputs match, and to which precision?",
        _match(rows, settings),
        f"The largest absolute error at each batch, and over all batches the largest relative and ULP error (steps from one float32 to the "
        "next, many near 0), how many values are the same bit for bit, how many significant digits of the largest output all share, and which share of the tolerance asked, "
        "atol + rtol · |PyTorch's|, the worst value takes. The likeliest class is the same in "
        f"{same:,} of {how_many(of, 'rows')}.",
        lines=_same_for_all(rows["exact"]),
        table=listed(
            (
                "network",
                "output",
                "inputs",
                *(f"batch {batch}" for batch in batches),
                "relative",
                "ULP",
                "equal",
                "digits",
                "of tolerance",
            ),
            body,
            3,
        ),
    )


def _same_for_all(exact: Sequence[Row]) -> list[str]:
    """A sentence on networks that give the same whatever they see."""
    names = [
        network
        for network, own in grouped(exact, "network").items()
        if all(row["varies"] < SAME_FOR_ALL * row["size"] for row in own)
    ]
    if not names:
        return []
    return [
        f"{in_words(names)} gives the same for every input, to {SAME_FOR_ALL:g} of its output: that both agree proves nothing there."
    ]


def _exact_section(rows: Sequence[Row]) -> Section:
    names = [f"{row['network']}, {row['output']}" for row in rows]
    ratios = [row["largest"][RUNTIME] / row["largest"][PYTORCH] for row in rows if row["largest"][PYTORCH]]
    most = max(row["largest"][what] / row["size"] for row in rows for what in (PYTORCH, RUNTIME))
    is_alike = max(ratios) <= ALIKE and min(ratios) >= 1 / ALIKE
    bars = [
        Bar(f"{name}: {what.partition(',')[0]}", "measured", {what: 1e6 * row["largest"][what] / row["size"]})
        for name, row in zip(names, rows, strict=True)
        for what in (PYTORCH, RUNTIME)
    ]
    body = [
        [name, f"{row['size']:.3g}", *(f"{row['largest'][what]:.1e}" for what in (PYTORCH, RUNTIME, APART)), percent(row["pytorch_nearer"], 0), percent(row["runtime_nearer"], 0)]
        for name, row in zip(names, rows, strict=True)
    ]  # fmt: skip
    return Section(
        "Which of the two is nearer to the truth?",
        f"Against the same network in float64 ONNX Runtime is off by {min(ratios):.1f} to {max(ratios):.1f} times as much as PyTorch, either by "
        f"at most {most:.0e} of the largest output: "
        + ("neither is wrong, both round in float32." if is_alike else "one rounds more than the other."),
        "Largest errors over one batch of all samples, of the test split where there is one. Nearer: share of values of which one is nearer "
        "to float64 than the other.",
        figure=Figure([Bars("millionths of the largest output", "largest error", bars, COLORS)]),
        table=listed(
            ("network and output", "largest output", PYTORCH, RUNTIME, APART, "PyTorch nearer", "ONNX Runtime nearer"),
            body,
        ),
    )


def _objects_section(rows: Sequence[Row]) -> Section:
    (row,) = rows[:1]
    body = [
        [
            r["network"],
            f"{r['pictures']:,}",
            f"{r['objects']:,}",
            f"{r['same']:,}",
            f"{r['apart']:.1e}",
            percent(r["map"], 2),
        ]
        for r in rows
    ]
    return Section(
        "The same objects?",
        f"After suppression {row['same']:,} of {how_many(row['objects'], 'objects')} in {row['pictures']:,} test pictures are the same, with corners at most {row['apart']:.1e} of a side apart; "
        f"mAP from ONNX Runtime's outputs is {percent(row['map'], 2)}.",
        "Suppression, outside of the graph, after either; the objects of a picture are the same where their classes are, in order of their scores.",
        table=listed(("network", "pictures", "objects", "the same", "corners apart", "mAP, 11-point"), body),
    )


def _int8_section(rows: Sequence[Row]) -> Section:
    body = []
    for row in rows:
        before, after, speed, changed = row["before"], row["after"], row["speed"], row["changed"]
        body.append(
            [row["network"], row["how"], percent(row["bytes"] / row["float_bytes"], 0),
             *(("–", "–") if before is None else (percent(before["accuracy"], 2), percent(after["accuracy"], 2))),
             "–" if changed is None else f"{changed['lost']:,} : {changed['won']:,} (p {changed['p']:.2g})",
             str(speed["batch"]), f"{speed['ratio']:.2f} ({speed['ratio_low']:.2f} … {speed['ratio_high']:.2f})"]
        )  # fmt: skip
    known = [row for row in rows if row["before"] is not None]
    points = [100 * (row["after"]["accuracy"] - row["before"]["accuracy"]) for row in known]
    faster = [row["network"] for row in rows if row["speed"]["ratio_high"] < 1]
    worst = known[int(np.argmin(points))]
    return Section(
        "Eight bits",
        f"Files shrink to {percent(min(row['bytes'] / row['float_bytes'] for row in rows), 0)} to {percent(max(row['bytes'] / row['float_bytes'] for row in rows), 0)}; "
        f"accuracy changes by {max(points):+.2f} to {min(points):+.2f} percentage points ({worst['network']}); "
        f"{len(faster)} of {len(rows)} {'is' if len(faster) == 1 else 'are'} faster.",
        "Accuracy on the whole test split, of a detector mAP by the 11-point metric. Lost : won are answers that are right in one of the two "
        "only, with the p of McNemar's exact test. Time: int8 over float32 at one batch, in turn, with the middle 80 % of pairs.",
        table=listed(("network", "how", "file", "float32", "int8", "lost : won", "batch", "time"), body, 2),
    )


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
    hypothesis="Both compute in float32 and round differently, so outputs agree to some 1e-6 of their size and not bit for bit; weights "
    "of eight bits cost a fraction of a point of accuracy",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP},
    conduct=conduct,
    computed=page,
)
