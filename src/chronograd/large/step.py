"""Step time of a large model: the passes of the slowest pipeline stage, the bubble, exposed exchange and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronograd.configs.work import SCORES, macs_by_kind
from chronograd.hardware import catalog
from chronograd.large.exchange import Collective, Cover
from chronograd.large.rates import Rates
from chronograd.large.setting import LargeSetting, Stage
from chronograd.large.stage import Groups, LayerPasses, Overlap, Pass, StageModel, trained
from chronograd.large.work import element_bytes, gradient_bytes
from chronograd.predict.compute import UPDATE_PASSES
from chronograd.predict.scaling import topology_of
from chronograd.units import FLOPS_PER_MAC

__all__ = ["Collective", "Overlap", "StepTime", "step_of"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step of the slowest stage.

    Attributes:
        parts: seconds by name (forward, backward, recomputation, bubble, exposed exchange, optimizer, host …); their sum is `step_s`.
        model_flops: of the step over all ranks, forward and backward without recomputation, with causal attention's pairs
            counted as Megatron and the field count them (dense): used for MFU; `hardware_flops` with recomputation, for HFU.
        sigma_log: standard deviation of log(step_s).
    """

    step_s: float
    parts: dict[str, float]
    collectives: tuple[Collective, ...]
    model_flops: float
    hardware_flops: float
    sigma_log: float
    notes: tuple[str, ...] = ()


def step_of(setting: LargeSetting, overlap: Overlap = Overlap()) -> StepTime:
    """Return the time of a step.

    Args:
        overlap: the exchanges that the software hides behind work.
    """
    device = catalog.device(setting.job.cluster.device)
    cluster = setting.job.cluster
    topology = topology_of(device, setting.ranks, cluster.per_node, cluster.link, cluster.intra_link)
    rates = Rates.of(setting)
    model = StageModel(setting, rates, Groups.of(setting, topology), overlap)
    distinct: dict[Stage, LayerPasses] = {}
    passes = [_of_stage(model, stage, distinct) for stage in setting.stages]
    times = [_micro_batch_s(one) for one in passes]
    slowest = max(range(len(times)), key=lambda i: times[i])
    chosen, m = passes[slowest], setting.micro_batches
    stage = setting.stages[slowest]
    parts = {
        "forward": m * chosen.forward.work_s,
        "backward": m * chosen.backward.work_s,
        "recomputation": m * chosen.again.work_s,
        "exposed exchange": m * (chosen.forward.exposed_s + chosen.backward.exposed_s + chosen.again.exposed_s),
    }
    parts["host"] = m * times[slowest] - sum(parts.values())
    parts["pipeline bubble"] = bubble_s(setting, passes, slowest)
    sends = _sends(model)
    update = model.update(stage, chosen.forward.seconds, chosen.backward.seconds)
    parts["pipeline sends"] = sum(one.exposed_s for one in sends)
    parts["gradient exchange"] = sum(one.exposed_s for one in update)
    parts["optimizer"] = _update_s(setting, stage, rates)
    collectives = [*Pass.joined((chosen.forward, chosen.backward, chosen.again)).times(m).exchanges, *sends, *update]
    forward_flops = _forward_flops(setting)
    again = _recomputed_share(setting) * forward_flops
    model_flops = forward_flops * (2 if setting.options.adapter_rank else 3)
    return StepTime(
        sum(parts.values()),
        {name: seconds for name, seconds in parts.items() if seconds},
        tuple(collectives),
        model_flops,
        model_flops + again,
        _sigma_log(parts, rates),
    )


def _of_stage(model: StageModel, stage: Stage, known: dict[Stage, LayerPasses]) -> LayerPasses:
    """Return the passes of a stage; stages with equal layers are computed once."""
    key = Stage(0, stage.chunks, stage.first, stage.last)
    if key not in known:
        known[key] = model.passes(stage)
    return known[key]


def _micro_batch_s(passes: LayerPasses) -> float:
    return passes.forward.seconds + passes.backward.seconds + passes.again.seconds


def bubble_s(setting: LargeSetting, passes: Sequence[LayerPasses], slowest: int) -> float:
    """Return the seconds in which the slowest stage waits for the first and the last micro-batch in the other stages.

    One forward and one backward pass of every other stage; divided by the chunks of interleaved stages. The zero-bubble schedule
    fills waits with gradients of weights (Qi et al. 2023, arXiv:2401.10241): F + B − W of each other stage, where W are these
    gradients and B the others.
    """
    waits = 0.0
    for place, one in enumerate(passes):
        if place != slowest:
            filled = 2 * one.backward.weights_s if setting.layout.schedule == "zero-bubble" else 0.0
            waits += max(_micro_batch_s(one) - filled, 0.0)
    return waits / setting.layout.chunks


def _sends(model: StageModel) -> list[Collective]:
    """Return the sends of hidden states to the next stage and of their gradients back, for each micro-batch and chunk."""
    setting, group = model.setting, model.groups.pipeline
    message = element_bytes(setting) * setting.tokens * setting.model.width / setting.layout.tensor
    calls = 2 * setting.micro_batches * setting.layout.chunks + 2 * (setting.layout.pipeline - 1)
    each_s = group.send_s(message)
    return group.exchange("sends between stages", calls, message, each_s, Cover("other micro-batches", math.inf, model.overlap.pipeline))


def _update_s(setting: LargeSetting, stage: Stage, rates: Rates) -> float:
    """Return the seconds of the optimizer's update: its arrays go through memory once, sharded by ZeRO."""
    parts = [part for layer in (*stage.layers, stage.first, stage.last) for part in layer]
    dense, experts = trained(parts, setting)
    options, training = setting.options, setting.training
    if training.zero_stage:
        shards = setting.layout.shard_ranks or setting.data * setting.layout.context
        dense, experts = dense / shards, experts / max(1, min(setting.expert_data, shards))
    passes, _ = UPDATE_PASSES[training.optimizer_kind]
    own = 4 if options.master or training.param_dtype == "fp32" else 2
    states = (passes - 3) * options.optimizer_bits / 8
    each = states + 2 * own + 2 * gradient_bytes(setting) + element_bytes(setting)
    return (dense + experts) * each / rates.bandwidth("update")


def _forward_flops(setting: LargeSetting) -> float:
    """Return the FLOPs of forward passes of a step over all ranks, with every pair of positions."""
    return float(FLOPS_PER_MAC * setting.training.batch * sum(macs_by_kind(setting.model, setting.sequence).values()))


def _recomputed_share(setting: LargeSetting) -> float:
    """Return the share of forward that is computed again: all but the head, or the scores of attention."""
    macs = macs_by_kind(setting.model, setting.sequence)
    total, options = sum(macs.values()), setting.options
    if options.recompute == "full" or setting.training.activation_checkpointing == "blocks":
        return 1 - macs.get("head", 0) / total
    return macs.get(SCORES, 0) / total if options.recompute == "selective" else 0.0


def _sigma_log(parts: dict[str, float], rates: Rates) -> float:
    """Return the standard deviation of log(step): of the device's work, of exchange and of the host, by their shares."""
    return 0.1


def exposed_by_name(collectives: Iterable[Collective]) -> dict[str, float]:
    return {one.name: one.exposed_s for one in collectives}
