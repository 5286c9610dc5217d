"""Time of every operator of a trace on one device.

    t = launch + (t_compute^4 + t_memory^4)^(1/4) + t_weights
    t_compute = FLOPs / (peak · u),   u = u_class · depth / (depth + d) · width / (width + w) · rows / (rows + r)
    t_memory  = bytes that grow with the batch / (bandwidth · v_class · cache)
    t_weights = bytes that do not / (bandwidth · q_class)

u, v, q, launch, d, w and r are those of the operator's class. The fourth power is a smooth maximum. `cache` is 1 for operators much larger than the device's cache and
rises to the calibration's speed-up for those that fit. Views cost nothing on the device.

Left out: tile and wave quantisation, fusion by a compiler, clock changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from chronograd.predict.calibration import CLASSES, FAMILIES, Calibration, family_of, uses_vector_peak
from chronograd.trace import DTYPE_BYTES, KINDS, PHASES, Trace
from chronograd.units import FLOPS_PER_MAC

_IS_VECTOR = np.array([uses_vector_peak(k) for k in KINDS])
_VIEW = KINDS.index("view")
# Bytes of an element of an activation, against the 4 of the fp32 that is traced. TF32 is kept as fp32 in memory.
_ACTIVATION_SHARE = {"fp32": 1.0, "tf32": 1.0, "bf16": 0.5, "fp16": 0.5}


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
    cached: np.ndarray

    @property
    def pass_s(self) -> np.ndarray:
        """The smooth maximum of compute and memory."""
        return np.asarray((self.compute**4 + self.memory**4) ** 0.25)


@dataclass(frozen=True)
class Work:
    """What each operator asks of a device at one batch: arrays of shape (num_operators,).

    Attributes:
        class_index: into CLASSES.
        is_launched: False for views, which cost nothing on the device.
        sample_bytes, weight_bytes: what grows with the batch, and what does not.
        depth, width, rows: of a product (rows × depth) · (depth × width); ones elsewhere.
    """

    class_index: np.ndarray
    is_vector: np.ndarray
    is_launched: np.ndarray
    flops: np.ndarray
    sample_bytes: np.ndarray
    weight_bytes: np.ndarray
    depth: np.ndarray
    width: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, trace: Trace, batch: float, precision: str = "fp32") -> Work:
        """The work of a trace at a batch; in half precision half the bytes move."""
        c = trace.columns
        macs = at_batch(c["macs"], batch)
        depth, width = at_batch(c["depth"], batch), at_batch(c["width"], batch)
        moved = (c["read_bytes"] + c["written_bytes"]) * _ACTIVATION_SHARE[precision]
        grows = moved[:, 1] * batch if trace.fixed_batch is None else moved[:, 0]
        return cls(
            class_index=2 * _families(trace) + np.minimum(c["phase"], 1),
            is_vector=_IS_VECTOR[c["kind"]],
            is_launched=c["kind"] != _VIEW,
            flops=FLOPS_PER_MAC * macs + at_batch(c["vector_flops"], batch),
            sample_bytes=grows,
            weight_bytes=at_batch(moved, batch) - grows,
            depth=depth,
            width=width,
            rows=np.maximum(macs / (depth * width), 1.0),
        )

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Work:
        """Several, one after the other."""
        return cls(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)})

    def chosen(self, mask: np.ndarray) -> Work:
        return Work(**{f.name: getattr(self, f.name)[mask] for f in fields(self)})

    def seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> np.ndarray:
        """Seconds of each operator on the device; `rates` instead of the calibration's own columns."""
        terms = self.terms(calibration, rates)
        return np.asarray(terms.launch + terms.pass_s + terms.weights)

    def total_seconds(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> float:
        """Seconds of all operators: the device's work, or the host's issuing of it where that takes longer."""
        host = float(self.is_launched.sum()) * calibration.host_launch_s
        return max(float(self.seconds(calibration, rates).sum()), host)

    def terms(self, calibration: Calibration, rates: dict[str, np.ndarray] | None = None) -> Terms:
        """What the seconds of each operator are made of."""
        rates = rates or calibration.columns()
        i = self.class_index
        share = rates["compute"][i]
        for name in ("depth", "width", "rows"):
            size = getattr(self, name)
            share = share * size / (size + rates[name][i])
        peak = np.where(self.is_vector, calibration.vector_flops_per_s, calibration.peak_flops_per_s)
        t_compute = self.flops / (peak * share)
        bandwidth = calibration.bandwidth_bytes_per_s
        fits = 1.0 / (1.0 + ((self.sample_bytes + self.weight_bytes) / max(calibration.cache_bytes, 1.0)) ** 2)
        cache = 1.0 + (calibration.cache_speedup - 1.0) * fits
        t_memory = self.sample_bytes / (bandwidth * rates["bandwidth"][i] * cache)
        t_weights = self.weight_bytes / (bandwidth * rates["weights"][i])
        launch = np.where(self.is_launched, rates["launch_s"][i], 0.0)
        return Terms(launch, t_compute, t_memory, t_weights, fits / cache)


def _families(trace: Trace) -> np.ndarray:
    """Index into FAMILIES of each operator."""
    c = trace.columns
    pairs, where = np.unique(np.stack([c["kind"], c["name"]]), axis=1, return_inverse=True)
    found = [FAMILIES.index(family_of(KINDS[k], trace.operator_names[n])) for k, n in pairs.T]
    return np.asarray(np.array(found)[where.ravel()])


def operator_seconds(trace: Trace, batch: float, calibration: Calibration) -> np.ndarray:
    """Seconds of each operator on the device, shape (num_operators,)."""
    return Work.of(trace, batch, calibration.precision).seconds(calibration)


def phase_seconds(trace: Trace, times: np.ndarray, calibration: Calibration) -> dict[str, float]:
    """Forward and backward seconds: the device's work, or the host's issuing of it where that takes longer."""
    c = trace.columns
    is_launched = c["kind"] != _VIEW
    result = {}
    for code, name in enumerate(PHASES[:2]):
        chosen = c["phase"] == code
        host = float(np.count_nonzero(chosen & is_launched)) * calibration.host_launch_s
        result[name] = max(float(times[chosen].sum()), host)
    return result


# Per parameter element, fp32: arrays read and written by one fused pass of the optimizer, and how many elementary
# operators it takes unfused: weight decay, moments, step.
UPDATE_PASSES = {"sgd": (3, 2), "sgd-momentum": (5, 4), "adamw": (7, 9)}


def update_launches(num_parameters: int, calibration: Calibration) -> int:
    """Launches of one elementary operator of the optimizer over all parameters: one each, or batched on a GPU."""
    # torch's foreach kernels take some 110 tensors of one list per launch (its metadata must fit 4 KiB).
    return -(-num_parameters // 110) if calibration.host_launch_s > 0 else num_parameters


def update_seconds(trace: Trace, optimizer: str, calibration: Calibration) -> float:
    """Time of one optimizer step, derived from the parameter list.

    On a GPU the tensors of a step are batched into a few launches per elementary operator; on a CPU each
    parameter takes its own.
    """
    frozen = set(trace.frozen)
    trained = [t for n, t in trace.parameters().items() if n not in frozen]
    size = sum(t.numel_at(1) * DTYPE_BYTES[t.dtype] for t in trained)
    passes, operators = UPDATE_PASSES[optimizer]
    launches = operators * update_launches(len(trained), calibration)
    bandwidth = calibration.bandwidth_bytes_per_s * calibration.columns()["bandwidth"][CLASSES.index("update.backward")]
    return float(launches * calibration.update_launch_s + passes * size / bandwidth)


def by_kind(trace: Trace, times: np.ndarray, batch: float) -> list[dict[str, float | str]]:
    """Time, FLOPs and bytes by kind of operator, longest first. `share` is that of the time."""
    c = trace.columns
    flops = FLOPS_PER_MAC * at_batch(c["macs"], batch)
    moved = at_batch(c["read_bytes"] + c["written_bytes"], batch)
    total = float(times.sum()) or 1.0
    rows: list[dict[str, float | str]] = []
    for code, name in enumerate(KINDS):
        chosen = c["kind"] == code
        if not chosen.any() or name == "view":
            continue
        seconds = float(times[chosen].sum())
        rows.append(
            {
                "kind": name,
                "operators": int(chosen.sum()),
                "time_s": seconds,
                "flops": float(flops[chosen].sum()),
                "bytes": float(moved[chosen].sum()),
                "share": seconds / total,
            }
        )
    return sorted(rows, key=lambda r: -float(r["time_s"]))
