"""The answer of `judge`: the verdict first, then its evidence, possible explanations, and possible gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chronograd.answer import Answer, Column, Section, Table, as_json
from chronograd.figure import Bar, Bars, Figure
from chronograd.hardware import catalog
from chronograd.judge.limits import WINOGRAD
from chronograd.judge.settings import PRECISION_NAMES, USUAL_BATCH, misfit_of
from chronograd.judge.verdict import MAX_EXPLANATIONS, MAX_PUBLISHED, Judged
from chronograd.plan.largest import fitting_words
from chronograd.predict.calibration import calibrations
from chronograd.record import CHOSEN
from chronograd.units import percent, seconds, si
from chronograd.words import listed

_LAYOUTS = {True: "channels last", False: "channels first", None: "layout not stated"}


@dataclass(frozen=True)
class JudgedTable:
    """The result of `judge FILE.csv`: the judged rows, and by name the reasons why others were left out."""

    verdicts: list[Judged]
    left_out: dict[str, str]


def answer_of(judged: Judged) -> Answer[Judged]:
    """Return the answer about one figure."""
    sections = [_verdict(judged), *_explanations(judged), *_gains(judged), *_published(judged)]
    record = judged.predicted.record
    return Answer(
        title=f"{judged.claim.text}: {judged.verdict}",
        sections=sections,
        records={record.title: record},
        result=judged,
    )


def answer_of_table(
    cases: Sequence[Judged], left_out: Sequence[tuple[str, str]] = (), notes: Sequence[str] = ()
) -> Answer[JudgedTable]:
    """Return the answer about several figures, one row each.

    Args:
        left_out: rows that could not be judged, with the reason. notes: notes on the table.
    """
    counts = Counter(judged.verdict for judged in cases)
    counted = [f"{counts[verdict]} {verdict}" for verdict in ("impossible", "does not fit", "suspicious", "slow", "as expected")
            if counts[verdict]]  # fmt: skip
    columns = (
        Column("network", "network"),
        Column("batch", lambda j: j.job.training.batch, format="d"),
        Column("samples/s", "rate", format=_number),
        Column("expected", lambda j: j.expected.value, format=_number),
        Column("80 % interval", lambda j: _between(j.expected), format=str),
        Column("yours is", "of_expected", format=_share),
        Column("verdict", "verdict"),
    )
    section = Section(
        f"{len(cases)} figures on {_place(cases[0])} in {cases[0].job.training.precision_name}"
        if cases
        else "No figure",
        f"{listed(counted)}." if counted else "No row could be judged.",
        table=Table.of(cases, columns),
        lines=[f"{name} was left out: {reason}" for name, reason in left_out],
        data=as_json(cases),
    )
    return Answer("Is it good?", sections=[section], notes=notes, result=JudgedTable(list(cases), dict(left_out)))


# -- the verdict ----------------------------------------------------------------------------------------------


def _verdict(j: Judged) -> Section:
    lines = [*_evidence(j), *_assumptions(j)]
    rows = [["this figure", _number(j.rate), ""], *_comparisons(j)]
    columns, right = ["", "samples/s", "yours is"], {1, 2}
    if j.tokens > 1:
        columns, right = ["", "samples/s", "tokens/s", "yours is"], {1, 2, 3}
        rows = [[what, rate, of_tokens, share] for (what, rate, share), of_tokens in zip(rows, _tokens(j), strict=True)]
    return Section(
        f"{j.network} on {_place(j)} in {j.job.training.precision_name}: {j.mode}, batch {j.job.training.batch}",
        _sentence(j),
        lines=lines,
        table=Table(columns, rows, right),
        figure=_figure(j),
        data=as_json([j]),
    )


def _figure(j: Judged) -> Figure:
    """Plot the figure between the expected, the published and the maximum throughput."""
    expected = Bar("expected", "predicted", {"samples": j.expected.value or 0.0}, j.expected.low, j.expected.high)
    others = [
        Bar(f"{row.source.title}, batch {row.batch_per_device}", "measured", {"samples": row.samples_per_s})
        for row in j.alike[:MAX_PUBLISHED]
    ]
    bars = [Bar("this figure", "measured", {"samples": j.rate}), expected, *others]
    if j.verdict == "does not fit":
        bars = bars[:1]
    return Figure([Bars("samples per second", "", [*bars, Bar("maximum", "predicted", {"samples": j.most})])])


def _sentence(j: Judged) -> str:
    figure, limit = f"{_number(j.rate)} samples/s", j.limit
    if j.claim.per != "samples per second" or j.claim.is_per_device:
        figure = f"{j.claim.text} = {figure}"
    expected = f"the expected {_number(j.expected.value)} ({_between(j.expected)})"
    if j.verdict == "impossible":
        reached, peak = j.rate * limit.flops_per_sample, j.job.cluster.count * limit.peak_flops_per_s
        if reached > peak:
            reason = (f"{figure} × {si(limit.flops_per_sample, 'FLOP')} = {si(reached, 'FLOP/s')}, above the "
                      f"{si(peak, 'FLOP/s')} peak of {_place(j)} in {j.job.training.precision}")  # fmt: skip
        else:
            reason = (
                f"{figure} is above {_number(j.most)}, the maximum for the FLOPs and bytes of a step on {_place(j)}"
            )
        return f"Impossible: {reason}{_first_explanation(j)}."
    if j.verdict == "does not fit":
        return f"No verdict, because {figure} cannot be of this setting. It {misfit_of(j.predicted.record)}."
    if j.verdict == "suspicious":
        return f"{_chosen(j)}Suspicious: {figure} is {_times(j.of_expected)} {expected}{_first_explanation(j)}."
    if j.verdict == "slow":
        return f"{_chosen(j)}Slow: {figure} is {_share(j.of_expected)} of {expected}{_first_explanation(j)}."
    difference = percent(abs(j.of_expected - 1), 0)
    side = "equal to" if difference == "0 %" else f"{difference} {'above' if j.of_expected >= 1 else 'below'}"
    verdict = "As expected" + (f" with {listed(_assumed_words(j))}" if j.assumed else "")
    return f"{_chosen(j)}{verdict}: {figure} is {side} {expected}."


def _chosen(j: Judged) -> str:
    """Return the batch as a sentence if it was chosen to fit; empty for the usual or a stated one."""
    is_usual = j.job.training.batch >= USUAL_BATCH * j.job.cluster.count
    return "" if is_usual or not j.is_batch_assumed else f"{CHOSEN}{fitting_words(j.job)}. "


def _assumed_words(j: Judged) -> list[str]:
    """Return the assumptions under which the figure fits, such as `channels last` or `the card a100-80`."""
    words = []
    for change in j.assumed:
        field, _, value = change.partition("=")
        is_precision = field == "training.precision"
        words.append(
            "channels last" if value == "true" else PRECISION_NAMES[value] if is_precision else f"the card {value}"
        )
    return words


def _first_explanation(j: Judged) -> str:
    if not j.explanations:
        return ""
    first = j.explanations[0]
    return f"; with {listed(first.words)} it would be {percent(j.rate / first.samples_per_s, 0)} of the prediction"


def _times(ratio: float) -> str:
    return f"{_number(ratio)} times" if ratio >= 2 else f"{percent(ratio - 1, 0)} above"


def _evidence(j: Judged) -> list[str]:
    limit, count, per_rank = j.limit, j.job.cluster.count, j.job.images_per_rank
    reached, peak = j.rate * limit.flops_per_sample, count * limit.peak_flops_per_s
    step_s = j.job.training.images_per_step / j.rate
    lines = [
        f"{_number(j.rate)} × {si(limit.flops_per_sample, 'FLOP')} = {si(reached, 'FLOP/s')}: {_share(reached / peak)} of "
        f"the peak of {si(peak, 'FLOP/s')} ({j.job.training.precision}); a step of {per_rank} sample{'s' * (per_rank > 1)} takes {seconds(step_s)}"
        + (" on each device" if count > 1 else "")
    ]
    if reached > peak and j.verdict != "impossible":
        lines.append(
            "More than 100 % of the peak is possible here. We count the FLOPs of direct convolutions, but Winograd's algorithm "
            f"needs as little as 1/{WINOGRAD:g} of the multiplications of a 3×3 convolution"
        )
    if j.verdict == "impossible":
        lines.append(
            f"a step takes at least {seconds(limit.least_s)}: {seconds(limit.flops_s)} of matrix work at the peak, if "
            f"all 3×3 convolutions need only 1/{WINOGRAD:g} of their multiplications, and "
            f"{si(limit.bytes_per_sample * per_rank, 'B')} at {si(limit.bandwidth_bytes_per_s, 'B/s')}"
        )
    for row in j.same_elsewhere[:1] if j.verdict != "as expected" else ():
        lines.append(
            f"{row.source.title} published {_number(row.samples_per_s)} for {row.source.mode} in {row.precision}, "
            f"{_LAYOUTS[row.source.channels_last]}, batch {row.batch_per_device}: is yours that figure?"
        )
    if j.verdict in ("impossible", "suspicious") and not j.explanations and not j.same_elsewhere:
        lines.append("no other precision, layout or compiler explains it: check that the clock stops after the device has finished "
                     "(torch.cuda.synchronize), and that the figure counts samples")  # fmt: skip
    return lines


def _assumptions(j: Judged) -> list[str]:
    lines = []
    if j.is_batch_assumed:
        each = " per device" if j.job.cluster.count > 1 else ""
        lines.append(
            f"Assumed: batch {j.job.images_per_rank}{each}, the largest power of two up to 256 that fits (--batch)"
        )
    others = catalog.variants(j.named) if j.named else []
    if others:
        lines.append(f"Assumed: {j.named} is the {j.device.title} ({j.device.name}). If it is another card, name it: "
                     f"{listed([card.name for card in others if card != j.device], 'or')} (--on)")  # fmt: skip
    if j.assumed:
        lines.append(f"Assumed: {listed(_assumed_words(j))}, because you left that open and the figure is not as expected otherwise "
                     f"({' '.join(j.assumed)})")  # fmt: skip
    elif not {"channels_last", "compile"} & j.job.training.model_fields_set:
        lines.append(
            "Assumed: memory format NCHW, no torch.compile, because you gave neither (training.channels_last, training.compile)"
        )
    lines += j.only_layout
    if j.job.training.precision == "fp32" and "tf32" in j.device.peak_flops_per_s:
        lines.append(
            "fp32 excludes TF32, but PyTorch uses TF32 for convolutions on this device by default: --precision tf32"
        )
    if j.is_circular:
        lines.append(
            "partly circular: the calibration of this device was fitted to a table that includes these published figures"
        )
    calibration = j.predicted.record.provenance.calibration
    if "table" not in calibration and calibration.get("origin") != "measured":
        basis = calibration.get("relative")
        lines.append(f"{_calibrated_as(j)}: predicted from {basis or 'its data sheet alone'}")
    return lines


def _calibrated_as(j: Judged) -> str:
    """Return a sentence on the settings of the device's calibrations, if none is that of the figure."""
    own = [c for c in calibrations(j.device) if c.origin == "measured" or "table" in c.provenance]
    asked = f"{j.job.training.precision_name} {j.mode}{', compiled' * bool(j.job.training.compile)}"
    if not own:
        return f"No calibration of {j.device.name}"
    settings = [f"{c.precision}{f' {c.mode}' * (c.mode is not None)}{', compiled' * c.is_compiled}" for c in own]
    return f"{j.device.name} is calibrated in {listed(list(dict.fromkeys(settings)))}, but not in {asked}"


def _tokens(j: Judged) -> list[str]:
    """Return the tokens per second for each row of figures."""
    own, expected = j.predicted.rate, j.expected
    cells = [_number(j.rate * j.tokens), _number(j.most * j.tokens)]
    if j.verdict == "does not fit":
        return cells
    cells += [_number((own.value or 0) * j.tokens), _between(own, j.tokens)]
    if j.alike or j.carried:
        rates = [one.samples_per_s for one in j.alike or j.carried]
        cells += [
            _number(max(rates) * j.tokens),
            _number((expected.value or 0) * j.tokens),
            _between(expected, j.tokens),
        ]
    return cells


def _comparisons(j: Judged) -> list[list[str]]:
    def row(what: str, value: float | None) -> list[str]:
        return [what, _number(value), _share(j.rate / value) if value else ""]

    if j.verdict == "does not fit":
        return [row("maximum of the device", j.most)]
    rows = [row("maximum of the device", j.most), row("predicted", j.predicted.samples_per_s),
            ["  80 % interval", _between(j.predicted.rate), ""]]  # fmt: skip
    published = j.alike or j.carried
    if published:
        rates = [one.samples_per_s for one in published]
        first = f"published by {published[0].source.title}"
        many = f"highest of {len(rates)} published figures" if len(rates) > 1 else first
        if j.carried:
            many += f" for {published[0].device}, scaled to {j.device.name}"
        rows += [
            row(many, max(rates)),
            row("expected from both", j.expected.value),
            ["  80 % interval", _between(j.expected), ""],
        ]
    return rows


# -- what follows ---------------------------------------------------------------------------------------------


def _explanations(j: Judged) -> list[Section]:
    shown = j.explanations[:MAX_EXPLANATIONS]
    if not shown:
        return []
    columns = (
        Column("with", lambda o: listed(o.words)),
        Column("predicted", "samples_per_s", format=_number),
        Column("80 % interval", lambda o: _between(o.rate), format=str),
        Column("yours is", lambda o: j.rate / o.samples_per_s, format=_share),
    )
    return [
        Section(
            "Possible explanations",
            f"{_number(j.rate)} samples/s is as expected with {listed([listed(o.words) for o in shown], 'or')}.",
            table=Table.of(shown, columns),
        )
    ]


def _gains(j: Judged) -> list[Section]:
    if j.verdict in ("impossible", "does not fit", "suspicious"):  # first find out what ran
        return []
    base = j.expected.value or 0.0
    if not j.gains:
        text = "No other precision, layout, batch or compiler is predicted to gain 3 % or more."
        return [Section("Largest possible gains", text)]
    options = [*j.gains, *([j.together] if j.together else [])]
    columns = (
        Column("change", lambda o: "together" if o is j.together else listed(o.words)),
        Column("gain", lambda o: f"{_number(o.samples_per_s / base)} ×", format=str),
        Column("yours then", lambda o: j.rate * o.samples_per_s / base, format=_number),
        Column("how", lambda o: "" if o is j.together else " ".join(o.changes)),
    )
    first = options[-1] if j.together else options[0]
    return [
        Section(
            "Largest possible gains",
            f"We predict {_number(first.samples_per_s / base)} times the samples per second with {listed(first.words)}.",
            table=Table.of(options, columns),
        )
    ]


def _published(j: Judged) -> list[Section]:
    if not j.rows:
        return [Section("Published", f"We know no published figure for {j.network} on {j.device.name}.")]
    rates = sorted(row.samples_per_s for row in j.alike)
    if rates:
        many = f"{len(rates)} published figures of this setting, {_number(rates[0])} to {_number(rates[-1])}: yours"
        most = f"{many if len(rates) > 1 else 'The one published figure of this setting is'}"
        below = sum(rate <= j.rate for rate in rates)
        text = (
            f"{most} is at least as high as {below} of them."
            if len(rates) > 1
            else f"{most} {_number(rates[0])}; yours is {percent(j.rate / rates[0], 0)} of it."
        )
    else:
        text = f"We know no published figure for this setting; for the network on {j.rows[0].device.partition('-')[0]}, {len(j.rows)} figures."
    sources = {
        row.source.name: f"{row.source.title}: {row.source.address}; {row.source.software}"
        for row in j.rows[:MAX_PUBLISHED]
    }
    return [
        Section(
            "Published", text, table=Table.of(j.rows[:MAX_PUBLISHED], _PUBLISHED, list(dict.fromkeys(sources.values())))
        )
    ]


_PUBLISHED = (
    Column("device", lambda row: f"{row.devices}×{row.device}" if row.devices > 1 else row.device),
    Column("precision", "precision"),
    Column("layout", lambda row: _LAYOUTS[row.source.channels_last]),
    Column("batch", "batch_per_device", format="d"),
    Column("samples/s", "samples_per_s", format=lambda rate: _number(rate)),
    Column("source", lambda row: f"{row.source.title} {row.source.date}"),
)


def _place(j: Judged) -> str:
    count = j.job.cluster.count
    return f"{count}×{j.device.name}" if count > 1 else j.device.name


def _between(q: Any, times: int = 1) -> str:
    return "" if q.low is None or q.high is None else f"{_number(times * q.low)} … {_number(times * q.high)}"


def _share(ratio: float) -> str:
    """Return a percentage, or a factor from 10 times on."""
    return f"{_number(ratio)} ×" if ratio >= 10 else percent(ratio, 0 if ratio >= 0.095 else 1)


def _number(value: float | None) -> str:
    """Return samples per second with three digits, or as a whole number from 100 on."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
