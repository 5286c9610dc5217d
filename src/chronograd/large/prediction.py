"""The record of a step of a large model that has not happened yet: time, memory of each stage, and cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property

from chronograd import __version__
from chronograd.answer import as_json
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.job import resolved
from chronograd.large.asking import AskedLarge, with_changes
from chronograd.large.defaults import SURE
from chronograd.large.memory import StageMemory, memory_of, probability_of_fit
from chronograd.large.setting import LargeSetting
from chronograd.large.step import StepTime, least_flops, step_of
from chronograd.large.tokens import STATED, TrainingTokens, billions
from chronograd.predict.prediction import likely_by, price_of
from chronograd.record import ASSUMED, CHOSEN, DOES_NOT_FIT, QUANTITIES, Provenance, Quantity, Record, RecordedCluster
from chronograd.units import chance, memory, si
from chronograd.words import how_many, listed

SOURCE = "sizes of the model"
LEFT_OUT = "evaluation, saving, start-up, failures"
LEAST_FIT = 0.5  # probability below which we state that a setting does not fit


@dataclass(frozen=True)
class LargePrediction:
    """A setting with its predicted step, and the memory of the ranks of each stage, both computed when they are needed."""

    setting: LargeSetting

    @cached_property
    def step(self) -> StepTime:
        return step_of(self.setting)

    @cached_property
    def stages(self) -> Sequence[StageMemory]:
        return memory_of(self.setting)

    @property
    def device(self) -> Device:
        return catalog.device(self.setting.job.cluster.device)

    @cached_property
    def fullest(self) -> StageMemory:
        """Return the stage that needs the most memory."""
        return max(self.stages, key=lambda stage: stage.used_bytes)

    @cached_property
    def fit(self) -> float:
        """Return the probability that the fullest stage fits: the other stages share its errors."""
        return probability_of_fit(self.fullest, self.device.usable_bytes)

    @cached_property
    def eager(self) -> LargePrediction:
        """Return the prediction with the separate operators of Transformers, which store more."""
        return LargePrediction(with_changes(self.setting, ["large.kernels=eager"]))

    @property
    def tokens_per_s(self) -> float:
        """Return the tokens per second of all ranks."""
        return self.setting.step_tokens / self.step.step_s

    @property
    def peak_flops_per_s(self) -> float:
        """Return the peak of all ranks together, in the precision of the job."""
        return self.setting.ranks * self.device.peak(self.setting.training.precision)

    @property
    def least_step_s(self) -> float:
        """Return the seconds of a step at the peak of all devices, that of fp8 if the job uses it."""
        setting, device = self.setting, self.device
        peak = device.peak_8bit_ops_per_s["fp8"] if setting.options.fp8 else device.peak(setting.training.precision)
        return least_flops(setting) / (setting.ranks * peak)

    @property
    def mfu(self) -> float:
        return self.step.model_flops / self.step.step_s / self.peak_flops_per_s


def record_of(prediction: LargePrediction, asked: AskedLarge, tokens: TrainingTokens | None = None) -> Record:
    """Return the prediction as a record.

    Args:
        tokens: of the whole training; without it, its time and cost are left out.
    """
    setting, device = prediction.setting, prediction.device
    name = f"{setting.ranks} × {device.title}" if setting.ranks > 1 else device.title
    record = Record(
        kind="predicted",
        title=f"{setting.job.network.name} on {name}, batch {setting.training.batch} of {how_many(setting.sequence, 'tokens')}",
        job=resolved(setting.job),
        cluster=_cluster(setting, device),
        backend=setting.job.backend,
        versions={"chronograd": __version__},
        provenance=_provenance(prediction),
    )
    record.notes += _notes_of_fit(prediction, asked)
    if asked.assumed:
        record.notes.append(f"{ASSUMED}, because you did not state it: {'; '.join(asked.assumed)}")
    if tokens and tokens.source != STATED:
        record.notes.append(f"{ASSUMED} for the length of the training: {'. '.join([tokens.source, *tokens.notes])}")
    record.notes += prediction.step.notes
    _put(record, prediction, tokens)
    record.tables.step = [{"part": part, "seconds": seconds} for part, seconds in prediction.step.parts.items()]
    record.tables.stages = [as_json(stage) for stage in prediction.stages]
    record.tables.collectives = [asdict(one) for one in prediction.step.collectives]
    return record


def _notes_of_fit(prediction: LargePrediction, asked: AskedLarge) -> Iterator[str]:
    """Yield the values that were chosen to fit, or that no setting fits and the changes that are enough."""
    chosen = ", ".join(asked.chosen)
    if prediction.fit >= LEAST_FIT:
        if chosen:
            is_sure = prediction.fit >= SURE
            yield f"{CHOSEN}{chosen}: the {'first setting that fits' if is_sure else 'setting that needs the least memory'}"
        return
    yield (
        f"{DOES_NOT_FIT}{f' in the smallest setting that we tried ({chosen})' if chosen else ''}: a rank needs "
        f"{memory(prediction.fullest.used_bytes)}, and a device has {memory(prediction.device.usable_bytes)} (probability that it "
        f"fits: {chance(prediction.fit)})" + (f". {listed(asked.enough, 'or')} would be enough" if asked.enough else "")
    )


def _put(record: Record, prediction: LargePrediction, tokens: TrainingTokens | None) -> None:
    """Fill in the quantities."""
    setting, step, ranks = prediction.setting, prediction.step, prediction.setting.ranks
    likely = likely_by(SOURCE, step.sigma_log)
    rate, precision = prediction.tokens_per_s, setting.training.precision
    convention = f"of {si(prediction.peak_flops_per_s / ranks, 'FLOP/s')}, {precision}, dense attention"
    flops = step.model_flops / step.step_s / ranks
    record.put("step_time_s", likely(step.step_s, "s"))
    record.put("throughput_samples_per_s", likely(setting.training.batch / step.step_s, "sample/s"))
    record.put("throughput_tokens_per_s", likely(rate, "token/s"))
    record.put("throughput_tokens_per_s_per_device", likely(rate / ranks, "token/s"))
    record.put("achieved_flops_per_s", likely(flops, "FLOP/s"))
    record.put("mfu", likely(prediction.mfu, "1", f"{convention}, without recomputation"))
    record.put("hfu", likely(prediction.mfu * step.hardware_flops / step.model_flops, "1", convention))
    fullest = prediction.fullest
    peak = likely_by(f"stage {fullest.stage}", fullest.sigma_log)(fullest.used_bytes, "B")
    record.put("memory_peak_bytes", peak)
    memory_source = f"of {memory(prediction.device.usable_bytes)}"
    record.put("fit_probability", Quantity(value=prediction.fit, unit="probability", source=memory_source))
    price = price_of(setting.job, prediction.device)
    if price is None:
        for name in ("cost_usd_per_hour", "cost_usd_per_million_tokens", *(["cost_usd"] if tokens else [])):
            record.put(name, Quantity.missing(QUANTITIES[name][1], f"no price is known for {prediction.device.name}"))
    else:
        per_hour = price[0] * ranks
        record.put("cost_usd_per_hour", Quantity(value=per_hour, unit="usd", source=price[1]))
        record.put("cost_usd_per_million_tokens", likely(per_hour / 3600 / rate * 1e6, "usd"))
    if tokens:
        time_s, source = tokens.tokens / rate, f"{billions(tokens.tokens)}, {tokens.source.partition(':')[0]}"
        training = likely_by(source, math.hypot(step.sigma_log, tokens.sigma_log))
        record.put("training_time_s", training(time_s, "s"))
        if price is not None:
            record.put("cost_usd", training(per_hour / 3600 * time_s, "usd"))


def _cluster(setting: LargeSetting, device: Device) -> RecordedCluster:
    per_node = setting.job.cluster.per_node or device.node.devices_per_node
    return RecordedCluster(
        device=device.name,
        title=device.title,
        count=setting.ranks,
        nodes=-(-setting.ranks // per_node),
        per_node=per_node,
        batch_per_rank=setting.micro_batch * setting.micro_batches,
    )


def _provenance(prediction: LargePrediction) -> Provenance:
    setting = prediction.setting
    return Provenance(
        predicted_from=f"sizes of {setting.job.network.name} ({setting.model.family})",
        sigma_log=prediction.step.sigma_log,
        interval="80 % interval of a log-normal",
        peak_flops_per_s=prediction.peak_flops_per_s / setting.ranks,
        precision=setting.training.precision,
        flops_per_step_per_rank=prediction.step.model_flops / setting.ranks,
        zero_stage=setting.training.zero_stage,
        left_out=LEFT_OUT,
        date=datetime.now(UTC).date().isoformat(),
    )
