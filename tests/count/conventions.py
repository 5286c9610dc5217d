"""Counts by the conventions of other tools, from our traces, for comparison with their tables."""

from __future__ import annotations

from chronograd.trace import Operator, Trace

# fvcore's additions to the MACs, per element of (input, output): fvcore/nn/flop_count.py, _DEFAULT_SUPPORTED_OPS.
_PER_ELEMENT = {
    "upsample_nearest2d": (0, 1),
    "upsample_bilinear2d": (0, 4),
    "grid_sampler_2d": (0, 4),
    "_adaptive_avg_pool2d": (1, 0),
}
# torch's own form of adaptive average pooling to one pixel.
_POOL_TO_A_PIXEL = ("mean", [[-1, -2], True])


def as_fvcore_counts(trace: Trace, batch: int = 1) -> int:
    """Return the number that fvcore's `FlopCountAnalysis` prints for the forward pass.

    It sums MACs and some other operations as if they were MACs. Batch norm with stored statistics counts 2 per element
    (1 without weights), any other norm 5 (4 without weights). Nearest resampling counts 1 and bilinear 4 per output
    element; adaptive average pooling counts 1 per input element.

    Omits operators that fvcore misses, such as fused attention and convolutions with padding given as a word.
    """
    return sum(op.macs.at(batch) + _extra(trace, op, batch) for op in trace.select("forward") if op.module != "loss")


def _extra(trace: Trace, op: Operator, batch: int) -> int:
    def elements(tensor: int) -> int:
        return trace.tensors[tensor].numel_at(batch)

    if op.name in ("native_batch_norm", "native_layer_norm", "native_group_norm"):
        per_element = 5 if op.attributes.get("training", True) else 2
        return elements(op.inputs[0]) * (per_element - (not op.attributes["affine"]))
    if op.name in _PER_ELEMENT:
        per_input, per_output = _PER_ELEMENT[op.name]
        return per_input * elements(op.inputs[0]) + per_output * elements(op.outputs[0])
    if (op.name, op.attributes.get("args", [])[:2]) == _POOL_TO_A_PIXEL:
        return elements(op.inputs[0])
    return 0
