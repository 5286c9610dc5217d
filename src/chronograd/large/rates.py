"""Seconds of operators on a rank, from the calibration of its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chronograd.errors import InputError
from chronograd.hardware import catalog
from chronograd.hardware.catalog import Device
from chronograd.large.setting import LargeSetting
from chronograd.large.work import Operator
from chronograd.predict.calibration import CLASSES, Calibration, uses_vector_peak
from chronograd.predict.compute import Work
from chronograd.predict.relatives import calibration_for

# A kernel that has been issued takes some 2 µs to start and end, as in `predict.calibration`. Launches fitted to networks of
# small operators hide their host, so large models do not use them.
KERNEL_S = 2e-6


@dataclass(frozen=True)
class Rates:
    """A device's calibration for a precision, and its peak in fp8.

    Attributes:
        eight_bit: the calibration with the peak in fp8; None if no product runs in fp8.
    """

    device: Device
    calibration: Calibration
    eight_bit: Calibration | None = None

    @classmethod
    def of(cls, setting: LargeSetting) -> Rates:
        """Return the rates of a job's device. Raises InputError for a device without fp8 that a job wants to use."""
        job = setting.job
        device = catalog.device(job.cluster.device)
        device.check_predicted()
        usual = calibration_for(
            device, job.training.precision, mode="training", is_compiled=bool(job.training.compile)
        )
        if not setting.options.fp8:
            return cls(device, usual)
        if "fp8" not in device.peak_8bit_ops_per_s:
            raise InputError(f"{device.name} has no fp8 arithmetic", "write large.fp8=false, or name a device with fp8")
        peak = device.peak_8bit_ops_per_s["fp8"]
        return cls(device, usual, replace(usual, peak_flops_per_s=peak))

    def seconds(self, operators: Sequence[Operator]) -> np.ndarray:
        """Return the seconds of each operator on the device, shape (operators,)."""
        found = np.zeros(len(operators))
        for in_8_bits, calibration in ((False, self.calibration), (True, self.eight_bit)):
            places = [i for i, one in enumerate(operators) if one.in_8_bits == in_8_bits]
            if calibration is not None and places:
                found[places] = _seconds([operators[i] for i in places], calibration)
        return found

    def bandwidth(self, family: str) -> float:
        """Return the bytes per second that a family of operators moves."""
        share = self.calibration.columns["bandwidth"][CLASSES.index(f"{family}.backward")]
        return float(self.calibration.bandwidth_bytes_per_s * share)


def _seconds(operators: Sequence[Operator], calibration: Calibration) -> np.ndarray:
    columns = {name: np.array([getattr(one, name) for one in operators], dtype=np.float64) for name in _COLUMNS}
    zeros = np.zeros(len(operators))
    work = Work(
        class_index=np.array([CLASSES.index(_class_of(one)) for one in operators]),
        is_vector=np.array([uses_vector_peak(one.family) and one.flops == 0 for one in operators]),
        launches=zeros + 1,
        issues=zeros,
        cast_bytes=zeros,
        relayout_bytes=zeros,
        out_width=zeros + 1,
        is_unaligned=np.array([one.family == "gemm" and (one.depth % 8 > 0 or one.width % 8 > 0) for one in operators]),
        **columns,
    )
    return work.seconds(calibration, {**calibration.columns, "launch_s": np.full(len(CLASSES), KERNEL_S)})


_COLUMNS = ("flops", "sample_bytes", "weight_bytes", "rows", "depth", "width")


def _class_of(operator: Operator) -> str:
    return f"{operator.family}.{'forward' if operator.phase == 'forward' else 'backward'}"
