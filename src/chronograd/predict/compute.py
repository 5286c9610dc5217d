"""Time of every operator of a trace on one device.

    t = launch + (t_compute^4 + t_memory^4)^(1/4) + t_weights + t_layout
    t_compute = FLOPs / (peak · u),   u = u_class · Π size / (size + half), size: depth, width, rows, out_width
    t_memory  = bytes that grow with the batch / (bandwidth · v_class · cache)
    t_weights = bytes that do not / (bandwidth · q_class)
    t_layout  = (bytes of operands changed in type or layout / v_elementwise + relayout_class · bytes laid out anew) / bandwidth

u, v, q, launch, relayout and the half of each size are those of the operator's class. The fourth power is a smooth maximum. `cache`
is 1 for operators much larger than the device's cache and rises to the calibration's speed-up for those that fit.
Views cost nothing on the device. A pass, forward or backward, takes the smooth maximum of its operators and of the host's
issuing them, (device^4 + host^4)^(1/4): the device's queue hides the host while the device is behind. A CPU runs kernels in the thread
that issues them: there a pass is its operators and what beginning it takes, `pass_s`, longer where it is compiled. Bytes are those of `traffic`: they depend on precision and compiler. Attention that
no fused kernel takes also writes and reads its scores. Gradients of convolutions of few groups, in half precision and with
channels last, are no work of tensor cores: they run as depthwise ones do. Products in half precision whose matrices have rows that
begin at any byte, such as those of GPT-2's 50,257 words, take several times as long: see _UNALIGNED.

Left out: tile and wave quantisation, clock changes; that a CPU in half precision has other kernels for such groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from chronograd.predict.basis import Basis, basis
from chronograd.predict.calibration import (
    CLASSES,
    FAMILIES,
    SIZES,
    UNFUSED_ATTENTION,
    Calibration,
    family_of,
    uses_vector_peak,
)
from chronograd.predict.derived import derived
from chronograd.predict.traffic import traffic
from chronograd.record import OperatorKind
from chronograd.trace import CONV_KINDS, DTYPE_BYTES, KINDS, PHASES, Trace
from chronograd.units import FLOPS_PER_MAC

_IS_VECTOR = np.array([uses_vector_peak(k) for k in KINDS])
_VIEW, _ATTENTION, _GROUPED = (KINDS.index(kind) for kind in ("view", "attention", "conv_grouped"))
_CONV = [KINDS.index(k) for k in CONV_KINDS]
_LAID_OUT = [KINDS.index(k) for k in CONV_KINDS if k != "conv_depthwise"]
# Of fewer groups the gradients are cuDNN's direct kernels, on vector units: `wgrad2d_grouped_direct_kernel` in profiles of
# PyTorch's issues 34977 and 70954. The number is the least of ResNeXt's groups: timm's training table of 2022 has those as fast as
# without channels last, RegNets and NFNets three times slower. Forward passes show none of it, in 2022 and in 2024.
_MANY_GROUPS = 32
# Tensor cores load 16 bytes at once: of half precision 8 numbers. Where a dimension of weights is no multiple of that, a product takes so
# many times its FLOPs. Of ten networks timed on an H200, each predicted from the others: 3 to 6 for GPT-2, whose words are the only such
# dimension, and the transformers beside it (20.7 % off at 1, 19.7 at 3, 18.8 at 6). That padding them made a step a quarter faster on
# an A100 (Karpathy on nanoGPT, 2023) tells 2.
_ALIGNED, _UNALIGNED = 8, 3.0
_PRODUCT = KINDS.index("gemm")
# Scores of unfused attention are written, read and written by the softmax, and read again.
_SCORE_PASSES = 4
# Planning asks for the same batches on one device after another.
_KEPT = 32
# Share of the error of what relatives lend that all its classes have in common: with 0.4 intervals hold 82 % of transformers
# (NeuSight) and 78 % of CNNs (cnn-benchmarks) on GPUs that were left out. Chosen on the former alone it is 0.3, on the latter 0.43.
_LENT_TOGETHER = 0.4
_ELEMENTWISE = CLASSES.index("elementwise.forward")


def smooth_max(a: Any, b: Any) -> Any:
    """The fourth-power sum: a tenth above the larger where they are within a third of each other, else that."""
    return (a**4 + b**4) ** 0.25


def at_batch(column: np.ndarray, batch: float) -> np.ndarray:
    """An affine column (…, 2) at a batch: shape (…)."""
    return np.asarray(column[..., 0] + column[..., 1] * batch)


@dataclass(frozen=True)
class Terms:
    """Seconds of each operator by term. `cached` is the share of the cache's speed-up in it, for derivatives."""

    launch: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    weights: np.ndarray
    cast: np.ndarray
    relayout: np.ndarray
    cached: np.ndarray

    @property
    def pass_s(self) -> np.ndarray:
        """The smooth maximum of compute and memory."""
        return np.asarray(smooth_max(self.compute, self.memory))

    @property
    def seconds(self) -> np.ndarray:
        return np.asarray(self.launch + self.pass_s + self.weights + self.cast + self.relayout)


@dataclass(frozen=True)
class Work:
    """What each operator asks of a device at one batch: arrays of shape (num_operators,).

    Attributes:
        class_index: into CLASSES.
        is_launched: False for views, which cost nothing on the device. `issues`: what the host does; see `Traffic`.
        sample_bytes, weight_bytes: what grows with the batch, and what does not.
        cast_bytes: what changing the type or layout of operands moves; `relayout_bytes` what a convolution moves that does not
            find its channels last.
        depth, width, rows: of a product (rows × depth) · (depth × width); ones elsewhere.
        out_width: pixels in a row of a convolution's output, its images taken as square: the root of a sample's rows, of which two
            gradients have twice as many. One elsewhere.
        is_unaligned: products in half precision of weights with a dimension that is no multiple of 8.
    """

    class_index: np.ndarray
    is_vector: np.ndarray
    is_launched: np.ndarray
    issues: np.ndarray
    flops: np.ndarray
    sample_bytes: np.ndarray
    weight_bytes: np.ndarray
    cast_bytes: np.ndarray
    relayout_bytes: np.ndarray
    depth: np.ndarray
    width: np.ndarray
    rows: np.ndarray
    out_width: np.ndarray
    is_unaligned: np.ndarray

    @classmethod
    def of(
        cls,
        trace: Trace,
        batch: float,
        precision: str = "fp32",
        *,
        is_compiled: bool = False,
        has_fused_attention: bool = True,
    ) -> Work:
        """The work of a trace at a batch, under a precision and a way of running."""
        c, moves = trace.columns, traffic(trace, precision, is_compiled)
        macs = at_batch(c["macs"], batch)
        # A product of empty matrices is none.
        depth, width = (np.maximum(at_batch(c[name], batch), 1.0) for name in ("depth", "width"))
        grows = moves.moved[:, 1] * batch if trace.fixed_batch is None else moves.moved[:, 0]
        is_direct = _is_direct(trace, precision)
        families = _families(trace, is_direct)
        is_unfused = c["kind"] == _ATTENTION
        if has_fused_attention:
            is_unfused = is_unfused & ~c["is_plain_attention"]
        families = np.where(is_unfused, FAMILIES.index(UNFUSED_ATTENTION), families)
        element_bytes = 2 if precision in ("fp16", "bf16") else 4
        rows = np.maximum(macs / (depth * width), 1.0)
        pixels = np.where(np.isin(c["kind"], _CONV), rows / max(batch, 1), 1.0)
        scores = np.where(is_unfused, macs / (2 * depth), 0.0)
        needs_layout = np.isin(c["kind"], _LAID_OUT) & ~c["channels_last"]
        return cls(
            class_index=2 * families + np.minimum(c["phase"], 1),
            is_vector=_IS_VECTOR[c["kind"]] | is_direct,
            is_launched=moves.is_launched,
            issues=moves.issues,
            flops=FLOPS_PER_MAC * macs + at_batch(moves.vector_flops, batch),
            sample_bytes=grows + _SCORE_PASSES * element_bytes * scores,
            weight_bytes=at_batch(moves.moved, batch) - grows,
            cast_bytes=at_batch(moves.cast, batch),
            relayout_bytes=np.where(needs_layout, grows, 0.0),
            depth=depth,
            width=width,
            rows=rows,
            out_width=np.sqrt(np.maximum(pixels, 1.0)),
            is_unaligned=_is_unaligned(trace, {"depth": depth, "width": width}, rows, precision),
        )

    @classmethod
    def on(cls, trace: Trace, batch: float, calibration: Calibration) -> Work:
        """The work of a trace as a calibration's precision and software run it. The latest few are kept."""
        key = (batch, calibration.precision, calibration.is_compiled, calibration.has_fused_attention)
        known: dict[tuple[object, ...], Work] = derived(trace, "work", dict)
        if key not in known:
            if len(known) >= _KEPT:
                known.pop(next(iter(known)))
            known[key] = cls.of(
                trace,
                batch,
                calibration.precision,
                is_compiled=calibration.is_compiled,
                has_fused_attention=calibration.has_fused_attention,
            )
        return known[key]

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Work:
        """Several, one after the other."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    def sigma_log(self, calibration: Calibration) -> float:
        """As `sigma_log` of a trace."""
        return class_sigma_log(self.class_index, self.seconds(calibration), self.issues, calibration)

    def chosen(self, mask: np.ndarray) -> Work:
        return Work(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    def seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Seconds of each operator on the device; `rates` instead of the calibration's own columns."""
        return self.terms(calibration, rates).seconds

    def passes(self, values: np.ndarray) -> np.ndarray:
        """Sums of values over the operators of forward and of backward."""
        return np.bincount(self.class_index % 2, values, 2)

    def total_seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> float:
        """Seconds of both passes: what begins each, and the device's work, or the host's issuing of it where that takes longer."""
        issues = self.passes(self.issues)
        working = smooth_max(self.passes(self.seconds(calibration, rates)), host_seconds(issues, calibration))
        return float(working.sum() + calibration.pass_s * (issues > 0).sum())

    def terms(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> Terms:
        """What the seconds of each operator are made of."""
        rates = rates or calibration.columns
        i = self.class_index
        share = rates["compute"][i]
        for name in SIZES:
            size = getattr(self, name)
            share = share * size / (size + rates[name][i])
        peak = np.where(self.is_vector, calibration.vector_flops_per_s, calibration.peak_flops_per_s)
        t_compute = self.flops * np.where(self.is_unaligned, _UNALIGNED, 1.0) / (peak * share)
        bandwidth = calibration.bandwidth_bytes_per_s
        fits = 1.0 / (1.0 + ((self.sample_bytes + self.weight_bytes) / max(calibration.cache_bytes, 1.0)) ** 2)
        cache = 1.0 + (calibration.cache_speedup - 1.0) * fits
        t_memory = self.sample_bytes / (bandwidth * rates["bandwidth"][i] * cache)
        t_weights = self.weight_bytes / (bandwidth * rates["weights"][i])
        t_cast = self.cast_bytes / (bandwidth * rates["bandwidth"][_ELEMENTWISE])
        t_relayout = rates["relayout"][i] * self.relayout_bytes / bandwidth
        launch = np.where(self.is_launched, rates["launch_s"][i], 0.0)
        return Terms(launch, t_compute, t_memory, t_weights, t_cast, t_relayout, fits / cache)


def _is_direct(trace: Trace, precision: str) -> np.ndarray:
    """Which operators are gradients of grouped convolutions that no kernel of tensor cores takes; see _MANY_GROUPS."""
    c = trace.columns
    is_gradient = (c["kind"] == _GROUPED) & (c["phase"] == PHASES.index("backward"))
    return np.asarray(is_gradient & c["channels_last"] & (c["groups"] < _MANY_GROUPS) & (precision in ("fp16", "bf16")))


def _is_unaligned(trace: Trace, sizes: dict[str, np.ndarray], rows: np.ndarray, precision: str) -> np.ndarray:
    """Which operators are products in half precision of which a dimension, the samples apart, is no multiple of _ALIGNED."""
    c = trace.columns
    is_product = (c["kind"] == _PRODUCT) & (precision in ("fp16", "bf16"))
    # Samples are depth, width, or else the rows.
    is_odd, are_rows = np.zeros_like(is_product), np.ones_like(is_product)
    for name, size in sizes.items():
        grows = c[name][..., 1] != 0
        is_odd |= (size % _ALIGNED != 0) & ~grows
        are_rows &= ~grows
    is_odd |= (np.round(rows) % _ALIGNED != 0) & ~are_rows
    return np.asarray(is_product & is_odd)


def _families(trace: Trace, is_direct: np.ndarray) -> np.ndarray:
    """Index into FAMILIES of each operator; those of `is_direct` are of depthwise convolutions'."""

    def by_name() -> np.ndarray:
        c = trace.columns
        pairs, where = np.unique(np.stack([c["kind"], c["name"]]), axis=1, return_inverse=True)
        indices = [FAMILIES.index(family_of(KINDS[k], trace.operator_names[n])) for k, n in pairs.T]
        return np.asarray(np.array(indices)[where.ravel()])

    return np.where(is_direct, FAMILIES.index("conv_depthwise"), derived(trace, "families", by_name))


def operator_seconds(trace: Trace, batch: float, calibration: Calibration) -> np.ndarray:
    """Seconds of each operator on the device, shape (num_operators,)."""
    return Work.on(trace, batch, calibration).seconds(calibration)


def phase_seconds(trace: Trace, times: np.ndarray, calibration: Calibration) -> dict[str, float]:
    """Forward and backward seconds: the device's work, or the host's issuing of it where that takes longer.

    Operators of no time do not run.
    """
    runs, issues = times > 0, traffic(trace, calibration.precision, calibration.is_compiled).issues
    result = {}
    for code, name in enumerate(PHASES[:2]):
        chosen = runs & (trace.columns["phase"] == code)
        host = float(host_seconds(issues[chosen].sum(), calibration, 0 if code else len(trace.inputs)))
        begins = calibration.pass_s if issues[chosen].any() else 0.0
        result[name] = begins + float(smooth_max(float(times[chosen].sum()), host))
    return result


def host_seconds(issues: Any, calibration: Calibration, num_inputs: int = 0) -> np.ndarray:
    """What the host takes to issue a pass of so many operators: each of them, or all as one graph where that is less.

    Args:
        num_inputs: copied first to where a graph was recorded to find them, each by a launch of its own.
    """
    one_by_one = np.asarray(issues * calibration.host_launch_s)
    if calibration.graph_launch_s is None:
        return one_by_one
    return np.asarray(np.minimum(one_by_one, calibration.graph_launch_s + num_inputs * calibration.update_launch_s))


def graph_input_seconds(input_bytes: float, calibration: Calibration) -> float:
    """What copying its inputs takes the device before a graph; nothing where there is none."""
    if calibration.graph_launch_s is None:
        return 0.0
    return float(2 * input_bytes / (calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][_ELEMENTWISE]))


def sigma_log(trace: Trace, times: np.ndarray, calibration: Calibration) -> float:
    """Standard deviation of the log error of both passes; see `class_sigma_log`, and `basis` for what widens it."""
    index, issues = _classes(trace, calibration)
    return _basis(trace, times, calibration).widened(class_sigma_log(index, times, issues, calibration))


def without_basis(trace: Trace, times: np.ndarray, calibration: Calibration) -> list[str]:
    """Sentences on what nothing was measured for; see `basis`."""
    return _basis(trace, times, calibration).sentences()


def _basis(trace: Trace, times: np.ndarray, calibration: Calibration) -> Basis:
    index, issues = _classes(trace, calibration)
    return basis(trace, times, issues, _share_of_host(index, times, issues, calibration), index, calibration)


def _classes(trace: Trace, calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """Index into CLASSES of each operator, and what the host does for it."""
    families = _families(trace, _is_direct(trace, calibration.precision))
    issues = traffic(trace, calibration.precision, calibration.is_compiled).issues
    return 2 * families + np.minimum(trace.columns["phase"], 1), issues


def _share_of_host(index: np.ndarray, times: np.ndarray, issues: np.ndarray, calibration: Calibration) -> float:
    """Return the share of the time that the host sets, from 0 to 1."""
    device = float(times.sum())
    host = float(host_seconds(np.bincount(index % 2, issues, 2), calibration).sum())
    return host**4 / max(host**4 + device**4, 1e-120)


def class_sigma_log(index: np.ndarray, times: np.ndarray, issues: np.ndarray, calibration: Calibration) -> float:
    """Standard deviation of the log error of operators together: those of their classes, weighed by time.

    Errors of one calibration are of whole networks, so they add up; what several relatives teach errs by class, each partly
    on its own. The share of the time that the host sets is as uncertain as the host.
    """
    device, num_classes = float(times.sum()), len(CLASSES)
    of_host = _share_of_host(index, times, issues, calibration)
    spread = np.bincount(index, times, num_classes) / max(device, 1e-30) * calibration.sigmas()
    is_lent = np.array([name in calibration.class_sigma for name in CLASSES])
    together = float((spread * np.where(is_lent, math.sqrt(_LENT_TOGETHER), 1.0)).sum())
    of_device = together**2 + (1 - _LENT_TOGETHER) * float((spread[is_lent] ** 2).sum())
    return float(np.sqrt((1 - of_host) * of_device + of_host * max(calibration.host_sigma, calibration.sigma) ** 2))


# Per parameter element, fp32: arrays read and written by one fused pass of the optimizer, and how many elementary
# operators it takes unfused: weight decay, moments, step.
UPDATE_PASSES = {"sgd": (3, 2), "sgd-momentum": (5, 4), "adamw": (7, 9), "adadelta": (7, 9), "rmsprop": (7, 7)}


def update_launches(num_parameters: int, calibration: Calibration) -> int:
    """Launches of one elementary operator of the optimizer over all parameters: one each, or batched on a GPU."""
    # torch's foreach kernels take some 110 tensors of one list per launch (its metadata must fit 4 KiB).
    return -(-num_parameters // 110) if calibration.host_launch_s > 0 else num_parameters


def update_seconds(trace: Trace, optimizer: str, calibration: Calibration) -> float:
    """Time of one optimizer step, derived from the parameter list.

    On a GPU the tensors of a step are batched into a few launches per elementary operator; on a CPU each
    parameter takes its own.
    """
    num_trained, size = derived(trace, "trained", lambda: _trained(trace))
    passes, operators = UPDATE_PASSES[optimizer]
    launches = operators * update_launches(num_trained, calibration)
    bandwidth = calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][CLASSES.index("update.backward")]
    return float(launches * calibration.update_launch_s + passes * size / bandwidth)


def _trained(trace: Trace) -> tuple[int, int]:
    """Number and bytes of the parameters that take a gradient."""
    frozen = set(trace.frozen)
    trained = [t for name, t in trace.parameters().items() if name not in frozen]
    return len(trained), sum(t.numel_at(1) * DTYPE_BYTES[t.dtype] for t in trained)


def average_seconds(trace: Trace, calibration: Calibration) -> float:
    """Time of one step of a running mean of parameters and buffers: both read, the mean written, in one operator."""
    state = [*trace.parameters().values(), *trace.buffers().values()]
    size = sum(t.numel_at(1) * DTYPE_BYTES[t.dtype] for t in state)
    bandwidth = calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][CLASSES.index("update.backward")]
    return float(update_launches(len(state), calibration) * calibration.update_launch_s + 3 * size / bandwidth)


def by_kind(trace: Trace, times: np.ndarray, batch: float) -> list[OperatorKind]:
    """Time, FLOPs and bytes by kind of operator, longest first. `share` is that of the time."""
    c = trace.columns
    flops = FLOPS_PER_MAC * at_batch(c["macs"], batch)
    moved = at_batch(c["read_bytes"] + c["written_bytes"], batch)
    total = float(times.sum()) or 1.0
    rows: list[OperatorKind] = []
    for code, name in enumerate(KINDS):
        chosen = c["kind"] == code
        if not chosen.any() or name == "view":
            continue
        seconds = float(times[chosen].sum())
        rows.append(
            OperatorKind(
                kind=name,
                operators=int(chosen.sum()),
                time_s=seconds,
                flops=float(flops[chosen].sum()),
                bytes=float(moved[chosen].sum()),
                share=seconds / total,
            )
        )
    return sorted(rows, key=lambda row: -row.time_s)
