"""Step time of a large model: the passes of the slowest pipeline stage, the bubble, exposed exchange and the optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.configs.work import SCORES, macs_by_kind
from chronograd.hardware import catalog
from chronograd.large.collective import REACHED, Collective, Cover
from chronograd.large.exchange import Exchanges
from chronograd.large.groups import Groups
from chronograd.large.rates import Rates
from chronograd.large.setting import LargeSetting, Stage
from chronograd.large.share import Share, shard_ranks, share_of_stage, trained
from chronograd.large.software import USUAL, Software
from chronograd.large.stage import MicroBatch, StageModel, joined
from chronograd.large.states import optimizer_bytes, updated_bytes
from chronograd.large.work import element_bytes, gradient_bytes
from chronograd.predict.collectives import Topology
from chronograd.predict.notes import assumed_network
from chronograd.predict.scaling import topology_of
from chronograd.units import FLOPS_PER_MAC

# Standard deviations of the log of predictions. A device and its software have one, smaller for the chip whose rows gave the rates.
# The work of a step has one, larger with experts; exchange and the host have theirs. 80 % intervals cover 85 % of vTrain's rows.
FITTED_CHIP = "ga100"
FITTED_SIGMA = 0.04
DEVICE_SIGMA = 0.11
WORK_SIGMA, EXPERTS_SIGMA, EXCHANGE_SIGMA, HOST_SIGMA = 0.05, 0.13, 0.4, 0.2

# Parts of a step in which ranks wait for each other's data.
EXCHANGE = ("exchange in layers", "pipeline sends", "exchange of the update")

__all__ = ["Collective", "Software", "StepTime", "step_of"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step of the slowest stage.

    Attributes:
        parts: seconds by name (forward, backward, recomputation, bubble, exposed exchange, optimizer, host …); their sum is `step_s`.
        model_flops: of the step over all ranks, forward and backward, with dense attention in its windows, for MFU.
        hardware_flops: the same with recomputation, for HFU.
        sigma_log: standard deviation of log(step_s); `shared_sigma_log` of it is the same error for all steps of a device.
    """

    step_s: float
    parts: dict[str, float]
    collectives: tuple[Collective, ...]
    model_flops: float
    hardware_flops: float
    sigma_log: float
    notes: tuple[str, ...] = ()
    shared_sigma_log: float = 0.0


def step_of(setting: LargeSetting, software: Software = USUAL) -> StepTime:
    """Return the time of a step.

    Raises: InputError for a device or a precision that cannot be predicted.
    """
    cluster, m = setting.job.cluster, setting.micro_batches
    rates = Rates.of(setting, software.attention)
    topology = topology_of(rates.device, setting.ranks, cluster.per_node, cluster.link, cluster.intra_link)
    exchanges = Exchanges(setting, Groups.of(setting, topology), software)
    model = StageModel(setting, rates, exchanges, software)
    found: dict[Stage, MicroBatch] = {}
    for stage in setting.stages:
        if _work_of(stage) not in found:  # stages with equal layers are computed once
            found[_work_of(stage)] = model.micro_batch(stage)
    batches = [found[_work_of(stage)] for stage in setting.stages]
    (slowest,), (bubble_s,) = pipelined(
        setting, np.array([one.seconds for one in batches]), np.array([one.backward.weights_s for one in batches])
    )
    batch, share = batches[slowest], share_of_stage(setting, setting.stages[slowest])
    numbers, sends = trained(setting, share), list(exchanges.sends())
    update = list(
        exchanges.update(
            numbers,
            Cover("forward", batch.forward.seconds, software.parameters),
            Cover("backward", batch.backward.seconds, software.gradients),
        )
    )
    parts = {
        "forward": m * batch.forward.work_s,
        "backward": m * batch.backward.work_s,
        "recomputation": m * batch.again.work_s,
        "exchange in layers": m * sum(one.exposed_s for one in batch.passes),
    }
    parts["host"] = m * batch.seconds - sum(parts.values())
    parts["pipeline bubble"] = float(bubble_s)
    parts["pipeline sends"] = sum(one.exposed_s for one in sends)
    parts["exchange of the update"] = sum(one.exposed_s for one in update)
    parts["optimizer"] = update_s(setting, numbers, rates)
    parts["offload"] = _offload_s(setting, share, rates, parts["forward"] + parts["backward"])
    collectives = (*joined(batch.passes).times(m).exchanges, *sends, *update)
    model_flops, again_flops = _flops(setting)
    shared = FITTED_SIGMA if rates.device.chip == FITTED_CHIP else DEVICE_SIGMA
    return StepTime(
        sum(parts.values()),
        {name: seconds for name, seconds in parts.items() if seconds > 0},
        collectives,
        model_flops,
        model_flops + again_flops,
        _sigma_log(setting, parts, shared),
        (*_notes(setting, software), *_network_notes(setting, topology, parts, collectives)),
        shared,
    )


def _work_of(stage: Stage) -> Stage:
    """Return a stage without its place."""
    return replace(stage, place=0)


def pipelined(
    setting: LargeSetting, stage_s: np.ndarray, weights_s: np.ndarray, starts: Sequence[int] | np.ndarray = (0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slowest stage of each layout, and its bubble in seconds.

    The bubble is the wait for the first and the last micro-batch in the other stages: one micro-batch in each of them, divided by
    the chunks of interleaved stages. The zero-bubble schedule fills waits with gradients of weights: F + B − W for each other
    stage, where W are these gradients and B the others (Qi et al. 2023, arXiv:2401.10241).

    Args:
        stage_s: seconds of a micro-batch on each stage; `weights_s` of them for gradients of weights.
        starts: the first stage of each layout.
    """
    slowest = np.array(
        [start + np.argmax(own) for start, own in zip(starts, np.split(stage_s, starts[1:]), strict=True)]
    )
    filled = 2 if setting.layout.schedule == "zero-bubble" else 0
    waits = np.maximum(stage_s - filled * weights_s, 0.0)
    chunks = np.broadcast_to(setting.layout.chunks, stage_s.shape)[slowest]
    return slowest, (np.add.reduceat(waits, starts) - waits[slowest]) / chunks


def _updated(setting: LargeSetting, numbers: Sequence[float]) -> float:
    """Return the number of parameters that a rank updates, of those that `share.trained` returns."""
    shards = shard_ranks(setting) if setting.training.zero_stage else (1, 1)
    return float(sum(number / ranks for number, ranks in zip(numbers, shards, strict=True)))


def update_s(setting: LargeSetting, numbers: Sequence[float], rates: Rates) -> float:
    """Return the seconds of the optimizer's update: its arrays go through memory once, sharded by ZeRO.

    Args:
        numbers: of parameters, as `share.trained` returns them.
    """
    # The states and the parameter are read and written, and its copy is written. Clipping reads the gradient once more.
    passes = 2 * (optimizer_bytes(setting) + updated_bytes(setting) + gradient_bytes(setting))
    each: float = passes + element_bytes(setting)
    return _updated(setting, numbers) * each / rates.bandwidth("update")


def _offload_s(setting: LargeSetting, share: Share, rates: Rates, work_s: float) -> float:
    """Return the seconds in which a rank exchanges gradients and parameters with the memory of its host.

    Gradients go there and updated parameters come back. If the host stores the parameters as well, each micro-batch fetches them
    twice behind its work. Left out: the update itself, on the host.
    """
    offload, node = setting.options.offload, rates.device.node
    if offload == "none" or node.host_link is None:
        return 0.0
    bandwidth = REACHED * catalog.link(node.host_link).bandwidth_bytes_per_s
    moved: float = (
        _updated(setting, trained(setting, share)) * (gradient_bytes(setting) + element_bytes(setting)) / bandwidth
    )
    if offload == "optimizer":
        return moved
    each = element_bytes(setting) * setting.options.base_bits / 16
    fetched_s: float = 2 * setting.micro_batches * share.params * each / bandwidth
    return moved + max(fetched_s - work_s, 0.0)


def _notes(setting: LargeSetting, software: Software) -> Iterator[str]:
    """Yield sentences on the assumptions of a prediction."""
    if setting.has_experts and software.imbalance == 1:
        yield "Every expert gets the same number of tokens."
    if setting.has_experts and setting.options.adapter_rank:
        yield "Experts and routers have no adapters."
    if setting.options.offload != "none":
        yield "The time of the update on the host is not predicted, only the transfers."


def _network_notes(
    setting: LargeSetting, topology: Topology, parts: Mapping[str, float], collectives: Sequence[Collective]
) -> list[str]:
    """Return a sentence on the assumed network if ranks wait longer for exchange between nodes than any other part takes."""
    waits_s = sum(one.exposed_s for one in collectives if one.tier == topology.inter.name)
    longest_s = max(seconds for name, seconds in parts.items() if name not in EXCHANGE)
    return [
        f"{note[0].upper()}{note[1:]}."
        for note in assumed_network(setting.job.cluster, topology)
        if waits_s > longest_s
    ]


def _flops(setting: LargeSetting) -> tuple[float, float]:
    """Return the FLOPs of a step over all ranks, with every pair of positions in its window, and those of recomputation.

    Checkpointing computes all but the head again.
    """
    macs, options = macs_by_kind(setting.model, setting.sequence, windows=True), setting.options
    again = 0
    if options.recompute == "full" or setting.training.activation_checkpointing == "blocks":
        again = sum(macs.values()) - macs.get("head", 0)
    elif options.recompute == "selective":
        again = macs.get(SCORES, 0)
    return _forward_and_backward(setting, macs), float(FLOPS_PER_MAC * setting.training.batch * again)


def least_flops(setting: LargeSetting) -> float:
    """Return the FLOPs of a step over all ranks that no implementation avoids: with only the pairs that masks leave."""
    return _forward_and_backward(setting, macs_by_kind(setting.model, setting.sequence, causal=True))


def _forward_and_backward(setting: LargeSetting, macs: Mapping[str, int]) -> float:
    """Backward is twice forward, or once if the network is frozen."""
    return FLOPS_PER_MAC * setting.training.batch * sum(macs.values()) * (2.0 if setting.options.adapter_rank else 3.0)


def _sigma_log(setting: LargeSetting, parts: dict[str, float], shared: float) -> float:
    """Return the standard deviation of log(step): of device and work, and of exchange and host by their shares of the step."""
    shares = (sum(parts[name] for name in names) / sum(parts.values()) for names in (EXCHANGE, ("host",)))
    own = (sigma * share for sigma, share in zip((EXCHANGE_SIGMA, HOST_SIGMA), shares, strict=True))
    return math.hypot(shared, EXPERTS_SIGMA if setting.has_experts else WORK_SIGMA, *own)
