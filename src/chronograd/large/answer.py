"""The answer of `predict` for a large model: its quantities, then step time and memory by part, stages and collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from chronograd.answer import Answer, Column, Section, Table
from chronograd.figure import PART_COLORS, Bar, Bars, Figure
from chronograd.large.asking import AskedLarge
from chronograd.large.memory import MemoryPart, probability_of_fit
from chronograd.large.prediction import LEAST_FIT, LargePrediction, record_of
from chronograd.large.remedies import ENOUGH, Remedied, change_in, of_parts, until_it_fits
from chronograd.large.tokens import TrainingTokens
from chronograd.quantities import record_answer
from chronograd.record import CHOSEN, Record
from chronograd.units import chance, dollars, memory, percent, quantity, seconds, si
from chronograd.words import how_many, interval, listed

_COLORS = {
    **PART_COLORS,
    "recomputation": "purple",
    "exchange in layers": "vermilion",
    "host": "teal",
    "pipeline bubble": "grey",
    "pipeline sends": "rose",
    "exchange of the update": "brown",
    "optimizer": "green",
    "offload": "sky",
}
FUSED, EAGER = "Megatron (fused norms and loss)", "Transformers, TRL or Axolotl"
_LEAST_SHARE = 0.01  # of the memory; smaller parts have no sentence
_MOST_SENTENCES = 3


def predict_large(
    asked: Sequence[AskedLarge], tokens: Sequence[TrainingTokens | None]
) -> Answer[Record | list[Record]]:
    """Return the prediction of a large model in one setting, or of several settings side by side.

    Args:
        tokens: of the whole training in each setting, for its time and cost.
    """
    predictions = [LargePrediction(one.setting) for one in asked]
    records = [record_of(p, one, own) for p, one, own in zip(predictions, asked, tokens, strict=True)]
    answer = record_answer(*records)
    if len(asked) > 1:
        return answer
    first, prediction, remedies = answer.sections[0], predictions[0], until_it_fits(predictions[0])
    if prediction.fit >= LEAST_FIT:
        lines = [*_with_separate_operators(prediction), *first.lines]
        first = replace(first, takeaway=_takeaway(prediction, records[0]), lines=lines)
    elif remedies and remedies[-1].prediction.fit >= ENOUGH:
        first = replace(first, lines=[f"With {listed(remedies[-1].changes)} it fits.", *first.lines])
    return replace(answer, sections=[first, *_details(prediction, remedies)])


def _takeaway(prediction: LargePrediction, record: Record) -> str:
    """Return the prediction in tokens, or in images if each sequence is one, after the values that were chosen to fit."""
    setting, cost = prediction.setting, record["cost_usd_per_million_tokens"]
    unit, tokens, name = ("image", setting.sequence, "samples") if setting.model.is_fixed else ("token", 1, "tokens")
    rate = record[f"throughput_{name}_per_s"].model_copy(update={"unit": f"{unit}/s"})
    price = "" if cost.value is None else f" {dollars(tokens * cost.value)} for a million {unit}s,"
    whole = record.quantities.get("training_time_s")
    if whole is not None and whole.value is not None:
        usd = record["cost_usd"].value
        price += f" {seconds(whole.value)}{'' if usd is None else f' and {dollars(usd)}'} for the whole training,"
    kernels = f" with {FUSED}" if list(_with_separate_operators(prediction)) else ""
    chosen = [f"{note}. " for note in record.notes if note.startswith(CHOSEN)]
    return (
        f"{''.join(chosen)}Predicted{kernels}: {quantity(rate.value, rate.unit)} (80 % interval {interval(rate)}), "
        f"{quantity((rate.value or 0.0) / setting.ranks, rate.unit)} per device, MFU {percent(prediction.mfu)},{price} "
        f"and it fits with a probability of {chance(prediction.fit)}."
    )


def _with_separate_operators(prediction: LargePrediction) -> Iterator[str]:
    """Yield the speed with the kernels of other libraries and the probability that it fits, if that differs."""
    eager = prediction.eager
    if chance(eager.fit) != chance(prediction.fit):
        unit, tokens = ("image/s", prediction.setting.sequence) if prediction.setting.model.is_fixed else ("token/s", 1)
        yield f"Predicted with {EAGER}: {quantity(eager.tokens_per_s / tokens, unit)}, fits with {chance(eager.fit)}."


def _details(prediction: LargePrediction, remedies: Sequence[Remedied]) -> list[Section]:
    sections = [_step(prediction), _memory(prediction)]
    if len(prediction.stages) > 1:
        sections.append(_stages(prediction))
    if prediction.step.collectives:
        sections.append(_collectives(prediction))
    return [*sections, _fit(prediction, remedies)]


def _step(prediction: LargePrediction) -> Section:
    parts = {name: s for name, s in prediction.step.parts.items() if s}
    whole = prediction.step.step_s
    longest = sorted(parts, key=lambda name: -parts[name])[:2]
    columns = (
        Column("part", lambda pair: pair[0]),
        Column("time", lambda pair: pair[1], "s"),
        Column("share", lambda pair: pair[1] / whole, "1"),
    )
    words = listed([f"{name} with {percent(parts[name] / whole, 0)}" for name in longest])
    return Section(
        "Step time by part",
        f"A step takes {seconds(whole)}; most of it is {words}.",
        table=Table.of(parts.items(), columns),
        figure=Figure([Bars("s", "", [Bar("step", "predicted", parts)], _COLORS)]),
    )


def _memory(prediction: LargePrediction) -> Section:
    """Return the parts of the fullest stage, and the saving of each remedy, predicted again."""
    fullest, remedies = prediction.fullest, of_parts(prediction)
    whole = fullest.allocated_bytes
    stage = f" of stage {fullest.stage}, the fullest" if len(prediction.stages) > 1 else ""

    def saving(part: MemoryPart) -> str:
        own = remedies.get(part.remedy)
        if own is None:
            return "" if change_in(part.remedy) else part.remedy
        return f"{own.changes[0]} saves {memory(own.saved_bytes)}"

    columns = (
        Column("part", "name"),
        Column("bytes", "bytes", "B"),
        Column("share", lambda part: part.bytes / whole, "1"),
        Column("cause", "cause"),
        Column("remedy", saving),
    )
    sentences = [
        f"{memory(part.bytes)} {part.cause or part.name}" + (f"; {saving(part)}" if part.remedy in remedies else "")
        for part in fullest.parts
        if part.bytes >= _LEAST_SHARE * whole
    ]
    more = (fullest.reserved_bytes - whole, fullest.used_bytes - fullest.reserved_bytes)
    return Section(
        f"Memory by part{stage}",
        f"Tensors of a rank take up to {memory(whole)}; with the allocator's rounding and fragments "
        f"({memory(more[0])}), the device's context and collectives ({memory(more[1])}) it needs {memory(fullest.used_bytes)}.",
        lines=[f"{text}." for text in sentences[:_MOST_SENTENCES]],
        table=Table.of(fullest.parts, columns, drop=("share", "cause")),
    )


def _stages(prediction: LargePrediction) -> Section:
    sizes = {stage.place: len(stage.layers) for stage in prediction.setting.stages}
    total = prediction.device.usable_bytes
    columns = (
        Column("stage", "stage", format="d"),
        Column("layers", lambda one: sizes.get(one.stage), format="d"),
        Column("allocated", "allocated_bytes", "B"),
        Column("used", "used_bytes", "B"),
        Column("fits", lambda one: chance(probability_of_fit(one, total)), format=str),
    )
    least = min(prediction.stages, key=lambda one: one.used_bytes)
    return Section(
        "Stages",
        f"Stage {prediction.fullest.stage} needs {memory(prediction.fullest.used_bytes)}, the most; stage {least.stage} needs "
        f"{memory(least.used_bytes)}.",
        table=Table.of(prediction.stages, columns),
    )


def _collectives(prediction: LargePrediction) -> Section:
    collectives, whole = prediction.step.collectives, prediction.step.step_s
    exposed = sum(one.exposed_s for one in collectives)
    largest = max(collectives, key=lambda one: one.seconds)

    columns = (
        Column("collective", "name"),
        Column("calls", "calls", format=","),
        Column("bytes per step", lambda one: one.calls * one.bytes, format=lambda value: si(value, "B")),
        Column("ranks", "ranks", format=","),
        Column("link", "tier"),
        Column("time", "seconds", "s"),
        Column("exposed", "exposed_s", "s"),
        Column("hidden by", "hidden_by"),
    )
    return Section(
        "Collectives",
        f"Ranks wait {seconds(exposed)} for collectives, {percent(exposed / whole)} of a step; the longest is "
        f"{largest.name} with {seconds(largest.seconds)}.",
        table=Table.of(collectives, columns, drop=("hidden by", "calls", "link")),
    )


def _fit(prediction: LargePrediction, steps: Sequence[Remedied]) -> Section:
    """Return the probability that the setting fits, and the changes that make it fit."""
    total, used = prediction.device.usable_bytes, prediction.fullest.used_bytes
    sentence = (
        f"A rank needs {memory(used)} of {memory(total)}: it fits with a probability of {chance(prediction.fit)}."
    )
    if not steps:
        if prediction.fit < ENOUGH:
            sentence += " No change that we tried saves memory: use more devices, or devices with more memory."
        return Section("Does it fit?", sentence)
    last = steps[-1]
    verb = "makes it fit" if len(last.changes) == 1 else "make it fit"
    if last.prediction.fit < ENOUGH:
        verb = "is not enough" if len(last.changes) == 1 else "are not enough"
    columns = (
        Column("with", lambda one: " ".join(one.changes)),
        Column("used", lambda one: one.prediction.fullest.used_bytes, "B"),
        Column("fits", lambda one: chance(one.prediction.fit), format=str),
        Column("step", lambda one: one.prediction.step.step_s, "s"),
        Column("tokens/s", lambda one: one.prediction.tokens_per_s, format=",.0f"),
    )
    return Section(
        "Does it fit?",
        sentence,
        lines=[f"{listed(last.changes)} {verb}: {_how_it_runs(last)}."],
        table=Table.of(steps, columns),
    )


def _how_it_runs(one: Remedied) -> str:
    """Return the probability and speed of a changed setting in words."""
    rate = quantity(one.prediction.tokens_per_s, "token/s")
    return f"{chance(one.prediction.fit)} to fit, {rate}, {how_many(one.prediction.setting.micro_batches, 'micro-batches')} per step"
