"""Calibration: how much of its peak a device reaches, by class of operator, and what a launch costs.

Three origins, one form: measured on the device, fitted from a table of throughputs, or assumed from the
data sheet with a wide interval. It is kept in the device's file, under `calibration`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from chronograd.errors import FileFormatError
from chronograd.hardware.catalog import Device
from chronograd.trace import KINDS, MATRIX_KINDS, PHASES

# Kinds of which members run at rates of their own, told by the operator's name.
_SPLIT: dict[str, tuple[tuple[str, str], ...]] = {
    "norm": (("batch_norm", "batch_norm"), ("group_norm", "group_norm"), ("", "layer_norm")),
    "pooling": (("max", "max_pooling"), ("", "average_pooling")),
}
FAMILIES = tuple(f for kind in KINDS for f in ([n for _, n in _SPLIT[kind]] if kind in _SPLIT else [kind]))
# A class is a family of operators in one direction; the gradients of a convolution are other kernels than the
# convolution itself.
CLASSES = tuple(f"{family}.{phase}" for family in FAMILIES for phase in PHASES[:2])
# z of the middle 80 % of a normal distribution.
Z80 = 1.2816


@dataclass(frozen=True)
class ClassRate:
    """How one class of operators runs.

    Attributes:
        compute: share of peak FLOP/s reached by large matrix work, or of vector peak by other arithmetic.
        bandwidth: share of memory bandwidth reached by what grows with the batch.
        weights: share of it reached by what does not: weights and their gradients, often laid out anew.
        depth, width, rows: of a matrix product, that at which half of `compute` is reached.
        launch_s: fixed time of one operator.
    """

    compute: float = 0.7
    bandwidth: float = 0.7
    weights: float = 0.7
    depth: float = 0.0
    width: float = 0.0
    rows: float = 0.0
    launch_s: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """Rates of every class, for one precision and one way of running.

    Attributes:
        origin: `measured`, `fitted` or `datasheet`.
        peak_flops_per_s, vector_flops_per_s, bandwidth_bytes_per_s: what the shares are shares of.
        host_launch_s: time of issuing one operator from the host, which hides behind the device's work.
        cache_bytes, cache_speedup: operators whose bytes fit are faster by so much.
        update_launch_s: of one elementary operator of the optimizer; `input_launch_s`: of picking a batch in memory.
        overlap: share of communication that can hide behind backward; 0 where both need the same cores.
        sigma: standard deviation of the log error of a predicted step.
        threads, processes: for a CPU, what it was calibrated with: threads per rank, ranks at once.
    """

    origin: str
    precision: str
    peak_flops_per_s: float
    vector_flops_per_s: float
    bandwidth_bytes_per_s: float
    classes: dict[str, ClassRate] = field(default_factory=dict)
    host_launch_s: float = 0.0
    cache_bytes: float = 0.0
    cache_speedup: float = 1.0
    update_launch_s: float = 0.0
    input_launch_s: float = 0.0
    overlap: float = 1.0
    sigma: float = 0.45
    threads: int | None = None
    processes: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive = ("peak_flops_per_s", "vector_flops_per_s", "bandwidth_bytes_per_s", "cache_speedup")
        for name in positive:
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise FileFormatError(f"calibration: {name} is {value!r}, not a positive number")

    def columns(self) -> dict[str, np.ndarray]:
        """Rates as arrays over CLASSES; a class never calibrated takes the defaults."""
        rates = [self.classes.get(name, ClassRate()) for name in CLASSES]
        return {name: np.array([getattr(r, name) for r in rates]) for name in asdict(ClassRate())}

    def to_table(self) -> dict[str, Any]:
        """As kept in a device file; None is left out, which TOML does not have."""
        table = {k: v for k, v in asdict(self).items() if v is not None}
        table["classes"] = {k: asdict(v) for k, v in self.classes.items()}
        return table

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Calibration:
        """Read back. Raises FileFormatError naming what is wrong."""
        try:
            rates = {name: ClassRate(**rate) for name, rate in table.get("classes", {}).items()}
            unknown = sorted(set(rates) - set(CLASSES))
            if unknown:
                raise FileFormatError(f"calibration: unknown operator class {unknown[0]!r}")
            return cls(**{**table, "classes": rates})
        except TypeError as error:
            raise FileFormatError(f"calibration is damaged: {error}", "make it again: chronograd calibrate") from None


def calibrations(device: Device) -> list[Calibration]:
    """All that are kept in a device's file, one per precision and way of running."""
    return [Calibration.from_table(t) for t in (device.calibration or {}).get("settings", [])]


def calibration_for(
    device: Device, precision: str = "fp32", threads: int | None = None, processes: int | None = None
) -> Calibration:
    """The calibration of a device that fits best, else what its data sheet allows to assume.

    Precision must match; of those, the nearest number of ranks at once, then of threads.
    """
    fitting = [c for c in calibrations(device) if c.precision == precision]
    if not fitting:
        return from_datasheet(device, precision)

    def distance(c: Calibration) -> tuple[int, int]:
        return abs((c.processes or 1) - (processes or 1)), abs((c.threads or 1) - (threads or 1))

    return min(fitting, key=distance)


# Shares for a device that nobody has measured, by family: (compute, bandwidth, weights, depth, width). Rounded from a
# fit to 700 image models timed on one RTX 3090 (timm's published benchmark, 2024): large convolutions and GEMMs
# come near the rated peak, depthwise ones to a tenth of the vector peak.
_ASSUMED: dict[str, tuple[float, float, float, float, float]] = {
    "conv_1x1": (0.85, 0.6, 0.5, 75, 13),
    "conv_3x3": (0.85, 0.4, 0.5, 90, 13),
    "conv_kxk": (0.6, 0.4, 0.5, 90, 13),
    "conv_grouped": (0.5, 0.3, 0.5, 90, 30),
    "conv_depthwise": (0.12, 0.33, 0.5, 0, 0),
    "gemm": (0.9, 0.4, 0.5, 46, 13),
    "batched_gemm": (0.45, 0.5, 0.5, 46, 13),
    "attention": (0.7, 0.7, 0.5, 0, 0),
    "batch_norm": (0.5, 0.8, 0.5, 0, 0),
    "group_norm": (0.5, 0.4, 0.5, 0, 0),
    "layer_norm": (0.5, 0.4, 0.5, 0, 0),
    "softmax": (0.5, 0.6, 0.5, 0, 0),
    "elementwise": (0.8, 0.95, 0.5, 0, 0),
    "reduction": (0.5, 0.7, 0.5, 0, 0),
    "max_pooling": (0.3, 0.3, 0.5, 0, 0),
    "average_pooling": (0.3, 0.3, 0.5, 0, 0),
    "gather": (0.5, 0.4, 0.5, 0, 0),
    "copy": (1.0, 0.5, 0.5, 0, 0),
    "view": (1.0, 1.0, 0.5, 0, 0),
    "update": (1.0, 0.8, 0.5, 0, 0),
    "unknown": (0.3, 0.3, 0.5, 0, 0),
}
# Kernel launch and host time per eager operator on a GPU: 5 to 6 µs in the same fit; a CPU's per-operator overhead
# in eager PyTorch is of the same size. A kernel that has been issued still takes some 2 µs to start and end.
_LAUNCH_S = 5e-6
_KERNEL_S = 2e-6
# Rows of a product that fill half of the device: one wave of tiles.
_ROWS = {"gpu": 64.0, "cpu": 8.0}
# Half-decade either way at 95 %: predictions of an uncalibrated roofline are off by a third on average.
_DATASHEET_SIGMA = 0.45


def from_datasheet(device: Device, precision: str = "fp32") -> Calibration:
    """A calibration from peaks alone. Raises InputError if the device lacks the precision."""
    peak = device.peak(precision)  # type: ignore[arg-type]
    is_gpu = device.kind == "gpu"
    classes = {}
    for name in CLASSES:
        family = name.partition(".")[0]
        compute, bandwidth, weights, depth, width = _ASSUMED[family]
        rows = 0.0 if uses_vector_peak(family) else _ROWS[device.kind]
        classes[name] = ClassRate(
            compute, bandwidth, weights, depth, width, rows, launch_s=_KERNEL_S if is_gpu else _LAUNCH_S
        )
    return Calibration(
        origin="datasheet",
        precision=precision,
        peak_flops_per_s=peak,
        vector_flops_per_s=device.peak("fp32"),
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        classes=classes,
        host_launch_s=_LAUNCH_S if is_gpu else 0.0,
        cache_bytes=device.l2_bytes,
        cache_speedup=3.0 if is_gpu else 2.0,
        update_launch_s=_LAUNCH_S,
        overlap=1.0 if is_gpu else 0.0,
        sigma=_DATASHEET_SIGMA,
    )


def family_of(kind: str, name: str) -> str:
    """The family of an operator by its kind and name.

    >>> family_of("norm", "native_batch_norm"), family_of("gemm", "addmm")
    ('batch_norm', 'gemm')
    """
    return next((family for part, family in _SPLIT.get(kind, ()) if part in name), kind)


def uses_vector_peak(family: str) -> bool:
    """Depthwise convolutions run on vector units, as all that is no matrix work."""
    return family == "conv_depthwise" or family not in MATRIX_KINDS
