"""A page from any records: it groups them by job and chooses the sections that apply."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chronograd.answer import FORMAT, Answer, Highlight, Section, join, under
from chronograd.compare.agreement import accuracy_of_prediction_section
from chronograd.compare.joining import HOW_TO_JOIN, devices_of, is_same_work, job_key
from chronograd.compare.ranks import communication_section, throughput_section
from chronograd.compare.steps import parts_section, scaling_section
from chronograd.errors import ChronogradError
from chronograd.explain import explanation
from chronograd.explain.agents import sections_of
from chronograd.figure import Figure, Picture, PictureRow, Pictures, gif_moments
from chronograd.files import format_of
from chronograd.forecast.learning import training_section, what_was_reached, what_was_returned
from chronograd.plan.elsewhere import plan_section
from chronograd.predict.layers import roofline_section
from chronograd.predict.work import operators_section
from chronograd.quantities import FIRST
from chronograd.record import JobHeader, Record
from chronograd.rundir import EPISODE, listing
from chronograd.units import quantity
from chronograd.words import device, dotted, first_sentence, how_many, interval, listed, named, quantity_name

NUM_MOMENTS = 6
# Fields that distinguish jobs of one network and data set: these first, up to this number.
TOLD_FIRST = (
    "training.batch",
    "training.epochs",
    "training.precision",
    "training.learning_rate",
    "training.seed",
    "mode",
)
MAX_DIFFERENCES = 3
MAX_ACCURACIES = 4  # in the head of a page
MAX_SENTENCES = 3  # one for each job, in the first paragraph


@dataclass
class _Group:
    """Records of one job, sorted by what they can show."""

    predicted: dict[int, Record] = field(default_factory=dict)
    measured: dict[int, Record] = field(default_factory=dict)
    trained: list[tuple[str, Record]] = field(default_factory=list)
    planned: list[Record] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    scaled: list[Record] = field(default_factory=list)


def report(runs: Sequence[tuple[str, Path]]) -> Answer:
    """Return runs and saved answers as one answer: first the answers, then a page of the records. Raises FileFormatError.

    Args:
        runs: names and paths, as `listing.runs` returns them.
    """
    saved = {path for _, path in runs if path.is_file() and format_of(path) == FORMAT}
    answers = [Answer.load(path) for _, path in runs if path in saved]
    records = {name: listing.load(path) for name, path in runs if path not in saved}
    pages = []
    if records or not answers:
        page = generic_page(records)
        faster = [_faster(dict(runs), records)] if page.summary else []
        summary = [*page.summary[:1], *filter(None, faster), *page.summary[1:]]
        pages.append(replace(page, sections=[*page.sections, *_episodes(runs)], summary=summary))
    return join(listed([answer.title for answer in answers]), [*answers, *pages]) if answers else pages[0]


def _summary(groups: Mapping[str, _Group]) -> list[str]:
    """Return a sentence on the result, time and cost of each executed job."""
    sentences = []
    for title, group in groups.items():
        if group.trained:
            sentences.append(_of_training(title, group.trained[-1][1]))
        elif group.measured:
            sentences.append(_of_steps(title, group.measured[max(group.measured)]))
        if sentences and len(groups) == 1:
            sentences += [f"{first_sentence(section.takeaway)[0]}." for section in _of_predictions(group)]
    return sentences[:MAX_SENTENCES]


def _of_predictions(group: _Group) -> list[Section]:
    """Return the sections on the cost of the job elsewhere and on the error of its predictions."""
    sections = [plan_section(group.planned)] if _is_plan(group) else []
    if group.predicted.keys() & group.measured.keys():
        sections.append(accuracy_of_prediction_section(group.predicted, group.measured))
    return sections


def _is_plan(group: _Group) -> bool:
    return any(r["training_time_s"].value is not None or r["cost_usd"].value is not None for r in group.planned)


def _of_training(title: str, record: Record) -> str:
    is_agent = "mean_return" in record.quantities
    reached = what_was_returned(record) if is_agent else what_was_reached(record).removesuffix("; no target was set")
    cost = record["cost_usd"].value
    paid = "" if cost is None else f", for {quantity(cost, 'usd')}"
    return f"{title}, {device(record)}: {reached[0].lower()}{reached[1:]}{paid}."


def _of_steps(title: str, record: Record) -> str:
    step, rate = record["step_time_s"], record["throughput_samples_per_s"]
    between = f" (80 % interval {interval(step)})" if interval(step) else ""
    per_s = "" if rate.value is None else f", {quantity(rate.value, rate.unit)}"
    return f"{title}, {device(record)}: a step takes {quantity(step.value, step.unit)}{between}{per_s}."


def _faster(paths: Mapping[str, Path], records: Mapping[str, Record]) -> str:
    """Return the most expensive cause of the largest run's time, and its remedy; nothing if there is none."""
    ran = [
        name for name, record in records.items() if record.kind == "measured" and "mean_return" not in record.quantities
    ]
    if not ran:
        return ""
    name = max(ran, key=lambda one: ("training" in records[one].curves, records[one].world))
    try:
        causes = explanation.explain([paths[name]]).causes
    except ChronogradError:
        return ""
    if not causes:
        return ""
    first = causes[0]
    to_do = f"; to make it faster, {first.remedies[0].text()}" if first.remedies else ""
    return f"Most time is lost here: {first.title}{first.share}{to_do}."


def _episodes(runs: Sequence[tuple[str, Path]]) -> list[Section]:
    """Return moments of the last episode of each agent among the runs."""
    sections = []
    for name, path in runs:
        if (path / EPISODE).is_file():
            moments = [Picture(f"picture {number}", png) for number, png in gif_moments(path / EPISODE, NUM_MOMENTS)]
            title = "An episode" if len(runs) == 1 else f"An episode of {name}"
            sections.append(
                Section(
                    title,
                    f"Play of the trained agent, in {how_many(len(moments), 'moments')} from begin to end; {EPISODE} in the run's "
                    "folder has the whole episode.",
                    figure=Figure([Pictures([PictureRow("", moments)])]),
                )
            )
    return sections


def generic_page(records: Mapping[str, Record]) -> Answer:
    """Return a page of every section that these records can fill."""
    sections: list[Section] = []
    groups = _groups(records)
    left_out = []
    for title, group in groups.items():
        added = _sections(group)
        if len(groups) > 1:
            added = under(title, added)
        sections += added
        left_out += group.replaced
    apart = _unjoined(groups.values())
    footer = f"Left out of the figures, as another record of the same kind is newer: {', '.join(left_out)}."
    return Answer(
        title=listed(list(groups)) if len(groups) <= 3 else how_many(len(groups), "jobs"),
        subtitle=_counted(list(records.values())),
        asked=asked(next(iter(records.values())).job) if len(groups) == 1 else (),
        highlights=_highlights(records.values(), groups),
        summary=_summary(groups),
        sections=sections,
        records=dict(records),
        footer=footer if left_out else "",
        notes=[f"{listed(apart)} {'is' if len(apart) == 1 else 'are'} compared with no prediction: {HOW_TO_JOIN}"]
        if apart
        else [],
    )


def asked(job: JobHeader) -> list[tuple[str, str]]:
    """Return the main settings of a resolved job as a short list."""
    training = job.training
    rows = [
        ("task", job.task),
        ("network", job.network.name),
        ("data", job.data.name),
        ("recipe", training.recipe),
        ("epochs", training.epochs),
        ("global batch", training.batch),
        ("precision", training.precision),
        ("target accuracy", None if training.target_accuracy is None else quantity(training.target_accuracy, "1")),
        ("target of bits per byte", training.target_bits_per_byte),
        ("seed", training.seed),
        ("device", job.cluster.device),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def highlight(record: Record, name: str, label: str = "") -> Highlight:
    """Return a quantity as a highlight, with its interval, n, device and kind."""
    q = record[name]
    between = interval(q)
    detail = [
        f"80 % interval {between}" if between else "",
        f"n = {q.n}" if q.n is not None else "",
        f"{record.kind} on {device(record)}",
        q.reason if q.value is None else "",
    ]
    text = label or quantity_name(name)
    return Highlight(text, quantity(q.value, q.unit), ", ".join(part for part in detail if part))


def _counted(records: Collection[Record]) -> str:
    """Return the number of records of each kind on a page."""
    if len(records) == 1:
        return "One record"
    kinds = [kind for kind in ("predicted", "measured") if any(record.kind == kind for record in records)]
    return f"{len(records)} records, {listed(kinds)}"


def _highlights(records: Iterable[Record], groups: Mapping[str, _Group]) -> list[Highlight]:
    """Return three figures, measured ones first; if several jobs were trained, the accuracy of each."""
    same = len({title.partition(", ")[0] for title in groups}) == 1
    short = {title: title.partition(", ")[2] or title if same else title for title in groups}
    accuracies = [
        highlight(record, "test_accuracy", f"test accuracy, {short[title]}")
        for title, group in groups.items()
        for _, record in group.trained[-1:]
        if record["test_accuracy"].value is not None
    ]
    if len(accuracies) > 1:
        return accuracies[:MAX_ACCURACIES]
    ordered = sorted(records, key=lambda r: (r.kind != "measured", "training" in r.curves, r.world))
    found = []
    for name in FIRST:
        record = next((r for r in ordered if r[name].value is not None), None)
        if record is not None:
            found.append(highlight(record, name))
    return found[:3]


def _groups(records: Mapping[str, Record]) -> dict[str, _Group]:
    """Group records by job, independent of their device, with a title for each group."""
    keyed: dict[str, dict[str, Record]] = {}
    predicted = [record for record in records.values() if record.kind == "predicted"]
    for name, record in records.items():
        told = record
        if record.kind == "measured" and not record.job:  # a loop without a job joins a prediction of its work
            told = next((one for one in predicted if is_same_work(one, record)), record)
        keyed.setdefault(job_key(told), {})[name] = record
    titles = _distinct_titles([next(iter(members.values())) for members in keyed.values()])
    return named(zip(titles, map(_sorted_out, keyed.values()), strict=True))


def _distinct_titles(records: Sequence[Record]) -> list[str]:
    """Return a title for each record; titles of one network and data set include the fields in which their jobs differ."""
    titles = [_title(record) for record in records]
    fields = [
        {
            name: json.dumps(value, sort_keys=True, default=str)
            for name, value in dotted(record.job.model_dump(mode="json", exclude={"cluster", "backend"}))
        }
        for record in records
    ]
    distinct = []
    for title, own in zip(titles, fields, strict=True):
        alike = [others for other, others in zip(titles, fields, strict=True) if other == title]
        names = dict.fromkeys(name for others in alike for name in others)
        differing = [name for name in names if len({others.get(name) for others in alike}) > 1]
        chosen = sorted(differing, key=lambda name: name not in TOLD_FIRST)[:MAX_DIFFERENCES]
        words = [_in_words(name, own.get(name, "null")) for name in chosen]
        distinct.append(f"{title}, {', '.join(words)}" if words else title)
    return distinct


def _in_words(name: str, value: str) -> str:
    """Return a field and its value in words.

    >>> _in_words("training.batch", "64"), _in_words("training.target_accuracy", "null")
    ('batch 64', 'no target accuracy')
    """
    words = name.rpartition(".")[2].replace("_", " ")
    return f"no {words}" if value == "null" else f"{words} {value.strip(chr(34))}"


def _unjoined(groups: Iterable[_Group]) -> list[str]:
    """Return loops without a job that match none of the predictions."""
    known = list(groups)
    if not any(group.predicted or group.planned for group in known):
        return []
    return [
        record.provenance.run or record.title
        for group in known
        for record in group.measured.values()
        if not record.job and not group.predicted
    ]


def _title(record: Record) -> str:
    network, data = record.job.network.name, record.job.data.name
    return f"{network} on {data}" if network and data else network or record.title


def _sorted_out(members: Mapping[str, Record]) -> _Group:
    """Sort the records of a job. A prediction for the measured device is compared with the measurement; one for another device
    is a plan.
    """
    group = _Group()
    names: dict[tuple[str, int], str] = {}
    by_date = sorted(members.items(), key=lambda item: item[1].created)
    measured = [(n, r) for n, r in by_date if r.kind == "measured"]
    # A training run also has step times. They are used only if nobody measured steps separately.
    for name, record in sorted(measured, key=lambda item: "training" not in item[1].curves):
        if record.tables.scaling:
            group.scaled.append(record)
        if "training" in record.curves or "loss" in record.curves:
            group.trained.append((name, record))
        if record["step_time_s"].value is not None:
            _place(group, group.measured, names, name, record)
    predictions = [(n, r) for n, r in by_date if r.kind == "predicted"]
    here = {name for _, r in measured for name in devices_of(r)} or {r.device for _, r in predictions[:1]}
    for name, record in predictions:
        if record.device in here:
            _place(group, group.predicted, names, name, record)
        if record.device not in here or not measured:
            group.planned.append(record)
    return group


def _place(
    group: _Group, into: dict[int, Record], names: dict[tuple[str, int], str], name: str, record: Record
) -> None:
    key = (record.kind, record.world)
    if record.world in into and "training" not in into[record.world].curves:
        group.replaced.append(names[key])
    into[record.world] = record
    names[key] = name


def _sections(group: _Group) -> list[Section]:
    sections: list[Section] = []
    agents = {name: found for name, record in group.trained if (found := sections_of(record))}
    for name, record in group.trained:
        if name in agents:
            sections += [training_section(record), *agents[name]]
    if (group.predicted or group.measured) and not agents:
        sections.append(parts_section(group.predicted, group.measured))
    if len(group.predicted.keys() | group.measured.keys()) > 1:
        sections.append(scaling_section(group.predicted, group.measured))
    if group.predicted.keys() & group.measured.keys():
        sections.append(accuracy_of_prediction_section(group.predicted, group.measured))
    steps = [r for by_count in (group.measured, group.predicted) for _, r in sorted(by_count.items())]
    by_kind = next((r for r in steps if r.tables.by_kind), None)
    if by_kind is not None:
        sections.append(operators_section(by_kind))
    layered = next((r for r in steps if r.tables.layers), None)
    if layered is not None:
        sections.append(roofline_section(layered, group.measured.get(layered.world)))
    for record in group.scaled:
        rows = [point.model_dump() for point in record.tables.scaling]
        for name in dict.fromkeys(row["scaling"] for row in rows):
            own = [row for row in rows if row["scaling"] == name]
            sections.append(throughput_section(f"{name.capitalize()} scaling to more ranks", own))
        sections.append(communication_section("Computation and communication", rows))
    for name, record in group.trained:
        if name not in agents:
            sections.append(training_section(record))
    if _is_plan(group):
        sections.append(plan_section(group.planned))
    return sections
