"""The all-reduce choices of tf.distribute, each measured where it runs: does AUTO choose best?

One machine: NcclAllReduce, HierarchicalCopyAllReduce, ReductionToOneDevice. Several: AUTO, RING, NCCL.
"""

from __future__ import annotations

from typing import Any

from chronograd.answer import Answer, Highlight, Section, Table
from chronograd.compare.ranks import communication_section, table_of
from chronograd.figure import Bar, Bars, Figure
from chronograd.study.results import Results, Row, Settings
from chronograd.study.rows import distinct, grouped, matching, mean
from chronograd.study.runner import StudyRunner
from chronograd.study.scaling import Sweep, run_sweeps, scaling_job
from chronograd.study.study import Study, table
from chronograd.units import percent, seconds

CHOICES = {
    "tf_mirrored": ("auto", "nccl", "hierarchical_copy", "reduction_to_one_device"),
    "tf_multiworker": ("auto", "ring", "nccl"),
}
WHERE = {"tf_mirrored": "One machine", "tf_multiworker": "Several machines"}
# What each is predicted as. NCCL builds rings; hierarchical copies reduce within a node first.
ALGORITHMS = {"auto": "ring", "ring": "ring", "nccl": "ring", "hierarchical_copy": "hierarchical",
              "reduction_to_one_device": "reduce_to_one"}  # fmt: skip


def sweeps(settings: Settings) -> list[Sweep]:
    """Each choice in every round here, then predicted on GPUs: several machines have one each."""
    device, link = settings["device"], settings["link"]
    pairs = [(backend, choice) for backend, choices in CHOICES.items() for choice in choices]

    def sweep(name: str, backend: str, choice: str, place: str, batch: int, cluster: Row, **asked: Any) -> Sweep:
        training = {"batch": batch, "learning_rate": 0.01}
        job = scaling_job(settings, backend, training, communication={"all_reduce": choice}, **cluster)
        return Sweep(name, job, known={"set": backend, "choice": choice, "place": place}, **asked)

    here = [
        sweep(f"{backend} {choice}, round {round_}", backend, choice, "here", settings["batch_per_rank"], {},
              measured=settings["worlds"])
        for round_ in range(settings["rounds"]) for backend, choice in pairs
    ]  # fmt: skip
    nodes = {"tf_mirrored": {}, "tf_multiworker": {"per_node": 1}}
    return here + [
        sweep(f"{backend} {choice} on {device}", backend, choice, device, settings["gpu_batch_per_rank"],
              {"device": device, "link": link, **nodes[backend]}, predicted=settings["predicted_worlds"],
              algorithm=ALGORITHMS[choice])
        for backend, choice in pairs
    ]  # fmt: skip


def conduct(runner: StudyRunner, settings: Settings) -> Results:
    return run_sweeps(runner, settings, sweeps(settings))


def page(results: Results) -> Answer:
    # What was not measured is the same in every round.
    rows = [
        row
        for row in results.rows["points"]
        if row["kind"] == "measured" or row["place"] != "here" or row["series"].endswith(", round 0")
    ]
    here = matching(rows, place="here")
    sections, highlights = [], []
    for backend in CHOICES:
        section, best = _measured_section(backend, matching(here, set=backend))
        highlights += [Highlight(f"best of {backend}", best, "measured here")] if best else []
        sections += [section, _predicted_section(backend, rows, results.settings)]
    sections.append(communication_section("Computation and communication here", here))
    return STUDY.answer(results, sections, highlights)


def _measured_section(backend: str, rows: list[Row]) -> tuple[Section, str]:
    """Step times of the choices at the smallest number of several ranks that ran here, and the best; AUTO against it."""
    title = f"{WHERE[backend]}, here: {backend}"
    known = [row for row in rows if row["kind"] == "measured" and row["world"] > 1]
    missing = sorted(distinct(rows, "choice", kind="missing"))
    lacks = f" Not here: {', '.join(missing)} (why: at the end)." if missing else ""
    if not known:
        return Section(title, f"None of its choices runs here.{lacks}"), ""
    world = min(row["world"] for row in known)
    choices = grouped(matching(known, world=world), "choice")
    steps = {choice: [row["step_time_s"] for row in own] for choice, own in choices.items()}
    means = {choice: sum(values) / len(values) for choice, values in steps.items()}
    best = min(means, key=lambda choice: means[choice])
    spread = max(max(values) / min(values) - 1 for values in steps.values())
    bars = []
    for choice, own in steps.items():
        mean_ms, least, most = (1000 * value for value in (means[choice], min(own), max(own)))
        bars.append(Bar(choice, "measured", {"step": mean_ms}, least, most, seconds(means[choice])))
    all_rows = table_of(rows)
    named = [[row["choice"], *cells] for row, cells in zip(rows, all_rows.rows, strict=True)]
    return Section(
        title,
        f"With {world} ranks {best} has the shortest step, {seconds(means[best])}; rounds of one choice differ by up to "
        f"{percent(spread, 0)}.{_verdict(means, spread)}{lacks}",
        _against_predicted(rows),
        figure=Figure([Bars("time per step, ms", "choice", bars)]),
        table=Table(("choice", *all_rows.columns), named, {i + 1 for i in all_rows.right}, all_rows.notes),
    ), best


def _verdict(means: dict[str, float], spread: float) -> str:
    """AUTO beside the best of the others, in words; `spread` is the share by which rounds of one choice differ."""
    others = [mean for choice, mean in means.items() if choice != "auto"]
    if "auto" not in means or not others:
        return ""
    behind = means["auto"] / min(others) - 1
    verdict = "more" if abs(behind) > spread else "no more"
    how = "slower" if behind > 0 else "faster"
    return f" AUTO is {percent(abs(behind), 1)} {how} than the best of the others, {verdict} than rounds of one choice differ."


def _against_predicted(rows: list[Row]) -> str:
    """How long one rank takes, beside its prediction from rates that were measured with PyTorch."""
    measured, predicted = (mean(rows, "step_time_s", world=1, kind=kind) for kind in ("measured", "predicted"))
    if not measured or not predicted:
        return ""
    return (
        f"One rank takes {measured / predicted:.1f} times its prediction, which rests on what PyTorch's operators were "
        "measured to take on this machine: the rest is TensorFlow."
    )


def _predicted_section(backend: str, all_rows: list[Row], settings: Settings) -> Section:
    """The same choices on GPUs that are not here."""
    rows = matching(all_rows, set=backend, place=settings["device"])
    world = max(row["world"] for row in rows)
    best, worst = (pick(matching(rows, world=world), key=lambda row: row["step_time_s"]) for pick in (min, max))
    ranked = f"every choice is predicted to take {seconds(best['step_time_s'])}"
    if worst["step_time_s"] > best["step_time_s"]:
        ranked = (
            f"{best['choice']} is predicted best ({seconds(best['step_time_s'])}) and {worst['choice']} worst "
            f"({seconds(worst['step_time_s'])})"
        )
    where = f"{'inside one node where they fit, else ' if backend == 'tf_mirrored' else ''}over {settings['link']}"
    return Section(
        f"{WHERE[backend]}, {settings['device']}: predicted",
        f"With {world} × {settings['device']}, {where}, {ranked}. AUTO is predicted as the ring that it chooses.",
        table=table(rows, {
            "choice": "choice", "predicted as": lambda row: ALGORITHMS[row["choice"]], "ranks": "world",
            "step": ("step_time_s", seconds), "exposed communication": ("communication_exposed_s", seconds),
            "efficiency": lambda row: percent(row["efficiency"], 0),
        }, text=2),
    )  # fmt: skip


_GPUS = {"device": "v100", "link": "ethernet-25g", "predicted_worlds": [1, 2, 4, 8, 16]}
_SMOKE = {
    "network": "lenet5", "data": {"name": "synthetic", "shape": [1, 28, 28], "classes": 10, "samples": 64},
    "batch_per_rank": 8, "gpu_batch_per_rank": 64, "worlds": [1, 2], "rounds": 1, **_GPUS, "predicted_worlds": [1, 4],
    "steps": 2, "warmup": 1,
}  # fmt: skip
_LAPTOP = {
    "network": "resnet18-cifar", "data": {"name": "cifar10", "samples": 1024}, "batch_per_rank": 16,
    "gpu_batch_per_rank": 64, "worlds": [1, 2], "rounds": 2, **_GPUS, "steps": 5, "warmup": 2,
}  # fmt: skip
_PAPER = {
    "network": "resnet50-v1", "data": {"name": "fashion-mnist"}, "batch_per_rank": 64, "gpu_batch_per_rank": 64,
    "worlds": [1, 2, 4, 8], "rounds": 3, **_GPUS, "steps": 30, "warmup": 5,
}  # fmt: skip

STUDY = Study(
    name="all-reduce-algorithms",
    question="Which all-reduce of tf.distribute is fastest on one machine and between machines, and does AUTO choose it?",
    hypothesis="NCCL's rings on GPUs; without them a ring between workers; reducing to one device falls behind as ranks grow",
    sizes={"smoke": _SMOKE, "laptop": _LAPTOP, "paper": _PAPER},
    conduct=conduct,
    page=page,
)
