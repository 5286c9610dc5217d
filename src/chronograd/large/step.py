"""Step time of a large model."""

from __future__ import annotations

from dataclasses import dataclass

from chronograd.large.setting import LargeSetting


@dataclass(frozen=True)
class Collective:
    """A kind of exchange of a step on one rank.

    Attributes:
        name: such as `all-gather of parameters`.
        calls, bytes: per step; bytes of one call are those of the whole result.
        ranks: of its group.
        tier: the link that limits it, a name of the link catalogue.
        seconds: of all calls; `exposed_s` of these are not hidden behind `hidden_by`.
    """

    name: str
    calls: int
    bytes: float
    ranks: int
    tier: str
    seconds: float
    exposed_s: float
    hidden_by: str = ""


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


def step_of(setting: LargeSetting) -> StepTime:
    """Return the time of a step."""
    raise NotImplementedError
