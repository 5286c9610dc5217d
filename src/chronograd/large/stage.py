"""Seconds of one micro-batch on a pipeline stage: forward, backward and recomputation, with their exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.large.collective import Collective, Cover
from chronograd.large.exchange import Exchanges
from chronograd.large.rates import Rates
from chronograd.large.setting import Amount, LargeSetting, Layer, Stage
from chronograd.large.software import Software
from chronograd.large.work import RankOperator, operators
from chronograd.predict.compute import smooth_max

# Host work of a backward operator relative to a forward one, which Python issues: as in `predict.traffic`.
BACKWARD_ISSUE = 0.7
# Operators that the host issues for each one here: views, casts, masks and states of random numbers are separate operators.
# Fitted to a seeded half of vTrain's groups; errors of both halves are equal within 0.7 percentage points.
ISSUES = 2.8


@dataclass(frozen=True)
class Pass:
    """A pass of a micro-batch through some layers.

    Attributes:
        work_s: of the device; `weights_s` of it compute gradients of weights.
        host_s: time in which the host issues it.
        exchanges: collectives of the pass.
        is_alone: whether no other rank waits for it.
    """

    work_s: float = 0.0
    weights_s: float = 0.0
    host_s: float = 0.0
    exchanges: tuple[Collective, ...] = ()
    is_alone: bool = False

    @property
    def exposed_s(self) -> float:
        return sum(one.exposed_s for one in self.exchanges)

    @property
    def seconds(self) -> float:
        return float(with_host(self.work_s + self.exposed_s, self.host_s, self.is_alone))

    def times(self, number: int) -> Pass:
        exchanges = tuple(one.times(number) for one in self.exchanges)
        return Pass(number * self.work_s, number * self.weights_s, number * self.host_s, exchanges, self.is_alone)


def joined(passes: Iterable[Pass]) -> Pass:
    """Return several passes as one, with equal collectives added up."""
    found = list(passes)
    exchanges: dict[tuple[str, float, int], Collective] = {}
    for one in (one for each in found for one in each.exchanges):
        key = (one.name, one.bytes, one.ranks)
        exchanges[key] = exchanges[key].with_calls_of(one) if key in exchanges else one
    work_s, weights_s, host_s = (sum(getattr(one, name) for one in found) for name in ("work_s", "weights_s", "host_s"))
    return Pass(work_s, weights_s, host_s, tuple(exchanges.values()), any(one.is_alone for one in found))


def with_host(device_s: Amount, host_s: Amount, is_alone: bool) -> Amount:
    """Return √(device² + host²), for ranks wait for each other's hosts; of a rank alone, the smooth maximum of a small network."""
    return smooth_max(device_s, host_s) if is_alone else np.hypot(device_s, host_s)


@dataclass(frozen=True)
class MicroBatch:
    """The passes of a micro-batch: forward, backward, and forward again for backward."""

    forward: Pass = Pass()
    backward: Pass = Pass()
    again: Pass = Pass()

    @property
    def passes(self) -> tuple[Pass, Pass, Pass]:
        return self.forward, self.backward, self.again

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.passes)


@dataclass(frozen=True)
class StageModel:
    """A rank of a pipeline stage: its job, rates, exchanges and software."""

    setting: LargeSetting
    rates: Rates
    exchanges: Exchanges
    software: Software

    def micro_batch(self, stage: Stage) -> MicroBatch:
        """Return the passes of one micro-batch through a stage. Equal layers are computed once."""
        found = [(self._layer(layer, is_repeated=True), number) for layer, number in Counter(stage.layers).items()]
        found += [(self._layer(parts), 1) for parts in (stage.first, stage.last) if parts]
        return MicroBatch(
            joined(one.forward.times(number) for one, number in found),
            joined(one.backward.times(number) for one, number in found),
            joined(one.again.times(number) for one, number in found),
        )

    def _layer(self, layer: Layer, is_repeated: bool = False) -> MicroBatch:
        """Return the passes of a layer, or of the parts before or after the layers, which are never recomputed."""
        software, exchanges = self.software, self.exchanges
        work = [one for part in layer for one in operators(part, self.setting, software.imbalance)]
        seconds = self.rates.seconds(work)
        forward, data, weights = (_sum(work, seconds, phase) for phase in ("forward", "data", "weights"))
        core, core_back = (_sum(work, seconds, phase, only_core=True) for phase in ("forward", "data"))
        ahead = (
            *exchanges.tensor(layer, Cover("forward", forward.work_s, software.tensor_forward)),
            *exchanges.context(layer, 1, Cover("attention", core.work_s, software.context)),
            *exchanges.experts(layer, Cover("forward", forward.work_s, software.experts)),
        )
        backward_s = data.work_s + weights.work_s
        back = (
            *exchanges.tensor(layer, Cover("gradients of weights", weights.work_s, software.tensor_backward)),
            *exchanges.context(layer, 2, Cover("attention", core_back.work_s, software.context)),
            *exchanges.experts(layer, Cover("backward", backward_s, software.experts)),
        )
        ahead_hides = Cover("forward", forward.work_s, software.parameters)
        back_hides = Cover("backward", backward_s, software.parameters)
        gathers = tuple(exchanges.gather(layer, back_hides))
        scatters = exchanges.scatter(layer, replace(back_hides, share=software.gradients).after(gathers))
        forward, core = self._issued(forward, ahead), self._issued(core)
        backward = self._issued(joined((data, weights)), back)
        backward = replace(backward, host_s=BACKWARD_ISSUE * backward.host_s)
        again = self._again(work, seconds, replace(forward, exchanges=ahead), core) if is_repeated else Pass()
        return MicroBatch(
            replace(forward, exchanges=(*ahead, *exchanges.gather(layer, ahead_hides))),
            replace(backward, exchanges=(*back, *gathers, *scatters)),
            again,
        )

    def _again(self, work: list[RankOperator], seconds: np.ndarray, forward: Pass, core: Pass) -> Pass:
        """Return the recomputation. Checkpoints of PyTorch stop before the last product, whose output backward does not need."""
        if self.setting.options.recompute == "full":
            return forward
        if self.setting.training.activation_checkpointing == "blocks":
            last = max(i for i, one in enumerate(work) if one.family.endswith("gemm") and one.phase == "forward")
            return replace(forward, work_s=forward.work_s - float(seconds[last]))
        return core if self.setting.options.recompute == "selective" else Pass()

    def _issued(self, one: Pass, exchanges: Sequence[Collective] = ()) -> Pass:
        """Return a pass whose `host_s` counts operators with the seconds in which the host issues them and exchanges."""
        issues = ISSUES * one.host_s + sum(exchange.calls for exchange in exchanges)
        return replace(one, host_s=issues * self.rates.issue_s, is_alone=self.setting.ranks == 1)


def _sum(work: list[RankOperator], seconds: np.ndarray, phase: str, only_core: bool = False) -> Pass:
    """Return the operators of a phase as a pass, with their number in place of the host's seconds."""
    mask = np.array([one.phase == phase and (one.is_core or not only_core) for one in work], dtype=bool)
    work_s = float(seconds[mask].sum())
    return Pass(work_s, work_s if phase == "weights" else 0.0, float(mask.sum()))
