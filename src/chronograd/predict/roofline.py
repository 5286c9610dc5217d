"""Roofline: the best possible time of each layer, its predicted time, and its bound.

    ceiling = max(FLOPs / peak, bytes / bandwidth)      per operator; a layer's is the sum of its operators'
    share   = ceiling / predicted time
    time to win = predicted time - ceiling

Peak and bandwidth are those of the calibration: measured on the device if possible, else those of the data sheet. Operators on
vector units have the vector peak. An operator whose bytes stay in the cache may be predicted faster than memory allows; its
ceiling is then its predicted time.

Left out: the optimizer's update, communication, a second forward pass under activation checkpointing.
Source: Williams, Waterman and Patterson 2009, Roofline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chronograd.predict.calibration import Calibration
from chronograd.predict.compute import Work, at_batch, host_seconds, operator_seconds, phase_seconds
from chronograd.record import Layer
from chronograd.trace import PHASES, Trace
from chronograd.units import FLOPS_PER_MAC

BOUNDS = ("compute", "memory", "launch")
# Layers are the modules of the smallest depth with at least this number of modules: blocks, in most networks.
_FEWEST_LAYERS = 12


@dataclass(frozen=True)
class Roofline:
    """The roof and the layers under it, in order of first execution.

    Attributes:
        ppp: PALEO's percent of peak, as a fraction: (matrix FLOPs / peak + bytes / bandwidth) / time of both passes. One share
            applies to arithmetic and memory, and the two do not overlap (Qi et al. 2017).
    """

    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    layers: tuple[Layer, ...]
    ppp: float

    def most_to_win(self) -> list[Layer]:
        """Return the three layers furthest above their ceilings, in seconds."""
        return sorted(self.layers, key=lambda layer: -layer.time_to_win_s)[:3]


def roofline(trace: Trace, batch: int, calibration: Calibration, depth: int | None = None) -> Roofline:
    """Return the roofline of one step of one rank.

    Args:
        batch: samples in the step.
        depth: depth of the module paths that form one layer: 1 for the network's children, 0 for single operators. The default
            is the smallest depth with at least twelve layers.

    If the host takes longer to issue a pass than the device to run it, the wait is spread evenly over the launches. So layers
    add up to the predicted passes.
    """
    work = Work.on(trace, batch, calibration)
    moved = work.sample_bytes + work.weight_bytes
    alone = operator_seconds(trace, batch, calibration)
    times = _with_host(trace, alone, work.launches > 0, calibration)
    peak = np.where(work.is_vector, calibration.vector_flops_per_s, calibration.peak_flops_per_s)
    launch_s = calibration.columns["launch_s"][work.class_index] * work.launches
    # The host counts in a pass if the device waits for it.
    issued = work.passes(work.issues)
    whole_s = host_seconds(issued, calibration)
    host_s = work.issues * (whole_s / np.maximum(issued, 1e-30))[work.class_index % 2]
    waits = whole_s > work.passes(alone)
    launch_s = np.where(waits[work.class_index % 2], np.maximum(launch_s, host_s), launch_s)
    terms = np.stack([work.flops / peak, moved / calibration.bandwidth_bytes_per_s, launch_s])
    ceilings = np.minimum(terms[:2].max(axis=0), times)
    names, group = _groups(trace, depth, work.launches > 0)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=len(names))

    columns = [summed(v) for v in (work.launches > 0, work.flops, moved, ceilings, times)]
    bound = np.argmax([summed(t) for t in terms], axis=0)
    layers = tuple(
        _layer(name, kind, int(n), flops, size, ceiling, time, BOUNDS[b])
        for (name, kind), n, flops, size, ceiling, time, b in zip(
            names, *(c.tolist() for c in columns), bound.tolist(), strict=True
        )
        if n
    )
    matrix = FLOPS_PER_MAC * at_batch(trace.columns["macs"], batch).sum() / calibration.peak_flops_per_s
    ideal = matrix + moved.sum() / calibration.bandwidth_bytes_per_s
    return Roofline(calibration.peak_flops_per_s, calibration.bandwidth_bytes_per_s, layers, float(ideal / times.sum()))


def _layer(
    name: str, kind: str, operators: int, flops: float, size: float, ceiling_s: float, time_s: float, bound: str
) -> Layer:
    return Layer(
        name=name,
        kind=kind,
        operators=operators,
        flops=flops,
        bytes=size,
        ceiling_s=ceiling_s,
        time_s=time_s,
        bound=bound,
        intensity_flops_per_byte=flops / size if size else 0.0,
        achieved_flops_per_s=flops / time_s if time_s else 0.0,
        share_of_ceiling=ceiling_s / time_s if time_s else 1.0,
        time_to_win_s=time_s - ceiling_s,
    )


def _with_host(trace: Trace, times: np.ndarray, is_launched: np.ndarray, calibration: Calibration) -> np.ndarray:
    """Return operator times that add up to those of the passes."""
    phases = phase_seconds(trace, times, calibration)
    times = times.copy()
    for name, seconds in phases.items():
        chosen = trace.columns["phase"] == PHASES.index(name)
        waits = chosen & is_launched
        if waits.any():
            times[waits] += (seconds - times[chosen].sum()) / waits.sum()
    return times


def _groups(trace: Trace, depth: int | None, is_launched: np.ndarray) -> tuple[list[tuple[str, str]], np.ndarray]:
    """Return name and kind of each layer, and the layer index of each operator."""
    if depth == 0:
        names = [(f"{op.module or trace.network}: {op.name}, {op.phase}", op.kind) for op in trace.operators]
        return names, np.arange(len(names))
    paths = [op.module.split(".") for op in trace.operators]
    deepest = max((len(path) for path in paths), default=1)
    depths: Sequence[int] = range(1, deepest + 1) if depth is None else [depth]
    for at in depths:
        labels = [".".join(path[:at]) for path in paths]
        index = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        if len({index[label] for label, runs in zip(labels, is_launched, strict=True) if runs}) >= _FEWEST_LAYERS:
            break
    names = [(label or "(outside of modules)", trace.modules.get(label, "")) for label in index]
    return names, np.array([index[label] for label in labels], dtype=int)
