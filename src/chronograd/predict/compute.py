"""Time of every operator of a trace on one device.

    t = launch + (t_compute^4 + t_memory^4)^(1/4) + t_weights + t_layout
    t_compute = FLOPs / (peak · u),   u = u_class · Π size / (size + half), size: depth, width, rows, out_width
    t_memory  = bytes that grow with the batch / (bandwidth · v_class · cache)
    t_weights = bytes that do not / (bandwidth · q_class)
    t_layout  = (bytes of operands that change type or layout / v_elementwise + relayout_class · bytes copied to another
                layout) / bandwidth

u, v, q, launch, relayout and the half of each size belong to the operator's class. The fourth power is a smooth maximum.
`cache` is 1 for operators much larger than the device's cache and rises to the calibration's speed-up for those that fit. Views
cost nothing on the device.

A forward or backward pass takes the smooth maximum of its operators and of the host's time to issue them, (device^4 +
host^4)^(1/4). The device's queue hides the host while the device is behind. A CPU runs kernels in the thread that issues them.
There a pass takes its operators and the time to begin it, `pass_s`, which is longer for compiled code.

Bytes are those of `traffic`: they depend on precision and compiler. Attention without a fused kernel also writes and reads its
scores. In half precision and channels last, gradients of convolutions with few groups do not run on tensor cores; they run like
depthwise convolutions. Half-precision products take several times as long if rows of their matrices are not aligned, as with
GPT-2's 50,257 words: see _UNALIGNED.

Left out: tile and wave quantisation, clock changes, and the other kernels of a CPU in half precision for such groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from chronograd.job import Training
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
_UNFUSED = FAMILIES.index(UNFUSED_ATTENTION)
_CONV = [KINDS.index(k) for k in CONV_KINDS]
_KXK, _DEPTHWISE = KINDS.index("conv_kxk"), KINDS.index("conv_depthwise")
_UNGROUPED = [KINDS.index(k) for k in ("conv_1x1", "conv_3x3", "conv_kxk")]
_SMALL_KERNEL = 9  # elements of a depthwise kernel of 3 × 3, for which CPUs and GPUs have special kernels
_LAID_OUT = [KINDS.index(k) for k in CONV_KINDS if k != "conv_depthwise"]
# With fewer groups, gradients use cuDNN's direct kernels on vector units: `wgrad2d_grouped_direct_kernel` in profiles of
# PyTorch's issues 34977 and 70954. 32 is the smallest number of groups of ResNeXt. In timm's training table of 2022, ResNeXt is
# as fast as without channels last, while RegNets and NFNets are three times slower. Forward passes are not affected, in 2022
# and in 2024.
_MANY_GROUPS = 32
# Tensor cores load 16 bytes at once: 8 numbers of half precision. If a dimension of the weights is not a multiple of 8, the
# FLOPs of a product count this many times. Ten networks were timed on an H200, each predicted from the others. The best factor
# is 3 to 6 for GPT-2, whose vocabulary is the only such dimension, and the other transformers. Errors: 20.7 % at 1, 19.7 at 3,
# 18.8 at 6. Padding the vocabulary made a step a quarter faster on an A100 (Karpathy on nanoGPT, 2023), which suggests 2.
_ALIGNED = 8
_UNALIGNED = 3.0
_PRODUCT = KINDS.index("gemm")
# Unfused attention writes its scores, the softmax reads and writes them, and the product reads them again.
_SCORE_PASSES = 4
# Entries of the cache. Planning uses the same batches on one device after another.
_MOST_CACHED = 32
# Share of the error of relatives' data that all classes have in common. With 0.4, 80 % intervals cover 82 % of transformers
# (NeuSight) and 78 % of CNNs (cnn-benchmarks) on GPUs that were left out. Chosen on transformers alone it is 0.3, on CNNs alone
# 0.43.
_COMMON_SHARE = 0.4
_ELEMENTWISE = CLASSES.index("elementwise.forward")


def smooth_max(a: Any, b: Any) -> Any:
    """Return the fourth-power sum: about the larger value, or a tenth more if both are within a third of each other."""
    return (a**4 + b**4) ** 0.25


def at_batch(column: np.ndarray, batch: float) -> np.ndarray:
    """Return an affine column (…, 2) at a batch: shape (…)."""
    return np.asarray(column[..., 0] + column[..., 1] * batch)


@dataclass(frozen=True)
class Terms:
    """Seconds of each operator by term. `cached` is the share of the cache's speed-up in them, for derivatives."""

    launch: np.ndarray
    compute: np.ndarray
    memory: np.ndarray
    weights: np.ndarray
    cast: np.ndarray
    relayout: np.ndarray
    cached: np.ndarray

    @property
    def pass_s(self) -> np.ndarray:
        """Return the smooth maximum of compute and memory."""
        return np.asarray(smooth_max(self.compute, self.memory))

    @property
    def seconds(self) -> np.ndarray:
        return np.asarray(self.launch + self.pass_s + self.weights + self.cast + self.relayout)


@dataclass(frozen=True)
class Work:
    """The work of each operator at one batch: arrays of shape (num_operators,).

    Attributes:
        class_index: into CLASSES.
        launches: how often an operator starts on the device: once, in each step of a recurrent layer, or never (views, which cost
            nothing). `issues`: work of the host; see `Traffic`.
        sample_bytes, weight_bytes: bytes that grow with the batch, and bytes that do not.
        cast_bytes: bytes moved to change the type or layout of operands; `relayout_bytes`: bytes that a convolution moves if
            its input is not channels last.
        depth, width, rows: of a product (rows × depth) · (depth × width); ones elsewhere.
        out_width: pixels in a row of a convolution's output, for square images: the square root of a sample's rows. Two
            gradients have twice the rows. One elsewhere.
        is_unaligned: half-precision products of weights with a dimension that is not a multiple of 8.
    """

    class_index: np.ndarray
    is_vector: np.ndarray
    launches: np.ndarray
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
        """Return the work of a trace at a batch, for a precision and a way of running."""
        c, moves = trace.columns, traffic(trace, precision, is_compiled)
        macs = at_batch(c["macs"], batch)
        # A product of empty matrices has size 0.
        depth, width = (np.maximum(at_batch(c[name], batch), 1.0) for name in ("depth", "width"))
        grows = moves.moved[:, 1] * batch if trace.fixed_batch is None else moves.moved[:, 0]
        families = _families(trace, precision, has_fused_attention)
        element_bytes = 2 if precision in ("fp16", "bf16") else 4
        rows = np.maximum(macs / (depth * width * c["in_turn"]), 1.0)
        pixels = np.where(np.isin(c["kind"], _CONV), rows / max(batch, 1), 1.0)
        scores = np.where(families == _UNFUSED, macs / (2 * depth), 0.0)
        needs_layout = np.isin(c["kind"], _LAID_OUT) & ~c["channels_last"]
        return cls(
            class_index=2 * families + np.minimum(c["phase"], 1),
            is_vector=_IS_VECTOR[c["kind"]] | _is_direct(trace, precision),
            launches=moves.is_launched * c["in_turn"],
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
        """Return the work of a trace for a calibration's precision and software. The latest few results are cached."""
        key = (batch, calibration.precision, calibration.is_compiled, calibration.has_fused_attention)
        known: dict[tuple[object, ...], Work] = derived(trace, "work", dict)
        if key not in known:
            if len(known) >= _MOST_CACHED:
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
        """Return several works as one, in order."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    def sigma_log(self, calibration: Calibration) -> float:
        """Return the same as `sigma_log` of a trace."""
        return class_sigma_log(self.class_index, self.seconds(calibration), self.issues, calibration)

    def chosen(self, mask: np.ndarray) -> Work:
        return Work(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    def seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Return seconds of each operator on the device; `rates` replaces the calibration's columns."""
        return self.terms(calibration, rates).seconds

    def passes(self, values: np.ndarray) -> np.ndarray:
        """Return sums of values over the operators of forward and of backward."""
        return np.bincount(self.class_index % 2, values, 2)

    def total_seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> float:
        """Return seconds of both passes: their beginning, plus the device's work or, if longer, the host's issuing of it."""
        issues = self.passes(self.issues)
        working = smooth_max(self.passes(self.seconds(calibration, rates)), host_seconds(issues, calibration))
        return float(working.sum() + calibration.pass_s * (issues > 0).sum())

    def terms(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> Terms:
        """Return the terms of the seconds of each operator."""
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
        launch = self.launches * rates["launch_s"][i]
        return Terms(launch, t_compute, t_memory, t_weights, t_cast, t_relayout, fits / cache)


def _is_direct(trace: Trace, precision: str) -> np.ndarray:
    """Return a mask of the gradients of grouped convolutions without tensor-core kernels; see _MANY_GROUPS."""
    c = trace.columns
    is_gradient = (c["kind"] == _GROUPED) & (c["phase"] == PHASES.index("backward"))
    return np.asarray(is_gradient & c["channels_last"] & (c["groups"] < _MANY_GROUPS) & (precision in ("fp16", "bf16")))


def _is_unaligned(trace: Trace, sizes: dict[str, np.ndarray], rows: np.ndarray, precision: str) -> np.ndarray:
    """Return a mask of half-precision products with a dimension, other than the samples, that is not a multiple of _ALIGNED."""
    c = trace.columns
    is_product = (c["kind"] == _PRODUCT) & (precision in ("fp16", "bf16"))
    # Samples are depth or width if one of them grows with the batch, else the rows.
    is_odd, are_rows = np.zeros_like(is_product), np.ones_like(is_product)
    for name, size in sizes.items():
        grows = c[name][..., 1] != 0
        is_odd |= (size % _ALIGNED != 0) & ~grows
        are_rows &= ~grows
    is_odd |= (np.round(rows) % _ALIGNED != 0) & ~are_rows
    return np.asarray(is_product & is_odd)


def _families(trace: Trace, precision: str, has_fused_attention: bool) -> np.ndarray:
    """Return the index into FAMILIES of each operator; gradients without tensor-core kernels count as depthwise convolutions."""
    c = trace.columns

    def by_name() -> np.ndarray:
        pairs, where = np.unique(np.stack([c["kind"], c["name"]]), axis=1, return_inverse=True)
        indices = [FAMILIES.index(family_of(KINDS[k], trace.operator_names[n])) for k, n in pairs.T]
        found = np.array(indices, dtype=np.int64)[where.ravel()]
        is_whole = np.isin(c["kind"], _UNGROUPED)
        for part, mask in (
            ("conv_depthwise_kxk", (c["kind"] == _DEPTHWISE) & (c["depth"][:, 0] > _SMALL_KERNEL)),
            ("conv_3d", (c["kind"] == _KXK) & (c["kernel_dims"] == 3)),
            ("conv_transposed", is_whole & c["transposed"]),
        ):
            found = np.where(mask, FAMILIES.index(part), found)
        return found

    families = np.where(
        _is_direct(trace, precision), FAMILIES.index("conv_depthwise"), derived(trace, "families", by_name)
    )
    is_fused = c["is_plain_attention"] & has_fused_attention
    return np.where((c["kind"] == _ATTENTION) & ~is_fused, _UNFUSED, families)


def operator_seconds(trace: Trace, batch: float, calibration: Calibration) -> np.ndarray:
    """Return seconds of each operator on the device, shape (num_operators,)."""
    return Work.on(trace, batch, calibration).seconds(calibration)


def phase_seconds(trace: Trace, times: np.ndarray, calibration: Calibration) -> dict[str, float]:
    """Return forward and backward seconds: the device's work or, if longer, the host's issuing of it.

    Operators with a time of 0 do not run.
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
    """Return the seconds in which the host issues a pass of `issues` operators, individually or, if faster, as one graph.

    Args:
        num_inputs: inputs that are first copied to their place in the graph, one launch each.
    """
    one_by_one = np.asarray(issues * calibration.host_launch_s)
    if calibration.graph_launch_s is None:
        return one_by_one
    return np.asarray(np.minimum(one_by_one, calibration.graph_launch_s + num_inputs * calibration.update_launch_s))


def graph_input_seconds(input_bytes: float, calibration: Calibration) -> float:
    """Return the seconds in which the device copies its inputs for a graph; 0 without a graph."""
    if calibration.graph_launch_s is None:
        return 0.0
    return float(2 * input_bytes / (calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][_ELEMENTWISE]))


def sigma_log(trace: Trace, times: np.ndarray, calibration: Calibration) -> float:
    """Return the standard deviation of the log error of both passes; see `class_sigma_log`, and `basis` for what widens it."""
    index, issues = _classes(trace, calibration)
    return _basis(trace, times, calibration).widened(class_sigma_log(index, times, issues, calibration))


def share_of_host(trace: Trace, times: np.ndarray, calibration: Calibration) -> float:
    """Return the share of the time that the host sets, from 0 to 1."""
    index, issues = _classes(trace, calibration)
    return _share_of_host(index, times, issues, calibration)


def without_basis(trace: Trace, times: np.ndarray, calibration: Calibration) -> list[str]:
    """Return sentences on the parts that no measurement supports; see `basis`."""
    return _basis(trace, times, calibration).sentences()


def _basis(trace: Trace, times: np.ndarray, calibration: Calibration) -> Basis:
    index, issues = _classes(trace, calibration)
    return basis(trace, times, issues, _share_of_host(index, times, issues, calibration), index, calibration)


def _classes(trace: Trace, calibration: Calibration) -> tuple[np.ndarray, np.ndarray]:
    """Return the index into CLASSES of each operator, and the host's work for it."""
    families = _families(trace, calibration.precision, calibration.has_fused_attention)
    issues = traffic(trace, calibration.precision, calibration.is_compiled).issues
    return 2 * families + np.minimum(trace.columns["phase"], 1), issues


def _share_of_host(index: np.ndarray, times: np.ndarray, issues: np.ndarray, calibration: Calibration) -> float:
    """Return the share of the time that the host sets, from 0 to 1."""
    device = float(times.sum())
    host = float(host_seconds(np.bincount(index % 2, issues, 2), calibration).sum())
    return host**4 / max(host**4 + device**4, 1e-120)


def class_sigma_log(index: np.ndarray, times: np.ndarray, issues: np.ndarray, calibration: Calibration) -> float:
    """Return the standard deviation of the log error of all operators: those of their classes, weighted by time.

    Errors of one calibration concern whole networks, so they add up. Errors of data from several relatives differ by class and
    are partly independent. The share of the time that the host sets has the uncertainty of the host.
    """
    device, num_classes = float(times.sum()), len(CLASSES)
    of_host = _share_of_host(index, times, issues, calibration)
    spread = np.bincount(index, times, num_classes) / max(device, 1e-30) * calibration.sigmas()
    is_lent = np.array([name in calibration.class_sigma for name in CLASSES])
    together = float((spread * np.where(is_lent, math.sqrt(_COMMON_SHARE), 1.0)).sum())
    of_device = together**2 + (1 - _COMMON_SHARE) * float((spread[is_lent] ** 2).sum())
    return float(np.sqrt((1 - of_host) * of_device + of_host * max(calibration.host_sigma, calibration.sigma) ** 2))


# Per parameter element, fp32: arrays that one fused pass of the optimizer reads and writes, and the number of elementary
# operators without fusion: weight decay, moments, step.
UPDATE_PASSES = {
    "sgd": (3, 2),
    "sgd-momentum": (5, 4),
    "adamw": (7, 9),
    "adadelta": (7, 9),
    "rmsprop": (7, 7),
}


def update_launches(num_parameters: int, calibration: Calibration) -> int:
    """Return the launches of one elementary operator of the optimizer: one per parameter, or batched on a GPU."""
    # torch's foreach kernels process some 110 tensors of one list per launch (its metadata must fit 4 KiB).
    return -(-num_parameters // 110) if calibration.host_launch_s > 0 else num_parameters


def update_seconds(trace: Trace, training: Training, calibration: Calibration) -> float:
    """Return the time of one optimizer step, derived from the parameter list.

    On a GPU the tensors of a step are batched into a few launches per elementary operator. On a CPU each parameter has its own
    launch.
    """
    num_trained, size = derived(trace, "trained", lambda: _trained(trace))
    passes, operators = UPDATE_PASSES[training.optimizer_kind]
    if training.optimizer == "sgd":
        operators += bool(training.nesterov) - (training.weight_decay == 0)
    launches = operators * update_launches(num_trained, calibration)
    bandwidth = calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][CLASSES.index("update.backward")]
    return float(launches * calibration.update_launch_s + passes * size / bandwidth)


def _trained(trace: Trace) -> tuple[int, int]:
    """Return number and bytes of the trainable parameters."""
    frozen = set(trace.frozen)
    trained = [t for name, t in trace.parameters().items() if name not in frozen]
    return len(trained), sum(t.numel_at(1) * DTYPE_BYTES[t.dtype] for t in trained)


def average_seconds(trace: Trace, calibration: Calibration) -> float:
    """Return the time to update a running mean of parameters and buffers: one operator reads both and writes the mean."""
    state = [*trace.parameters().values(), *trace.buffers().values()]
    size = sum(t.numel_at(1) * DTYPE_BYTES[t.dtype] for t in state)
    bandwidth = calibration.bandwidth_bytes_per_s * calibration.columns["bandwidth"][CLASSES.index("update.backward")]
    return float(update_launches(len(state), calibration) * calibration.update_launch_s + 3 * size / bandwidth)


def by_kind(trace: Trace, times: np.ndarray, batch: float) -> list[OperatorKind]:
    """Return time, FLOPs and bytes by kind of operator, longest first. `share` is the share of the time."""
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
