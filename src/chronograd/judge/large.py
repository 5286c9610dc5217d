"""The judgement of a figure of a large model: its place in the interval of the prediction, and what would explain the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from chronograd.answer import Answer, Column, Section, Table
from chronograd.errors import InputError
from chronograd.figure import Bar, Bars, Figure
from chronograd.judge.claim import parse
from chronograd.judge.verdict import Verdict
from chronograd.large.asking import AskedLarge, with_changes
from chronograd.large.prediction import LEAST_FIT, LargePrediction, record_of
from chronograd.record import CHOSEN, DOES_NOT_FIT, Quantity, normal_probability
from chronograd.units import chance, percent, quantity, seconds, whole_percent
from chronograd.words import interval, is_inside

_MFU = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*mfu\s*", re.IGNORECASE)
_TFLOPS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*tflops?(/s)?(/(gpu|device|rank))?\s*", re.IGNORECASE)
_ALONE = re.compile(r"[\s\d.,_]*")
_HINT = "write it as 11200 tokens/s/gpu, 90000 tokens/s, 7.2 s/step, 450 TFLOP/s/gpu or 45% mfu"
OF_GENERATION = 0.1  # of the expected speed of training, below which a figure may be one of generating text. Assumed.
_OVERLAP = "no overlap of the exchange"


@dataclass(frozen=True)
class OtherSetting:
    """A setting that may explain a figure, with the tokens per second that are predicted for it.

    Attributes:
        changes: fields that lead to it; empty if no field does.
        of_expected: the figure as a fraction of `tokens_per_s`.
    """

    words: str
    changes: tuple[str, ...]
    tokens_per_s: float
    of_expected: float


@dataclass(frozen=True)
class JudgedLarge:
    """The result of `judge` for a large model.

    Attributes:
        expected: tokens per second in training; missing if the setting does not fit, as it cannot have run.
        of_expected: the figure as a fraction of that; `quantile`: probability of a lower figure in exactly this setting.
        others: settings that fit, the nearest first.
    """

    claim: str
    verdict: Verdict
    tokens_per_s: float
    step_s: float
    mfu: float
    expected: Quantity
    of_expected: float | None
    quantile: float | None
    others: list[OtherSetting]


def judge_large(figure: str, asked: AskedLarge) -> Answer[JudgedLarge]:
    """Return the answer about a figure such as `11200 tokens/s/gpu`, `7.2 s/step` or `45% mfu`. Raises InputError."""
    prediction = LargePrediction(asked.setting)
    record = record_of(prediction, asked)
    step_s = _step_s(figure, prediction)
    rate = prediction.setting.step_tokens / step_s
    ratio = rate / prediction.tokens_per_s
    can_run = prediction.fit >= LEAST_FIT
    missing = Quantity.missing("token/s", "the setting does not fit")
    judged = JudgedLarge(
        figure,
        _verdict_of(prediction, step_s, bool(is_inside(rate, record["throughput_tokens_per_s"]))),
        rate,
        step_s,
        prediction.mfu * ratio,
        record["throughput_tokens_per_s"] if can_run else missing,
        ratio if can_run else None,
        float(normal_probability(math.log(ratio) / prediction.step.sigma_log)) if can_run else None,
        _others(prediction, rate),
    )
    title = f"{record.title}, training"
    notes = [note for note in record.notes if note not in prediction.step.notes]
    return Answer(
        title=f"{figure}: {judged.verdict}",
        sections=[_verdict(judged, title, notes), _explanations(judged)],
        records={record.title: record},
        notes=prediction.step.notes,
        result=judged,
    )


def _verdict_of(prediction: LargePrediction, step_s: float, is_expected: bool) -> Verdict:
    if step_s < prediction.least_step_s:
        return "impossible"
    if prediction.fit < LEAST_FIT:
        return "does not fit"
    return "as expected" if is_expected else "slow" if step_s > prediction.step.step_s else "suspicious"


def _step_s(figure: str, prediction: LargePrediction) -> float:
    """Return the seconds of a step that a figure states. Raises InputError."""
    setting = prediction.setting
    if match := _MFU.fullmatch(figure):
        mfu = float(match[1]) / (100 if match[2] or float(match[1]) > 1 else 1)
    elif match := _TFLOPS.fullmatch(figure):
        mfu = float(match[1]) * 1e12 * setting.ranks / prediction.peak_flops_per_s
    elif _ALONE.fullmatch(figure):
        raise InputError(f"{figure!r} has no unit", _HINT)
    else:
        try:
            rate = parse(figure).samples_per_s(setting.training.batch, setting.ranks, setting.sequence)
        except InputError as error:
            raise InputError(error.message, _HINT) from None
        return setting.training.batch / rate
    if not 0 < mfu < math.inf:
        raise InputError(f"{figure!r} is not above 0", _HINT)
    return prediction.step.step_s * prediction.mfu / mfu


def _others(prediction: LargePrediction, rate: float) -> list[OtherSetting]:
    """Return the settings that fit and are often the reason of another speed, each predicted again; the nearest first."""
    setting, options = prediction.setting, prediction.setting.options
    hidden_s = sum(one.seconds - one.exposed_s for one in prediction.step.collectives)
    tried: list[tuple[str, tuple[str, ...], float]] = []
    if hidden_s > 0 and prediction.fit >= LEAST_FIT:
        tried.append((_OVERLAP, (), setting.step_tokens / (prediction.step.step_s + hidden_s)))
    half, batch = setting.micro_batch // 2, setting.training.batch
    candidates = [
        *(
            (f"recomputation {kind}", f"large.recompute={kind}")
            for kind in ("none", "selective", "full")
            if kind != options.recompute
        ),
        *((f"{kind} attention", f"large.attention={kind}") for kind in ("fused", "plain") if kind != options.attention),
        *((f"{kind} kernels", f"large.kernels={kind}") for kind in ("fused", "eager") if kind != options.kernels),
        ("arithmetic in fp8", "large.fp8=true") if not options.fp8 else ("no fp8", "large.fp8=false"),
        *(
            (f"ZeRO {stage}", f"training.zero_stage={stage}")
            for stage in (1, 3)
            if setting.data > 1 and stage != setting.training.zero_stage
        ),
        (f"micro-batch {2 * setting.micro_batch}", f"training.batch={2 * batch}"),
        *([(f"micro-batch {half}", f"training.batch={batch * half // setting.micro_batch}")] if half else []),
    ]
    for words, change in candidates:
        try:
            other = LargePrediction(with_changes(setting, [change]))
            if other.fit >= LEAST_FIT:
                tried.append((words, (change,), other.tokens_per_s))
        except InputError:  # impossible in this setting
            continue
    found = [OtherSetting(words, changes, value, rate / value) for words, changes, value in tried]
    return sorted(found, key=lambda one: abs(math.log(one.of_expected)))


def _verdict(judged: JudgedLarge, title: str, notes: Sequence[str]) -> Section:
    expected, ratio = judged.expected, judged.of_expected
    rate = quantity(judged.tokens_per_s, "token/s")
    rows = [("this figure", rate, seconds(judged.step_s), percent(judged.mfu))]
    bars = [Bar("this figure", "measured", {"tokens": judged.tokens_per_s})]
    lines = [note for note in notes if not note.startswith((CHOSEN, DOES_NOT_FIT))]
    if ratio is not None and judged.quantile is not None:
        rows.append(
            (
                "expected",
                quantity(expected.value, "token/s"),
                seconds(judged.step_s * ratio),
                percent(judged.mfu / ratio),
            )
        )
        bars.append(Bar("expected", "predicted", {"tokens": expected.value or 0.0}, expected.low, expected.high))
        lines.insert(0, f"In exactly this setting, {chance(judged.quantile)} of runs are expected to be slower")
        if ratio < OF_GENERATION:
            lines.insert(
                0, "If the figure is of generating text, compare it with another prediction: this one is of training"
            )
    return Section(
        title,
        _sentence(judged, notes),
        lines=[f"{line}." for line in lines],
        table=Table(("", "tokens/s", "step", "MFU"), rows, {1, 2, 3}),
        figure=Figure([Bars("tokens per second", "", bars)]),
    )


def _sentence(judged: JudgedLarge, notes: Sequence[str]) -> str:
    """Return the verdict, after the values that were chosen to fit."""
    rate, ratio = quantity(judged.tokens_per_s, "token/s"), judged.of_expected
    if judged.verdict == "impossible":
        return f"Impossible: {rate} would be an MFU of {percent(judged.mfu)}, above the peak of the devices."
    if ratio is None:
        misfit = next(note for note in notes if note.startswith(DOES_NOT_FIT))
        return f"No verdict, because {rate} cannot be training in this setting. It {misfit}."
    chosen = "".join(f"{note}. " for note in notes if note.startswith(CHOSEN))
    side = f"{whole_percent(abs(ratio - 1))} {'above' if ratio >= 1 else 'below'}"
    between = f"{quantity(judged.expected.value, 'token/s')} of training ({interval(judged.expected)})"
    return f"{chosen}{judged.verdict.capitalize()}: {rate} is {side} the expected {between}."


def _explanations(judged: JudgedLarge) -> Section:
    columns = (
        Column("with", "words"),
        Column("tokens/s", "tokens_per_s", format=",.0f"),
        Column("yours is", "of_expected", format=whole_percent),
        Column("field", lambda one: " ".join(one.changes)),
    )
    nearest, expected = judged.others[0] if judged.others else None, judged.expected
    reach = (expected.high or math.inf) / (expected.value or 1.0)  # the interval of each setting is about as wide
    if judged.verdict == "as expected":
        takeaway = "The stated setting explains it. The others are predicted as follows."
    elif nearest is None or not 1 / reach <= nearest.of_expected <= reach:
        takeaway = "None of the settings that we tried explains it."
    else:
        takeaway = (
            f"{nearest.words[0].upper()}{nearest.words[1:]} comes nearest: {quantity(nearest.tokens_per_s, 'token/s')}, and this "
            f"figure is {whole_percent(nearest.of_expected)} of that."
        )
    return Section("What would explain it", takeaway, table=Table.of(judged.others, columns, drop=("field",)))
