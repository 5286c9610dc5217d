"""Ways to run a step on a device: precision, memory layout, compiler, checkpointing. Values that a job states do not change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from chronograd.hardware.catalog import Device, Precision
from chronograd.job import Job, precision_name
from chronograd.predict.calibration import calibrations
from chronograd.predict.checkpointing import blocks
from chronograd.trace import Trace

# A device without bf16 has tensor cores if fp16 is at least this many times as fast as fp32. The ratio is 8 on a V100 or T4, and
# 2 on a P100, which has none.
_TENSOR_CORES = 4.0
# Text for sentences, and for a narrow column.
_COMPILERS = {False: ("", ""), True: (" compiled", " comp."), "cuda-graphs": (" in CUDA graphs", " graphs")}


@dataclass(frozen=True, order=True)
class Way:
    """A way to run a step; the fields of `Training` with the same names."""

    precision: Precision
    channels_last: bool = False
    compile: bool | Literal["cuda-graphs"] = False
    activation_checkpointing: str = "none"
    param_dtype: Literal["fp32", "bf16"] = "fp32"

    def __str__(self) -> str:
        precision = precision_name(self.precision, self.param_dtype)
        layout = " channels-last" if self.channels_last else ""
        again = " with activation checkpointing" if self.activation_checkpointing != "none" else ""
        return f"{precision}{layout}{_COMPILERS[self.compile][0]}{again}"

    @property
    def short(self) -> str:
        """Return the text for a narrow column: NHWC is channels last, +ckpt activation checkpointing.

        >>> Way("bf16", channels_last=True, activation_checkpointing="blocks").short
        'bf16 NHWC +ckpt'
        >>> Way("bf16", param_dtype="bf16").short
        'pure bf16'
        """
        precision = precision_name(self.precision, self.param_dtype)
        layout = " NHWC" if self.channels_last else ""
        again = " +ckpt" if self.activation_checkpointing != "none" else ""
        return f"{precision}{layout}{_COMPILERS[self.compile][1]}{again}"

    def of(self, job: Job) -> Job:
        """Return the job run this way."""
        return job.model_copy(update={"training": job.training.model_copy(update=vars(self))})


def autocast_precision(device: Device) -> Precision:
    """Return the usual precision for autocast: bf16 if the tensor cores support it, else fp16 if they support that, else fp32.

    >>> from chronograd.hardware.catalog import device
    >>> [autocast_precision(device(name)) for name in ("a100", "v100", "p100", "cpu")]
    ['bf16', 'fp16', 'fp32', 'fp32']
    """
    peaks = device.peak_flops_per_s
    if device.kind != "gpu":
        return "fp32"
    if "bf16" in peaks:
        return "bf16"
    return "fp16" if peaks.get("fp16", 0.0) >= _TENSOR_CORES * peaks.get("fp32", math.inf) else "fp32"


def ways_of(job: Job, device: Device, traces: Sequence[Trace], precisions: Sequence[Precision] = ()) -> Iterator[Way]:
    """Yield the ways to search on a device. A field that the job states has its value.

    Args:
        traces: one for each layout to search.
        precisions: precisions to search, if the device has them. Default: the job's, else `autocast_precision` and fp32, which
            is faster for small networks.

    Compiled code is searched only if a calibration of the device measured it in that precision, because we otherwise do not
    know its speedup. Checkpointing is searched if the network has blocks.
    """
    training, stated = job.training, job.training.model_fields_set
    if not precisions:
        precisions = [training.precision] if "precision" in stated else [autocast_precision(device), "fp32"]
    layouts = sorted({trace.channels_last for trace in traces})
    if "channels_last" in stated and training.channels_last in layouts:
        layouts = [training.channels_last]
    checkpointing = [training.activation_checkpointing]
    if job.mode == "training" and "activation_checkpointing" not in stated and blocks(traces[0].modules):
        checkpointing = ["none", "blocks"]
    for precision in dict.fromkeys(precisions):
        if precision not in device.peak_flops_per_s:
            continue
        compiled: list[bool | Literal["cuda-graphs"]] = [training.compile]
        if "compile" not in stated and any(c.is_compiled and c.precision == precision for c in calibrations(device)):
            compiled = [False, True]
        for layout in layouts:
            for compiler in compiled:
                for kind in checkpointing:
                    held = training.param_dtype if precision == "bf16" else "fp32"
                    yield Way(precision, layout, compiler, kind, held)
