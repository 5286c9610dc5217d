"""The all-reduce choices of tf.distribute, each measured where it runs: does AUTO choose best?

One machine: NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice. Several: AUTO, RING, NCCL.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import communication_section, table_of
from chronograd.figure import Bar, Bars, Figure
from chronograd.job import Job, from_dict
from chronograd.study.lab import Lab
from chronograd.study.ladders import Arm, climb, of, reasons
from chronograd.study.results import Results, Row, Settings
from chronograd.study.study import Study
from chronograd.study.tables import study_page
from chronograd.units import percent, seconds

CHOICES = {
    "tf_mirrored": ("auto", "nccl", "hierarchical_copy", "reduction_to_one_device"),
    "tf_multiworker": ("auto", "ring", "nccl"),
}
WHERE = {"tf_mirrored": "One machine", "tf_multiworker": "Several machines"}
# What each is predicted as. NCCL builds rings; hierarchical copies reduce within a node first.
ALGORITHMS = {"auto": "ring", "ring": "ring", "nccl": "ring", "hierarchical_copy": "hierarchical",
              "reduction_to_one_device": "reduce_to_one"}  # fmt: skip


def job(settings: Settings, backend: str, choice: str, **cluster: Any) -> Job:
    return from_dict(
        {
            "network": {"name": settings["network"]},
            "data": dict(settings["data"]),
            "training": {
                "recipe": "sgd-momentum",
                "batch": settings["gpu_batch_per_rank" if "device" in cluster else "batch_per_rank"],
                "learning_rate": 0.01,
            },
            "communication": {"all_reduce": choice},
            "cluster": {"device": "local", **cluster},
            "backend": backend,
        }
    )


def arms(settings: Settings) -> list[Arm]:
    found = []
    for round_ in range(settings["rounds"]):
        for backend, choices in CHOICES.items():
            for choice in choices:
                name = f"{backend} {choice}, round {round_}"
                found.append(Arm(name, job(settings, backend, choice), "weak", measured=settings["worlds"]))
    for backend, choices in CHOICES.items():
        per_node = {} if backend == "tf_mirrored" else {"per_node": 1}
        for choice in choices:
            elsewhere = job(settings, backend, choice, device=settings["device"], link=settings["link"], **per_node)
            name = f"{backend} {choice} on {settings['device']}"
            worlds = settings["predicted_worlds"]
            found.append(Arm(name, elsewhere, "weak", predicted=worlds, algorithm=ALGORITHMS[choice]))
    return found


def conduct(lab: Lab, settings: Settings) -> Results:
    rows = climb(lab, arms(settings), settings["steps"], settings["warmup"])
    for row in rows:
        backend, _, rest = row["series"].partition(" ")
        choice, _, place = rest.partition(", " if ", round" in rest else " on ")
        row |= {"set": backend, "choice": choice, "place": "here" if place.startswith("round") else place}
    return lab.results(settings, rows={"points": rows}, notes=reasons(rows))


def page(results: Results) -> Answer:
    # What was not measured is the same in every round.
    rows = [
        row
        for row in results.rows["points"]
        if row["kind"] == "measured" or row["place"] != "here" or row["series"].endswith(", round 0")
    ]
    sections, highlights = [], []
    for backend in CHOICES:
        section, best = _measured_section(backend, of(rows, set=backend, place="here"))
        sections.append(section)
        if best is not None:
            highlights.append(Highlight(f"best of {backend}", best, "measured here"))
        sections.append(_predicted_section(backend, of(rows, set=backend, place=results.settings["device"]), results))
    here = [row for row in rows if row["place"] == "here"]
    sections.append(communication_section("Computation and communication here", here))
    return study_page(STUDY, results, sections, highlights)


def _measured_section(backend: str, rows: list[Row]) -> tuple[Section, str | None]:
    """Step times of the choices at the largest number of ranks that ran here; AUTO against the best."""
    title = f"{WHERE[backend]}, here: {backend}"
    known = [row for row in rows if row["kind"] == "measured" and row["world"] > 1]
    missing = sorted({row["choice"] for row in rows if row["kind"] == "missing"})
    lacks = f" Not here: {', '.join(missing)} (why: at the end)." if missing else ""
    if not known:
        return Section(title, f"None of its choices runs here.{lacks}"), None
    world = min(row["world"] for row in known)
    own = [row for row in known if row["world"] == world]
    steps = {c: [r["step_time_s"] for r in own if r["choice"] == c] for c in dict.fromkeys(r["choice"] for r in own)}
    means = {choice: sum(values) / len(values) for choice, values in steps.items()}
    best = min(means, key=lambda choice: means[choice])
    spread = max(max(values) / min(values) - 1 for values in steps.values())
    bars = [Bar(choice, "measured", {"step": 1000 * mean}, 1000 * min(steps[choice]), 1000 * max(steps[choice]),
                seconds(mean)) for choice, mean in means.items()]  # fmt: skip
    verdict = _verdict(means, spread)
    takeaway = (
        f"With {world} ranks {best} has the shortest step, {seconds(means[best])}; rounds of one choice differ by up to "
        f"{percent(spread, 0)}.{verdict}{lacks}"
    )
    table = table_of(rows)
    named = Table(("choice", *table.columns), [[r["choice"], *cells] for r, cells in zip(rows, table.rows, strict=True)],
                  {i + 1 for i in table.right}, table.notes)  # fmt: skip
    return Section(
        title,
        takeaway,
        _against_predicted(rows),
        figure=Figure([Bars("time per step, ms", "choice", bars)]),
        table=named,
    ), best


def _verdict(means: dict[str, float], spread: float) -> str:
    """AUTO beside the best of the others, in words; `spread` is the share by which rounds of one choice differ."""
    others = [mean for choice, mean in means.items() if choice != "auto"]
    if "auto" not in means or not others:
        return ""
    behind = means["auto"] / min(others) - 1
    told = "more" if abs(behind) > spread else "no more"
    how = "slower" if behind > 0 else "faster"
    return f" AUTO is {percent(abs(behind), 1)} {how} than the best of the others, {told} than rounds of one choice differ."


def _against_predicted(rows: list[Row]) -> str:
    """How long one rank takes, beside its prediction from rates that were measured with PyTorch."""
    alone = {
        kind: [row["step_time_s"] for row in rows if row["world"] == 1 and row["kind"] == kind and row["step_time_s"]]
        for kind in ("measured", "predicted")
    }
    if not all(alone.values()):
        return ""
    measured, predicted = (sum(values) / len(values) for values in alone.values())
    return (
        f"One rank takes {measured / predicted:.1f} times its prediction, which rests on what PyTorch's operators were "
        "measured to take on this machine: the rest is TensorFlow."
    )


def _predicted_section(backend: str, rows: list[Row], results: Results) -> Section:
    """The same choices on GPUs that are not here."""
    device, link = results.settings["device"], results.settings["link"]
    worlds = sorted({row["world"] for row in rows})
    body = []
    for row in rows:
        body.append([row["choice"], ALGORITHMS[row["choice"]], str(row["world"]), seconds(row["step_time_s"]),
                     seconds(row["communication_exposed_s"]), percent(row["efficiency"], 0)])  # fmt: skip
    largest = of(rows, world=worlds[-1])
    best = min(largest, key=lambda row: row["step_time_s"])
    worst = max(largest, key=lambda row: row["step_time_s"])
    where = f"{'inside one node where they fit, else ' if backend == 'tf_mirrored' else ''}over {link}"
    ranked = (
        f"{best['choice']} is predicted best ({seconds(best['step_time_s'])}) and {worst['choice']} worst "
        f"({seconds(worst['step_time_s'])})"
        if worst["step_time_s"] > best["step_time_s"]
        else f"every choice is predicted to take {seconds(best['step_time_s'])}"
    )
    return Section(
        f"{WHERE[backend]}, {device}: predicted",
        f"With {worlds[-1]} × {device}, {where}, {ranked}. AUTO is predicted as the ring that it chooses.",
        table=Table(
            ("choice", "predicted as", "ranks", "step", "exposed communication", "efficiency"), body, {2, 3, 4, 5}
        ),
    )


STUDY = Study(
    name="all-reduce-algorithms",
    question="Which all-reduce of tf.distribute is fastest on one machine and between machines, and does AUTO choose it?",
    hypothesis="NCCL's rings on GPUs; without them a ring between workers; reducing to one device falls behind as ranks grow",
    sizes={
        "smoke": {
            "network": "lenet5",
            "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
            "batch_per_rank": 8,
            "gpu_batch_per_rank": 64,
            "worlds": [1, 2],
            "rounds": 1,
            "device": "v100",
            "link": "ethernet-25g",
            "predicted_worlds": [1, 4],
            "steps": 2,
            "warmup": 1,
        },
        "laptop": {
            "network": "resnet18-cifar",
            "data": {"name": "cifar10", "samples": 1024},
            "batch_per_rank": 16,
            "gpu_batch_per_rank": 64,
            "worlds": [1, 2],
            "rounds": 2,
            "device": "v100",
            "link": "ethernet-25g",
            "predicted_worlds": [1, 2, 4, 8, 16],
            "steps": 5,
            "warmup": 2,
        },
        "paper": {
            "network": "resnet50",
            "data": {"name": "fashion-mnist"},
            "batch_per_rank": 64,
            "gpu_batch_per_rank": 64,
            "worlds": [1, 2, 4, 8],
            "rounds": 3,
            "device": "v100",
            "link": "ethernet-25g",
            "predicted_worlds": [1, 2, 4, 8, 16],
            "steps": 30,
            "warmup": 5,
        },
    },
    conduct=conduct,
    page=page,
)
