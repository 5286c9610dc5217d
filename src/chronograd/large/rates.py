"""Seconds of operators on a rank: the operator model of `predict.compute`, with rates for products of large models.

Tables of small networks hardly show how fast a device multiplies large matrices, so its own measurements decide, else its power:
multiplying at the peak takes more power than a board has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.hardware.hosts import host
from chronograd.large.setting import LargeSetting
from chronograd.large.work import RankOperator
from chronograd.predict.calibration import CLASSES, Calibration, uses_vector_peak
from chronograd.predict.compute import Work
from chronograd.predict.derived import derived
from chronograd.predict.relatives import calibration_for
from chronograd.trace import PHASES

# A kernel that has been issued takes some 2 µs to start and end, as in `predict.calibration`. Launches fitted to networks of
# small operators include their host.
KERNEL_S = 2e-6
# Share of the 16-bit peak that products reach, at one watt of board power per TFLOP/s of it. A board at its power limit lowers
# the clock, and power grows with its cube (frequency times voltage squared), so the share grows with the cube root of the watts.
# Fitted to llm-foundry on A100 (0.71), with STREAM_SHARE: 4.1 % error on a seeded half, 4.0 % on the other one. MOST_SHARE is for
# boards with power to spare; assumed.
SHARE_AT_ONE_WATT, MOST_SHARE = 0.65, 0.75
# Share of memory bandwidth that passes over activations reach. Products reach more; assumed.
STREAM_SHARE, PRODUCT_BANDWIDTH = 0.65, 0.8
# Speed of the grouped products of experts relative to large products. Fitted to the mixtures of experts of Megatron-Bridge on
# H100, with 12 to 15 % error on the other seeded half of the rows. Releases of a recipe repeat in both halves. SimuMax' row agrees.
GROUPED_SPEED = 0.45
# Host work per operator relative to eager code: of a compiler's wrapper, as in `predict.traffic`, and of a replayed graph.
COMPILED_ISSUES: dict[bool | str, float] = {False: 1.0, True: 0.3, "cuda-graphs": 0.0}
_PRODUCTS, _STREAMS = ("gemm", "batched_gemm"), ("elementwise", "layer_norm", "softmax", "gather")


def product_share(device: Device) -> float | None:
    """Return the share of its peak at which a GPU multiplies large matrices in 16 or 8 bits; None if its power is unknown.

    >>> [round(product_share(catalog.device(name)), 2) for name in ("a100-80", "h100", "b200")]
    [0.71, 0.58, 0.5]
    """
    peaks = [device.peak_flops_per_s[name] for name in ("bf16", "fp16") if name in device.peak_flops_per_s]
    if device.kind != "gpu" or not peaks or device.tdp_w is None:
        return None
    watts = device.tdp_w / (max(peaks) / 1e12)
    return float(min(MOST_SHARE, SHARE_AT_ONE_WATT * watts ** (1 / 3)))


@dataclass(frozen=True)
class Rates:
    """A device's calibration for a precision.

    Attributes:
        columns: its rates over CLASSES, for large models.
        issue_s: time in which the host issues an operator.
        peak_8bit: FLOP/s in fp8; 0 if no product runs in fp8.
    """

    device: Device
    calibration: Calibration
    columns: dict[str, np.ndarray]
    issue_s: float
    peak_8bit: float = 0.0

    @classmethod
    def of(cls, setting: LargeSetting, attention: float) -> Rates:
        """Return the rates of a job's device; `attention` is the speed of fused attention relative to products.

        Raises: InputError for a device without fp8 that a job wants to use, and for one that cannot be predicted.
        """
        training, device = setting.training, catalog.device(setting.job.cluster.device)
        device.check_predicted()
        if setting.options.fp8 and "fp8" not in device.peak_8bit_ops_per_s:
            raise InputError(f"{device.name} has no fp8 arithmetic", "write large.fp8=false, or name a device with fp8")
        key = ("large", training.precision, bool(training.compile))
        calibration = derived(
            device, key, lambda: calibration_for(device, training.precision, mode="training", is_compiled=key[2])
        )
        peak_8bit = device.peak_8bit_ops_per_s["fp8"] if setting.options.fp8 else 0.0
        stated = setting.job.cluster.host
        issue_s = calibration.host_launch_s if stated is None else _stated_host_s(stated)
        issue_s *= COMPILED_ISSUES[training.compile]
        return cls(device, calibration, _columns(device, calibration, attention), issue_s, peak_8bit)

    def seconds(self, operators: Sequence[RankOperator]) -> np.ndarray:
        """Return the seconds of each operator on the device, shape (operators,)."""
        found = np.zeros(len(operators))
        for in_8_bits in (False, True):
            places = [i for i, one in enumerate(operators) if one.in_8_bits == in_8_bits]
            if places:
                peak = self.peak_8bit if in_8_bits else self.calibration.peak_flops_per_s
                calibration = replace(self.calibration, peak_flops_per_s=peak)
                found[places] = _work([operators[i] for i in places]).seconds(calibration, self.columns)
        return found

    def bandwidth(self, family: str) -> float:
        """Return the bytes per second that a family of operators moves."""
        share = self.columns["bandwidth"][CLASSES.index(f"{family}.backward")]
        return float(self.calibration.bandwidth_bytes_per_s * share)


def _stated_host_s(stated: str | float) -> float:
    """Return the seconds per operator of a host that the job names, or states in microseconds."""
    return host(stated).launch_s("training") if isinstance(stated, str) else 1e-6 * stated


def _columns(device: Device, calibration: Calibration, attention: float) -> dict[str, np.ndarray]:
    """Return the rates of a calibration, with those of large products unless the device itself was measured."""
    columns = {name: values.copy() for name, values in calibration.columns.items()}
    columns["launch_s"][:] = KERNEL_S
    share = product_share(device)
    if calibration.origin == "measured" or share is None:
        return columns
    for phase in PHASES[:2]:
        for family in _PRODUCTS:
            place = CLASSES.index(f"{family}.{phase}")
            columns["compute"][place] = share * (GROUPED_SPEED if family == "batched_gemm" else 1.0)
            columns["bandwidth"][place] = PRODUCT_BANDWIDTH
        for family in _STREAMS:
            columns["bandwidth"][CLASSES.index(f"{family}.{phase}")] = STREAM_SHARE
        columns["compute"][CLASSES.index(f"attention.{phase}")] = attention * share
    return columns


def _work(operators: Sequence[RankOperator]) -> Work:
    """Return operators as the work of `predict.compute`."""
    names = ("flops", "sample_bytes", "rows", "depth", "width")
    columns = {name: np.array([getattr(one, name) for one in operators], dtype=np.float64) for name in names}
    zeros = np.zeros(len(operators))
    directions = ("forward" if one.phase == "forward" else "backward" for one in operators)
    classes = [f"{one.family}.{direction}" for one, direction in zip(operators, directions, strict=True)]
    is_product = np.array([one.family == "gemm" for one in operators])
    return Work(
        class_index=np.array([CLASSES.index(name) for name in classes]),
        is_vector=np.array([uses_vector_peak(one.family) for one in operators]),
        launches=zeros + 1,
        issues=zeros,
        weight_bytes=zeros,
        cast_bytes=zeros,
        relayout_bytes=zeros,
        out_width=zeros + 1,
        is_unaligned=is_product & (columns["depth"] % 8 + columns["width"] % 8 > 0),
        **columns,
    )
