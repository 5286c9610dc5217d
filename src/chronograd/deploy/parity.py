"""Parity of ONNX Runtime and PyTorch: errors per output, over inputs of several kinds and batches of several sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chronograd.count.calls import Values
from chronograd.deploy.export import first_line, flat, require_onnx
from chronograd.errors import ExportError

Array = np.ndarray[Any, Any]
# A single sample, a few, and more than the network was captured with. The remaining samples make a batch of another size.
BATCHES = (1, 3, 8)
# Errors of this share of the largest output come from sums in float32 (steps of 1e-7), added up over some layers.
OF_ROUNDING = 1e-5
# The output of a detector whose rows are places, not scores of classes.
BOXES = "boxes"
# Ways in which PyTorch's own answers to the same samples differ.
DRAWN = (
    "PyTorch answers the same samples differently each time: the network draws random numbers in evaluation, such as "
    "F.dropout without training=self.training"
)
MIXED = (
    "PyTorch's answer to a sample changes with its batch: the network reads the size of the batch, or computes from its "
    "other samples"
)


@dataclass(frozen=True)
class Tolerance:
    """A value passes if |ONNX Runtime − PyTorch| is at most `atol + rtol · |PyTorch|`, as in numpy.allclose.

    The default is that of PyTorch's tutorial on exporting: docs.pytorch.org, "Export a model to ONNX and run it with ONNX
    Runtime".
    """

    rtol: float = 1e-3
    atol: float = 1e-5


USUAL_TOLERANCE = Tolerance()


@dataclass(frozen=True)
class Samples:
    """Some samples: `fed` to the graph, and as `seen` by the network; the same if the graph does not prepare them.

    Each is a Tensor, or `Values` of a network with its own inputs.
    """

    kind: str
    fed: Any
    seen: Any


@dataclass
class OutputDifference:
    """The difference of one output from PyTorch's, over all samples of one kind in batches of all sizes.

    Attributes:
        num_values: values compared; `num_equal` of them are equal bit for bit, `num_beyond` exceed the tolerance.
        largest_absolute, largest_relative: over values that are finite in both; relative to PyTorch's where that is not 0.
        largest_ulp: steps from one float32 to the next; near 0 these are small, a large number of them does no harm.
        largest_output: PyTorch's largest finite value. needed_atol: the smallest at which all values pass with this rtol.
        tightest: the smallest factor on both tolerances at which all values pass; None if none would, because one is finite
            in one of the two only.
        num_same, num_rows: rows with the largest value at the same place, and all rows; for outputs with classes.
    """

    output: str
    kind: str
    tolerance: Tolerance
    num_values: int = 0
    num_equal: int = 0
    num_beyond: int = 0
    largest_absolute: float = 0.0
    largest_relative: float = 0.0
    largest_ulp: int = 0
    largest_output: float = 0.0
    needed_atol: float = 0.0
    tightest: float | None = 0.0
    num_same: int = 0
    num_rows: int = 0

    @property
    def holds(self) -> bool:
        return self.num_values > 0 and self.num_beyond == 0

    def add(self, expected: Array, given: Array) -> None:
        """Add one batch of PyTorch's and ONNX Runtime's values. Raises ExportError for outputs of different shapes."""
        if expected.shape != given.shape:
            raise ExportError(
                f"{self.output} has shape {given.shape} in ONNX Runtime and {expected.shape} in PyTorch",
                "values that the network computes from its batch are fixed in the graph",
            )
        if expected.ndim > 1 and self.output != BOXES:
            self.num_rows += math.prod(expected.shape[:-1])
            self.num_same += int((expected.argmax(-1) == given.argmax(-1)).sum())
        self.num_values += expected.size
        same = (expected == given) | (np.isnan(expected) & np.isnan(given))  # infinities among them
        self.num_equal += int(same.sum())
        finite = np.isfinite(expected) & np.isfinite(given)
        lost = int((~finite & ~same).sum())
        self.num_beyond += lost
        if lost:
            self.tightest = None
        a, b = expected[finite], given[finite]
        if not a.size:
            return
        wide = a.astype(np.float64)
        apart = np.abs(b.astype(np.float64) - wide)
        size = np.abs(wide)
        self.largest_output = max(self.largest_output, float(size.max()))
        self.largest_absolute = max(self.largest_absolute, float(apart.max()))
        self.needed_atol = max(self.needed_atol, float((apart - self.tolerance.rtol * size).max()))
        relative = apart[size > 0] / size[size > 0]
        self.largest_relative = max(self.largest_relative, float(relative.max(initial=0.0)))
        self.largest_ulp = max(self.largest_ulp, int(np.abs(_ordered(b) - _ordered(a)).max()))
        share = _shares(apart, self.tolerance.atol + self.tolerance.rtol * size)
        self.num_beyond += int((share > 1).sum())
        worst = float(share.max())
        if self.tightest is not None:
            self.tightest = max(self.tightest, worst) if math.isfinite(worst) else None


@dataclass
class Parity:
    """All differences of a file. `failure` is the error of ONNX Runtime, if it failed.

    `unsteady` is DRAWN or MIXED if PyTorch's own answers differ, which no file can reproduce.
    """

    tolerance: Tolerance
    batches: tuple[int, ...]
    differences: list[OutputDifference] = field(default_factory=list)
    num_samples: dict[str, int] = field(default_factory=dict)
    failure: str = ""
    unsteady: str = ""

    @property
    def holds(self) -> bool:
        return not self.failure and bool(self.differences) and all(one.holds for one in self.differences)

    @property
    def tightest(self) -> float | None:
        """Return the smallest factor on the tolerance at which all values pass; None if none would."""
        factors = [one.tightest for one in self.differences]
        known = [one for one in factors if one is not None]
        return None if self.failure or not factors or len(known) < len(factors) else max(known)


def compare(
    path: Path,
    reference: Callable[..., Any],
    samples: Sequence[Samples],
    *,
    batches: Sequence[int] = BATCHES,
    tolerance: Tolerance = USUAL_TOLERANCE,
) -> Parity:
    """Run all samples through a file and through PyTorch, in batches of each size; the last one is smaller.

    Args:
        reference: the network, called with the `seen` part of samples, or with the tensors of `Values` as arguments.
    """
    parity = Parity(tolerance, tuple(batches), num_samples={one.kind: len(one.fed) for one in samples})
    try:
        running = session(path)
        ports, names = [one.name for one in running.get_inputs()], [one.name for one in running.get_outputs()]
        for one in samples:
            own = [OutputDifference(name, one.kind, tolerance) for name in names]
            parity.differences += own
            for size in batches:
                for start in range(0, len(one.fed), size):
                    part = slice(start, start + size)
                    fed, seen = _tensors(one.fed[part]), _tensors(one.seen[part])
                    given = running.run(None, {name: t.numpy() for name, t in zip(ports, fed, strict=True)})
                    with torch.no_grad():
                        expected = flat(reference(*seen))
                    for difference, ours, theirs in zip(own, expected, given, strict=True):
                        difference.add(ours.numpy(), np.asarray(theirs))
    except ExportError as error:
        parity.failure = error.message
    except Exception as error:  # ONNX Runtime has a class for each kind of error
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        parity.failure = first_line(error)
    return parity


def unsteady(reference: Callable[..., Any], samples: Samples, batch: int, tolerance: Tolerance) -> str:
    """Return DRAWN or MIXED if PyTorch answers one batch differently the second time or sample by sample; else nothing."""
    seen = samples.seen[:batch]
    with torch.no_grad():
        first, again = flat(reference(*_tensors(seen))), flat(reference(*_tensors(seen)))
        alone = [flat(reference(*_tensors(seen[i : i + 1]))) for i in range(len(seen))]

    def close(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and bool(torch.isclose(a, b, **asdict(tolerance), equal_nan=True).all())

    if not all(map(close, first, again)):
        return DRAWN
    rows = [
        (whole, parts) for whole, *parts in zip(first, *alone, strict=True) if whole.ndim and len(whole) == len(seen)
    ]
    return "" if all(close(whole, torch.cat(parts)) for whole, parts in rows) else MIXED


def _tensors(part: Tensor | Values) -> tuple[Tensor, ...]:
    return (part,) if isinstance(part, Tensor) else part.tensors


def session(path: Path) -> Any:
    """Return an ONNX Runtime session on the CPU. Its threads sleep between calls, so that the other side of a pair has the
    cores.

    It has the same number of threads as PyTorch.
    """
    require_onnx()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def data_of(parity: Parity) -> Mapping[str, Any]:
    """Return the differences as plain data; values that are not finite become null."""
    rows = []
    for one in parity.differences:
        row = {name: value for name, value in vars(one).items() if name != "tolerance"}
        rows.append({**row, "samples": parity.num_samples[one.kind], "holds": one.holds})
    return {
        **asdict(parity.tolerance),
        "batches": list(parity.batches),
        "holds": parity.holds,
        "tightest": parity.tightest,
        "failure": parity.failure or None,
        "unsteady": parity.unsteady or None,
        "outputs": rows,
    }


def _shares(apart: Array, allowed: Array) -> Array:
    """Return the share of the tolerance that each difference uses; 0 for no difference and no tolerance."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(apart == 0, 0.0, apart / allowed)


def _ordered(values: Array) -> Array:
    """Map floats to whole numbers in the same order; adjacent floats differ by one.

    >>> _ordered(np.float32([-0.0, 0.0, np.nextafter(np.float32(0), np.float32(1))])).tolist()
    [0, 0, 1]
    """
    if not np.issubdtype(values.dtype, np.floating):
        return values.astype(np.int64)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
