"""Bytes of the parameters, gradients and optimizer states of one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chronograd.configs.description import TablePart
from chronograd.large.setting import Amount, LargeSetting, Stage, StageGrid
from chronograd.large.share import Share, adapter_params, outside_of, shard_ranks, share_of, share_of_stage
from chronograd.large.stored import ADAPTER
from chronograd.large.work import casts_weights, element_bytes, gradient_bytes, is_eager, usual_state_bytes
from chronograd.predict.memory import OPTIMIZER_STATES

# Bytes of a parameter with its scales, which are quantised as well: Dettmers et al. 2023, arXiv:2305.14314, section 3.
IN_4_BITS = 4.127 / 8


@dataclass(frozen=True)
class States:
    """Bytes of one rank."""

    parameters: Amount
    gradients: Amount
    optimizer: Amount
    gathered: Amount  # whole parameters and gradients of the layers that are computed, with sharded parameters
    casts: Amount = 0.0  # of parameters, which autocast keeps until their gradients are computed


def states_of(setting: LargeSetting, stage: Stage | StageGrid) -> States:
    """Return the bytes of parameters, gradients and optimizer states on a rank of a stage.

    Mixed precision stores parameters in half precision, gradients in fp32, a copy of the parameters in fp32 and the optimizer's
    numbers. With sharded parameters the copy is the only one, and the layers at work are gathered in half precision. A plain loop
    under autocast has parameters in fp32 alone, and casts of all that it multiplies. The host may store some of them, but the layers at
    work are on the rank.
    """
    found = _all_states(setting, stage)
    parameters, gradients, optimizer = {"none": (1, 1, 1), "optimizer": (1, 1, 0), "all": (0, 0, 0)}[
        setting.options.offload
    ]
    return replace(
        found,
        parameters=found.parameters * parameters,
        gradients=found.gradients * gradients,
        optimizer=found.optimizer * optimizer,
    )


def _all_states(setting: LargeSetting, stage: Stage | StageGrid) -> States:
    """Return the states with those that the host stores."""
    share, training = share_of_stage(setting, stage), setting.training
    outside, layer = outside_of(setting, stage).params, _largest_layer(setting, stage)
    if setting.options.adapter_rank:
        return _frozen(setting, share, outside, layer)
    half, master, gradient = element_bytes(setting), _master_bytes(setting), gradient_bytes(setting)
    moments = optimizer_bytes(setting)
    stage_of_zero = training.zero_stage
    is_single = stage_of_zero == 3 or casts_weights(setting)
    found: list[Amount] = [0.0, 0.0, 0.0]
    for params, ranks in zip((share.plain, share.experts), shard_ranks(setting), strict=True):
        found[0] += params * (max(half, master) if is_single else half) / (ranks if stage_of_zero == 3 else 1)
        found[1] += params * gradient / (ranks if stage_of_zero >= 2 else 1)
        found[2] += params * (moments + (0 if is_single else master)) / (ranks if stage_of_zero >= 1 else 1)
    is_gathered = stage_of_zero == 3 or setting.options.offload == "all"
    gathered = half * (3 * layer + outside) + gradient * layer if is_gathered else 0.0
    casts = half * (share.params - _never_cast(setting, stage)) if casts_weights(setting) else 0.0
    return States(found[0], found[1], found[2], gathered, casts)


def _never_cast(setting: LargeSetting, stage: Stage | StageGrid) -> Amount:
    """Return the parameters of an embedding that no head shares: it is looked up, not multiplied."""
    tied = any(tensor.is_tied for part in stage.last for tensor in part.tensors(setting.model.width))
    tables = [part for part in stage.first if isinstance(part, TablePart)]
    return 0.0 if tied else share_of(setting, tables).params * stage.is_first


def _master_bytes(setting: LargeSetting) -> int:
    """Return the bytes of the fp32 copy of a parameter in half precision; 0 without one."""
    has_copy = element_bytes(setting) == 2 and setting.options.master and not setting.training.is_pure
    return 4 if has_copy else 0


def updated_bytes(setting: LargeSetting) -> int:
    """Return the bytes of a trained parameter in its most exact copy, which the optimizer updates."""
    return ADAPTER if setting.options.adapter_rank else max(element_bytes(setting), _master_bytes(setting))


def optimizer_bytes(setting: LargeSetting) -> Amount:
    """Return the bytes of the optimizer states of a trained parameter.

    PyTorch's optimizers keep them in the type of the parameter (torch.optim.AdamW: `zeros_like`).
    """
    options = setting.options
    usual = ADAPTER if options.adapter_rank else usual_state_bytes(setting)
    each = options.optimizer_bits / 8 if options.optimizer_bits else usual
    return OPTIMIZER_STATES[setting.training.optimizer_kind] * each


def checkpoint_bytes(setting: LargeSetting) -> float:
    """Return the bytes of a checkpoint of all ranks: parameters in their most exact copy, and the optimizer's numbers.

    With adapters, only theirs: nothing else changes.
    """
    tensors = [(tensor, number) for tensor, number in setting.model.counted() if not tensor.is_tied]
    has_adapters = bool(setting.options.adapter_rank)
    trained = sum(n * (adapter_params(setting, t) if has_adapters else t.params) for t, n in tensors)
    return trained * float(updated_bytes(setting) + optimizer_bytes(setting))


def _largest_layer(setting: LargeSetting, stage: Stage | StageGrid) -> Amount:
    """Return the parameters of the largest layer of a stage."""
    largest: Amount = 0.0
    for layer, number in stage.numbers:
        largest = np.maximum(largest, np.minimum(number, 1) * share_of(setting, layer).params)
    return largest


def _frozen(setting: LargeSetting, share: Share, outside: Amount, layer: Amount) -> States:
    """Return the states with adapters: the network without gradients, and fp32 adapters with theirs.

    Args:
        outside: parameters before and after the layers; `layer`: of the largest layer.
    """
    each = {16: 2.0, 8: 1.0, 4: IN_4_BITS}[setting.options.base_bits]
    ranks = shard_ranks(setting)[0] if setting.training.zero_stage == 3 else 1
    base = ((share.params - outside) * each + outside * 2) / ranks
    adapters = share.adapters * ADAPTER / ranks
    casts = share.adapters * 2 if is_eager(setting) and not setting.training.is_pure else 0.0
    is_gathered = (ranks > 1) | (setting.options.offload == "all")
    moments = share.adapters * optimizer_bytes(setting) / ranks
    return States(base + adapters, adapters, moments, is_gathered * 2 * (layer * each + outside), casts)
