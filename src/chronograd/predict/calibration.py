"""Calibration: the share of its peak that a device reaches, by class of operator, and the cost of a launch.

A calibration is measured on the device, fitted to a table of throughputs, or assumed from the data sheet with a wide interval.
All three have one form. The device's file stores it under `calibration`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field, StrictBool, StrictFloat, StrictInt, TypeAdapter

from chronograd.errors import FileFormatError, problems
from chronograd.hardware.catalog import Device
from chronograd.hardware.hosts import host_of
from chronograd.predict.derived import derived
from chronograd.trace import KINDS, MATRIX_KINDS, PHASES, Index, one_of

# Kinds with members that run at different rates, distinguished by the operator's name.
_SPLIT: dict[str, tuple[tuple[str, str], ...]] = {
    "norm": (("batch_norm", "batch_norm"), ("group_norm", "group_norm"), ("", "layer_norm")),
    "pooling": (("max", "max_pooling"), ("", "average_pooling")),
    "recurrent": (("lstm", "lstm"), ("gru", "gru"), ("", "rnn")),
}
_RECURRENT = tuple(family for _, family in _SPLIT["recurrent"])
# Attention without a fused kernel: products and a softmax, one after the other.
UNFUSED_ATTENTION = "attention_unfused"
# Families that are parts of a kind → the family that they belonged to before: depthwise convolutions with kernels above 3 × 3,
# transposed ones, and those of volumes.
PARTS = {"conv_depthwise_kxk": "conv_depthwise", "conv_transposed": "conv_kxk", "conv_3d": "conv_kxk"}
# The blocks and networks of calibrations without these families showed wide depthwise kernels, but not the others.
_SHOWN_BEFORE = ("conv_depthwise_kxk",)
FAMILIES = (
    *(f for kind in KINDS for f in ([n for _, n in _SPLIT[kind]] if kind in _SPLIT else [kind])),
    UNFUSED_ATTENTION,
    *PARTS,
)
# A class is a family of operators in one direction, because the gradients of a convolution use other kernels than its forward
# pass.
CLASSES = tuple(f"{family}.{phase}" for family in FAMILIES for phase in PHASES[:2])

# Sizes of a class's work. For each, a class has the size at which it reaches half of `compute`.
SIZES = ("depth", "width", "rows", "out_width")

# Above any real device, and small enough that products stay finite.
Amount = Annotated[StrictFloat | StrictInt, Field(ge=0, lt=1e30)]
Positive = Annotated[StrictFloat | StrictInt, Field(gt=0, lt=1e30)]
ClassName = Annotated[str, one_of(CLASSES)]


@dataclass(frozen=True)
class ClassRate:
    """Rates of one class of operators.

    Attributes:
        compute: share of peak FLOP/s that large matrix work reaches, or of vector peak for other arithmetic.
        bandwidth: share of memory bandwidth for bytes that grow with the batch.
        weights: share of memory bandwidth for bytes that do not: weights and their gradients, often copied to another layout.
        depth, width, rows: sizes of a matrix product at which it reaches half of `compute`; out_width: the same for a row of a
            convolution's output.
        relayout: number of times that a convolution's data goes through memory to become channels last.
        launch_s: fixed time of one operator.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    compute: Positive = 0.7
    bandwidth: Positive = 0.7
    weights: Positive = 0.7
    depth: Amount = 0.0
    width: Amount = 0.0
    rows: Amount = 0.0
    out_width: Amount = 0.0
    relayout: Amount = 0.0
    launch_s: Amount = 0.0


@dataclass(frozen=True)
class Calibration:
    """Rates of every class, for one precision and one way of running.

    Attributes:
        origin: `measured`, `fitted` or `datasheet`.
        peak_flops_per_s, vector_flops_per_s, bandwidth_bytes_per_s: the rates that shares refer to.
        host_launch_s: time in which the host issues one operator, hidden while the device works; `host_sigma`: standard
            deviation of its log, as hosts differ.
        pass_s: time to begin a forward or backward pass whose code and threads are idle; on a GPU the host is ahead by then.
        warm_pass_s: the part of `pass_s` that a CPU saves if its caches still hold code and data. `warm_update`: the share of
            bandwidth that an update then reaches; see `warmed`.
        graph_launch_s: time to launch a whole pass recorded as one CUDA graph; None if the host issues operators individually.
        cache_bytes, cache_speedup: operators whose bytes fit into the cache are faster by this factor.
        update_launch_s: time of one elementary operator of the optimizer; `input_launch_s`: of selecting a batch in memory.
        overlap: share of communication that can hide behind backward; 0 if both need the same cores.
        sigma: standard deviation of the log error of a predicted step; `class_sigma`: of single classes.
        is_compiled, has_fused_attention: whether a compiler was used, and whether attention was one kernel.
        mode, channels_last: `training` or `inference`, and the layout that it was fitted to; None if it applies to all.
        threads, processes: for a CPU, threads per rank and simultaneous ranks during calibration.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    origin: str
    precision: str
    peak_flops_per_s: Positive
    vector_flops_per_s: Positive
    bandwidth_bytes_per_s: Positive
    classes: dict[ClassName, ClassRate] = field(default_factory=dict)
    host_launch_s: Amount = 0.0
    host_sigma: Amount = 0.0
    pass_s: Amount = 0.0
    warm_pass_s: Amount = 0.0
    warm_update: Amount = 0.0
    graph_launch_s: Amount | None = None
    cache_bytes: Amount = 0.0
    cache_speedup: Positive = 1.0
    update_launch_s: Amount = 0.0
    input_launch_s: Amount = 0.0
    overlap: Amount = 1.0
    sigma: Amount = 0.45
    class_sigma: dict[ClassName, Amount] = field(default_factory=dict)
    is_compiled: StrictBool = False
    has_fused_attention: StrictBool = True
    mode: Annotated[str, one_of(("training", "inference"))] | None = None
    channels_last: StrictBool | None = None
    threads: Index | None = None
    processes: Index | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """Return rates as arrays over CLASSES; a class never calibrated gets the defaults."""
        rates = [self.classes.get(name, ClassRate()) for name in CLASSES]
        return {name: np.array([getattr(r, name) for r in rates], dtype=np.float64) for name in asdict(ClassRate())}

    def sigmas(self) -> np.ndarray:
        """Return the standard deviation of the log error by CLASSES; a class never measured is as uncertain as a data sheet."""
        seen, unseen = self.classes_seen, max(DATASHEET_SIGMA, self.sigma)
        own = {name: self.sigma if name in seen else unseen for name in CLASSES} | self.class_sigma
        return np.array([own[name] for name in CLASSES])

    @cached_property
    def classes_seen(self) -> frozenset[str]:
        """Return the classes that the measurements included; rates of the others are those of the prior."""
        return frozenset(self.provenance.get("classes_seen", ()))

    def to_table(self) -> dict[str, Any]:
        """Return the table for a device file, without fields that are None, which TOML does not have."""
        table = {k: v for k, v in asdict(self).items() if v is not None}
        table["rates"] = [f.name for f in fields(ClassRate)]
        table["classes"] = {k: list(asdict(v).values()) for k, v in self.classes.items()}
        return table

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Calibration:
        """Return the calibration of a table. Raises FileFormatError with the field that is wrong."""
        try:
            named = {
                name: dict(zip(table["rates"], values, strict=True))
                for name, values in table.get("classes", {}).items()
            }
            found: Calibration = _ADAPTER.validate_python(
                {**{k: v for k, v in table.items() if k != "rates"}, "classes": named}
            )
            _NAMES.validate_python(found.provenance.get("classes_seen", []))
            return found
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"calibration is damaged: {problems(error)[0]}", _AGAIN) from None


def warmed(c: Calibration, held_bytes: float) -> Calibration:
    """Return a calibration for a step that touches `held_bytes`: the part that fits into the cache stays there for the next step.

    `calibrate` empties the caches before each timed pass, as the rest of a large network does. A step of a small network finds
    its code, weights, gradients and optimizer state in them. Left out: ranks that share a cache.
    """
    cold = 1.0 - 1.0 / (1.0 + (held_bytes / max(c.cache_bytes, 1.0)) ** 2)
    classes = {name: replace(rate, weights=rate.weights / max(cold, 1e-6)) for name, rate in c.classes.items()}
    update = classes["update.backward"]
    share = 1.0 / (cold / update.bandwidth + (1.0 - cold) / c.warm_update)
    classes["update.backward"] = replace(update, bandwidth=share)
    return replace(c, classes=classes, pass_s=max(c.pass_s - (1.0 - cold) * c.warm_pass_s, 0.0))


_ADAPTER, _NAMES = TypeAdapter(Calibration), TypeAdapter(list[str])


def calibrations(device: Device) -> list[Calibration]:
    """Return all calibrations in a device's file, one per precision and way of running.

    Classes that a calibration never measured have the values of the data sheet, or of the class that they were part of.
    """
    return list(derived(device, "calibrations", lambda: _read_calibrations(device)))


def _read_calibrations(device: Device) -> list[Calibration]:
    tables = (device.calibration or {}).get("settings", [])
    if not isinstance(tables, list | tuple):
        raise FileFormatError(f"calibration of {device.name}: settings is {tables!r:.80}, not a list", _AGAIN)
    found = [_with_parts(Calibration.from_table(t)) for t in tables]
    return [replace(c, classes={**from_datasheet(device, c.precision).classes, **c.classes}) for c in found]


def parts_of(known: Collection[str]) -> dict[str, str]:
    """Return the class that it belonged to before for each class of PARTS that is not known while the other is."""
    pairs = ((f"{part}.{phase}", f"{whole}.{phase}") for part, whole in PARTS.items() for phase in PHASES[:2])
    return {part: whole for part, whole in pairs if part not in known and whole in known}


def _with_parts(c: Calibration) -> Calibration:
    """Return a calibration with the PARTS that it does not know: they have the rates of the class that they belonged to."""
    parts = parts_of(c.classes)
    shown = {part: whole for part, whole in parts.items() if part.partition(".")[0] in _SHOWN_BEFORE}
    seen = [part for part, whole in shown.items() if whole in c.classes_seen]
    return replace(
        c,
        classes={**c.classes, **{part: c.classes[whole] for part, whole in parts.items()}},
        class_sigma={**c.class_sigma, **{n: c.class_sigma[w] for n, w in shown.items() if w in c.class_sigma}},
        provenance=c.provenance | ({"classes_seen": sorted([*c.classes_seen, *seen])} if seen else {}),
    )


_AGAIN = "make it again: chronograd calibrate"

# Shares assumed without measurements, by family: (compute, bandwidth, weights, depth, width). The numbers are round and equal
# for similar families. Deep and wide matrix work runs near its peak, streaming operators near the bandwidth, gathers and
# reductions at half of it.
_MATRIX = (0.7, 0.5, 0.5, 50, 15)
_STREAM = (0.5, 0.6, 0.5, 0, 0)
_ASSUMED: dict[str, tuple[float, float, float, float, float]] = {
    **dict.fromkeys(("conv_1x1", "conv_3x3", "conv_kxk", "conv_grouped", "gemm", "batched_gemm", *_RECURRENT), _MATRIX),
    "conv_depthwise": (0.15, 0.35, 0.5, 0, 0),
    "attention": (0.6, 0.6, 0.5, 0, 0),
    UNFUSED_ATTENTION: (0.5, 0.5, 0.5, 0, 0),
    "elementwise": (0.5, 0.9, 0.5, 0, 0),
    "update": (1.0, 0.8, 0.5, 0, 0),
}
# A CPU reaches a smaller share of its vector peak, and small products fill it sooner.
_MATRIX_CPU = (0.4, 0.4, 0.4, 30, 8)
_ASSUMED_CPU = {
    **_ASSUMED,
    **{name: _MATRIX_CPU for name, shares in _ASSUMED.items() if shares == _MATRIX},
    "conv_depthwise": (0.1, 0.4, 0.4, 0, 0),
    "attention": (0.3, 0.4, 0.4, 0, 0),
    UNFUSED_ATTENTION: (0.3, 0.4, 0.4, 0, 0),
}
# Passes through memory of a convolution's data when tensor cores need channels last and the data has channels first.
_RELAYOUT = {"conv_grouped": 0.8, "conv_1x1": 0.4, "conv_3x3": 0.4, "conv_kxk": 0.4}
# A launch from C++. A CPU's overhead per operator in eager PyTorch is about the same. A kernel that has been issued still takes
# some 2 µs to start and end.
_LAUNCH_S = 5e-6
_KERNEL_S = 2e-6
# Fixed time of one step of one recurrent layer on a CPU: a kernel of oneDNN for an LSTM, operators issued from C++ for the others.
# Measured with 16 hidden units at batch 1 (one core of an EPYC, PyTorch 2.14, 2026-11-26). On a GPU, a product and the gates:
# two kernels, assumed.
_STEP_S = {
    "lstm.forward": 1e-6, "lstm.backward": 4e-6, "gru.forward": 10e-6, "gru.backward": 90e-6, "rnn.forward": 4e-6,
    "rnn.backward": 26e-6,
}  # fmt: skip
# Spread of the log of the host's time: on machines that nobody timed (see hardware/hosts.toml), and at least, on one machine.
HOST_SIGMA, MIN_HOST_SIGMA = 0.4, 0.1
# Time to begin a pass on a CPU, in a loop without other work. Checked with 17 rows of timm's table of compiled networks
# (i7-12700H, batch 1), fitted to 25 others by four seeds. Errors with 0, 0.1, 0.3 and 1 ms: 8.9, 9.0, 9.1 and 10.0 %; of the 14
# shortest rows: 11, 11, 13 and 22 %. `chronograd calibrate` measures 0.3 to 0.4 ms between other work (two cores of a Xeon,
# 2026-11-23, PyTorch 2.14).
PASS_S = 100e-6
# Additional cost of a pass of a compiled network in training on a CPU, in elementary operators of an optimizer, which the same
# host issues. It covers guards, AOTAutograd's wrappers, saved tensors, and a thread region for each kernel. Fitted to six small
# networks at batch 1 and 64 (two cores of a Xeon, 2026-11-23). Inference had no additional cost.
COMPILED_TRAINING_ISSUES = 80
# A pass recorded as one CUDA graph: Python, its guards and the launch. The launch alone takes the CPU 3.5 µs (80 kernels) to 8
# µs (CUDA.jl's manual, "Graphs", seen 2026-11-23; verified). 10 µs for everything is assumed.
GRAPH_LAUNCH_S = 10e-6
# Rows of a product that fill half of the device: one wave of tiles.
_ROWS = {"gpu": 64.0, "cpu": 8.0}
# A CPU's kernels keep part of a row of a convolution's output in registers (Georganas et al. 2018, "Anatomy of high-performance
# deep learning convolutions on SIMD architectures"). Short rows leave registers idle. `chronograd calibrate` measures 4 to 8
# pixels for 3 x 3 forward and 2 to 4 backward (two cores of an EPYC, 2026-11-23). A 1 x 1 convolution is a product over all
# pixels.
_BLOCKED_BY_ROW = ("conv_3x3", "conv_kxk", "conv_grouped")
_OUT_WIDTH_CPU = 2.0
# 3 x 3 convolutions in single precision on a GPU use Winograd's algorithm, with up to 2.25 times fewer multiplications. Large
# ones exceed the peak of direct convolutions. Values: share of peak, and rows at which half of it is reached. Lavin & Gray
# 2016. DeepBench, cuDNN 5 and later on M40, Titan X, P100, Titan Xp: 1.2 to 2.2 from 3,000 rows on, 0.4 to 0.8 below 800.
_WINOGRAD = {"conv_3x3.forward": (1.6, 500.0), "conv_3x3.backward": (1.2, 500.0)}
# A factor of about 2.4 either way at 95 %: an uncalibrated roofline is off by a third on average.
DATASHEET_SIGMA = 0.45


def from_datasheet(device: Device, precision: str = "fp32", mode: str | None = None) -> Calibration:
    """Return a calibration from peaks and the usual host alone. Raises InputError if the device lacks the precision."""
    peak = device.peak(precision)  # type: ignore[arg-type]
    is_gpu = device.kind == "gpu"
    host = host_of(device)
    classes = {}
    for name in CLASSES:
        family = name.partition(".")[0]
        family = PARTS.get(family, family)
        assumed = _ASSUMED if is_gpu else _ASSUMED_CPU
        compute, bandwidth, weights, depth, width = assumed.get(family, _STREAM)
        relayout = _RELAYOUT.get(family, 0.0) if is_gpu and precision != "fp32" else 0.0
        rows = 0.0 if uses_vector_peak(family) else _ROWS[device.kind]
        if is_gpu and precision == "fp32" and name in _WINOGRAD and peak == device.vector_flops_per_s:
            compute, rows = _WINOGRAD[name]
        out_width = _OUT_WIDTH_CPU if not is_gpu and family in _BLOCKED_BY_ROW else 0.0
        launch_s = _KERNEL_S if is_gpu else _LAUNCH_S
        if name in _STEP_S:
            launch_s = 2 * _LAUNCH_S if is_gpu else _STEP_S[name]
        classes[name] = ClassRate(compute, bandwidth, weights, depth, width, rows, out_width, relayout, launch_s)
    return Calibration(
        origin="datasheet",
        precision=precision,
        peak_flops_per_s=peak,
        vector_flops_per_s=device.vector_flops_per_s,
        bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
        classes=classes,
        host_launch_s=host.launch_s(mode) if is_gpu else 0.0,
        host_sigma=host.sigma_log if is_gpu else 0.0,
        pass_s=0.0 if is_gpu else PASS_S,
        cache_bytes=device.l2_bytes,
        cache_speedup=3.0 if is_gpu else 2.0,
        update_launch_s=_LAUNCH_S,
        overlap=1.0 if is_gpu else 0.0,
        sigma=DATASHEET_SIGMA,
        mode=mode,
    )


def family_of(kind: str, name: str) -> str:
    """Return the family of an operator by its kind and name.

    >>> family_of("norm", "native_batch_norm"), family_of("gemm", "addmm")
    ('batch_norm', 'gemm')
    """
    return next((family for part, family in _SPLIT.get(kind, ()) if part in name), kind)


def uses_vector_peak(family: str) -> bool:
    """Return whether a family runs on vector units: depthwise convolutions and everything that is not matrix work."""
    family = PARTS.get(family, family)
    return family == "conv_depthwise" or family not in (*MATRIX_KINDS, *_RECURRENT)
