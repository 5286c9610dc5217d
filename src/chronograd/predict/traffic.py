"""Bytes that each operator moves, under a precision and a compiler.

A trace holds the bytes of single-precision eager execution. Under autocast, matrix work has half-precision inputs and outputs,
softmax and some others have single precision, and everything else has the widest type of its inputs. A change of type or layout
is a copy. A compiler fuses everything between two matrix operators into one pass, which reads its inputs and writes its
outputs.

Left out: fast norms are assumed (the output type is the input type); accumulation and statistics, which are small. Source:
PyTorch, "Automatic Mixed Precision package", op-specific behaviour; Ansel et al. 2024, PyTorch 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronograd.predict.derived import derived
from chronograd.trace import CONV_KINDS, DTYPE_BYTES, KINDS, MATRIX_KINDS, Operator, Trace

# Autocast's list of operators that stay in single precision.
_SINGLE = frozenset(
    (
        *("_softmax", "_log_softmax", "softplus", "nll_loss_forward", "nll_loss2d_forward"),
        *("pow", "exp", "exp_", "log", "log2", "log10", "log1p", "expm1", "rsqrt", "reciprocal"),
        *("sum", "prod", "cumsum", "cumprod", "norm", "linalg_vector_norm"),
    )
)
_HALF_BYTES = 2
# A change of type reads four bytes and writes two, or reads two and writes four.
_CAST_BYTES = 6
# Host time to issue an operator, relative to an eager forward one: autograd issues from C++, a compiler's wrapper without
# modules and dispatch. Autocast's change of an operand's type is a separate operator. Fitted by hand to NVIDIA's inference
# tables (batch 1 to 8, amp less fp32, V100 and T4) and to epochs of CIFAR ResNets on a V100 by depth. The compiled value is
# assumed: no timing of a compiled network on a GPU shows its host. A CPU has no separate host; see `pass_s`.
_BACKWARD_ISSUE, _CAST_ISSUE, _COMPILED_ISSUE = 0.7, 0.8, 0.3
# The operator that represents a fused pass: the first of the kind that is hardest to stream.
_STANDS_FOR_PASS = {"norm": 0, "softmax": 1, "reduction": 2, "pooling": 3, "gather": 4, "elementwise": 5, "copy": 6}
_VIEW, _NORM = KINDS.index("view"), KINDS.index("norm")


@dataclass(frozen=True)
class Traffic:
    """Affine amounts of shape (num_operators, 2), and a mask of launched operators.

    Attributes:
        moved: bytes that the operators themselves read and write.
        cast: bytes moved before, to change their operands' type or layout.
        vector_flops: arithmetic that is not matrix work.
        issues: host work of each, in units of an eager forward operator without casts.
        held_in_half: ids of the tensors that autocast holds in half precision.
    """

    moved: np.ndarray
    cast: np.ndarray
    vector_flops: np.ndarray
    is_launched: np.ndarray
    issues: np.ndarray
    held_in_half: frozenset[int]


def traffic(trace: Trace, precision: str = "fp32", is_compiled: bool = False) -> Traffic:
    """Return the bytes that a trace's operators move; computed once."""
    is_half = precision in ("fp16", "bf16")
    return derived(trace, ("traffic", is_half, is_compiled), lambda: _traffic(trace, is_half, is_compiled))


def _traffic(trace: Trace, is_half: bool, is_compiled: bool) -> Traffic:
    c = trace.columns
    moved, cast = c["read_bytes"] + c["written_bytes"], np.zeros_like(c["read_bytes"])
    copied = ((c["kind"] == _NORM) & c["strided"])[:, None]
    vector, launched = c["vector_flops"], c["kind"] != _VIEW
    half: set[int] = set()
    num_casts = np.zeros(len(trace.operators))
    if is_half:
        moved, cast, num_casts, half = _autocast(trace)
    cast = cast + _laid_out(trace, half)
    moved = np.where(copied, 2 * moved, moved)  # a norm first copies its input to another layout
    if is_compiled:
        moved, vector, launched = _fused(trace, moved, half)
        cast[:, 1] = 0.0  # bytes that grow with the batch change type in the previous pass; parameters do not
    issues = _COMPILED_ISSUE * launched if is_compiled else launched + _CAST_ISSUE * num_casts
    issues = np.where(c["phase"] == 1, _BACKWARD_ISSUE, 1.0) * issues
    return Traffic(moved, cast, vector, launched, issues, frozenset(half))


def _numel(trace: Trace) -> np.ndarray:
    """Return the elements of every tensor, affine: shape (num_tensors, 2)."""
    one = np.array([t.numel_at(1) for t in trace.tensors], dtype=np.float64)
    two = np.array([t.numel_at(2) for t in trace.tensors], dtype=np.float64)
    return np.stack([2 * one - two, two - one], axis=1)


def _sizes(trace: Trace, half: set[int]) -> np.ndarray:
    """Return the bytes of every tensor, affine, halved for tensors in half precision: shape (num_tensors, 2)."""
    each = [_HALF_BYTES if i in half else DTYPE_BYTES[t.dtype] for i, t in enumerate(trace.tensors)]
    return _numel(trace) * np.array(each, dtype=np.float64).reshape(-1, 1)


def _autocast(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray, set[int]]:
    """Return bytes moved, bytes cast, the number of cast operands, and the tensors in half precision."""
    numel = _numel(trace)
    is_single = [t.dtype == "float32" for t in trace.tensors]
    half: set[int] = set()
    copied: set[int] = set()  # storages with a copy in half: weights keep it for the step, and backward reuses it
    c = trace.columns
    cast, num_casts = np.zeros_like(c["read_bytes"]), np.zeros(len(trace.operators))
    reads, writes = [(1.0, 1.0)] * len(trace.operators), [(1.0, 1.0)] * len(trace.operators)
    sizes = (numel * np.array([[DTYPE_BYTES[t.dtype]] for t in trace.tensors])).tolist()

    def share(ids: tuple[int, ...], is_weight_half: bool) -> tuple[float, float]:
        """Return bytes now over bytes traced, of the constant part and of the part that grows."""
        before, now = [0.0, 0.0], [0.0, 0.0]
        for i in ids:
            scale = 0.5 if i in half or (is_weight_half and is_single[i]) else 1.0
            for part in (0, 1):
                before[part] += sizes[i][part]
                now[part] += sizes[i][part] * scale
        return (now[0] / before[0] if before[0] else 1.0), (now[1] / before[1] if before[1] else 1.0)

    for k, op in enumerate(trace.operators):
        is_matrix = op.kind in MATRIX_KINDS
        for i in _outputs_in_half(op, half, is_single, trace):
            half.add(i)
        if is_matrix:
            for i in set(op.inputs):
                storage = trace.tensors[i].storage
                is_kept = op.phase == "backward" or trace.storages[storage].role == "parameter"
                if is_single[i] and i not in half and not (is_kept and storage in copied):
                    cast[k] += _CAST_BYTES * numel[i]
                    num_casts[k] += 1
                    copied.add(storage)
            for i in op.outputs:
                if is_single[i] and trace.storages[trace.tensors[i].storage].role == "gradient":
                    cast[k] += _CAST_BYTES * numel[i]
                    num_casts[k] += 1
        reads[k], writes[k] = share(op.inputs, is_matrix), share(op.outputs, is_matrix)
    moved = c["read_bytes"] * np.array(reads).reshape(-1, 2) + c["written_bytes"] * np.array(writes).reshape(-1, 2)
    return moved, cast, num_casts, half


def _laid_out(trace: Trace, half: set[int]) -> np.ndarray:
    """Return the bytes that convolutions move to bring operands into the layout of their kernels."""
    found = np.zeros((len(trace.operators), 2))
    size = _sizes(trace, half)
    for k, op in enumerate(trace.operators):
        for position in op.attributes.get("copied", ()) if op.kind in CONV_KINDS else ():
            found[k] += 2 * size[op.inputs[position]]
    return found


def _outputs_in_half(op: Operator, half: set[int], is_single: list[bool], trace: Trace) -> list[int]:
    outputs = [i for i in op.outputs if is_single[i]]
    if op.kind in MATRIX_KINDS:
        return outputs
    if op.name in _SINGLE:
        return []
    floats = [i for i in op.inputs if is_single[i]]
    if op.kind in ("norm", "view", "pooling") or op.name.endswith("_"):
        return outputs if floats and floats[0] in half else []
    wide = [i for i in floats if trace.tensors[i].shape]
    return outputs if wide and all(i in half for i in wide) else []


def _fused(trace: Trace, moved: np.ndarray, half: set[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bytes, arithmetic and launches if everything between two matrix operators is one pass."""
    c = trace.columns
    vector = np.array(c["vector_flops"])
    moved = np.array(moved)
    launched = c["kind"] != _VIEW
    size = _sizes(trace, half)
    last_read = {
        trace.tensors[i].storage: k for k, o in enumerate(trace.operators) if o.kind != "view" for i in o.inputs
    }
    last_read |= {i: len(trace.operators) for i, s in enumerate(trace.storages) if s.role != "activation"}
    last_read |= {trace.tensors[i].storage: len(trace.operators) for i in trace.outputs}
    run: list[int] = []
    for k, op in enumerate([*trace.operators, None]):
        is_end = (
            op is None or op.kind in (*MATRIX_KINDS, "unknown") or (run and op.phase != trace.operators[run[0]].phase)
        )
        if not is_end:
            run.append(k)
            continue
        passes = [i for i in run if launched[i]]
        if len(passes) > 1:
            first = min(passes, key=lambda i: (_STANDS_FOR_PASS.get(trace.operators[i].kind, 9), i))
            total = _through(trace, run, size, last_read)
            arithmetic = vector[passes].sum(axis=0)
            moved[passes], vector[passes], launched[passes] = 0.0, 0.0, False
            moved[first], vector[first], launched[first] = total, arithmetic, True
        run = [k] if op is not None and op.kind not in (*MATRIX_KINDS, "unknown") else []
    return moved, vector, launched


def _through(trace: Trace, run: list[int], size: np.ndarray, last_read: dict[int, int]) -> np.ndarray:
    """Return the bytes of the distinct tensors that a run of operators reads, and of those that are read after it, affine."""
    start, end = run[0], run[-1]
    enters: dict[int, dict[int, np.ndarray]] = {}
    leaves: dict[int, dict[int, np.ndarray]] = {}
    for k in run:
        op = trace.operators[k]
        if op.kind == "view":
            continue
        for i in op.inputs:
            storage = trace.tensors[i].storage
            if trace.storages[storage].birth < start:
                enters.setdefault(storage, {})[i] = size[i]
        for i in op.outputs:
            storage = trace.tensors[i].storage
            if last_read.get(storage, -1) > end:
                leaves.setdefault(storage, {})[i] = size[i]
    total = np.zeros(2)
    for found in (enters, leaves):
        for storage, views in found.items():
            whole = trace.storages[storage].bytes
            moved = sum(views.values(), np.zeros(2))
            total += np.minimum(moved, whole) if moved.sum() > sum(whole) else moved
    return total
