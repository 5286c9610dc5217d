"""What one aten operator is: its kind, multiply-adds, other arithmetic and memory traffic.

Formulas work on shapes, plain tuples of integers, so that one formula serves every batch. MACs are
counted for matrix work only: a convolution multiplies and adds once per weight and output element, its
bias is not counted; attention is `Q Kᵀ` and `P V`, dense whether masked or not. `vector_flops` is all other
arithmetic, in elementary operations per element; they are conventions, good to a small factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
Shapes = Sequence[Any]  # one Shape per tensor argument, lists of them for tensor lists, None for absent ones
Macs = Callable[[Sequence[Any], Shapes, Shapes], int]


def conv_kind(weight: Shape, groups: int, transposed: bool = False) -> str:
    """Kind of a convolution from its weight (out, in / groups, *kernel)."""
    kernel = weight[2:]
    in_channels = weight[0] if transposed else weight[1] * groups
    if groups > 1:
        return "conv_depthwise" if groups == in_channels else "conv_grouped"
    if all(k == 1 for k in kernel):
        return "conv_1x1"
    return "conv_3x3" if all(k == 3 for k in kernel) and len(kernel) == 2 else "conv_kxk"


def conv_macs(in_shape: Shape, weight: Shape, out_shape: Shape, transposed: bool) -> int:
    """Output elements × in channels per group × kernel; for a transposed one, input elements instead.

    >>> conv_macs((1, 3, 224, 224), (64, 3, 3, 3), (1, 64, 224, 224), False)
    86704128
    """
    per_element = math.prod(weight[1:])
    return math.prod(in_shape if transposed else out_shape) * per_element


def _convolution(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return conv_macs(ins[0], ins[1], outs[0], bool(args[6]))


def _convolution_backward(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    # grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask.
    # Each of the two gradients multiplies as often as the forward pass, whatever the groups.
    grads: int = int(args[10][0]) + int(args[10][1])
    return grads * conv_macs(ins[1], ins[2], ins[0], bool(args[7]))


def _deform_conv(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(math.prod(outs[0]) * math.prod(ins[1][1:]))


def _matmul(first: int) -> Macs:
    """GEMM of the tensor arguments `first` (…, m, k) and `first + 1` (…, k, n); leading ones are added."""

    def macs(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
        a, b = ins[first], ins[first + 1]
        return int(math.prod(a) * (b[-1] if len(b) > 1 else 1))

    return macs


def _linear(args: Sequence[Any], ins: Shapes, outs: Shapes) -> int:
    return int(math.prod(ins[0]) * ins[1][0])


def attention_macs(query: Shape, key: Shape, value: Shape) -> int:
    """`Q Kᵀ` and `P V`: queries × keys × (head width of keys + of values).

    >>> attention_macs((1, 8, 10, 64), (1, 8, 10, 64), (1, 8, 10, 64)) == 2 * 8 * 10 * 10 * 64
    True
    """
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


# Operator → (kind, its MACs). Names as in native_functions.yaml.
MATRIX: dict[str, tuple[str, Macs]] = {
    "aten::convolution": ("conv", _convolution),
    "aten::_convolution": ("conv", _convolution),
    "aten::convolution_overrideable": ("conv", _convolution),
    "aten::convolution_backward": ("conv", _convolution_backward),
    "torchvision::deform_conv2d": ("conv_kxk", _deform_conv),
    "aten::mm": ("gemm", _matmul(0)),
    "aten::addmm": ("gemm", _matmul(1)),
    "aten::addmm_": ("gemm", _matmul(1)),
    "aten::_addmm_activation": ("gemm", _matmul(1)),
    "aten::mv": ("gemm", _matmul(0)),
    "aten::addmv": ("gemm", _matmul(1)),
    "aten::dot": ("gemm", _matmul(0)),
    "aten::vdot": ("gemm", _matmul(0)),
    "aten::linear": ("gemm", _linear),
    "aten::_int_mm": ("gemm", _matmul(0)),
    "aten::_scaled_mm": ("gemm", _matmul(0)),
    "aten::bmm": ("batched_gemm", _matmul(0)),
    "aten::baddbmm": ("batched_gemm", _matmul(1)),
    "aten::baddbmm_": ("batched_gemm", _matmul(1)),
    "aten::addbmm": ("batched_gemm", _matmul(1)),
}

# Operator → (kind, elementary operations per element of its largest tensor).
VECTOR: dict[str, tuple[str, int]] = {
    "aten::native_batch_norm": ("norm", 5),
    "aten::_native_batch_norm_legit": ("norm", 5),
    "aten::_native_batch_norm_legit_no_training": ("norm", 2),
    "aten::_batch_norm_with_update": ("norm", 5),
    "aten::_batch_norm_no_update": ("norm", 2),
    "aten::cudnn_batch_norm": ("norm", 5),
    "aten::native_batch_norm_backward": ("norm", 8),
    "aten::batch_norm_backward": ("norm", 8),
    "aten::native_layer_norm": ("norm", 5),
    "aten::native_layer_norm_backward": ("norm", 8),
    "aten::native_group_norm": ("norm", 5),
    "aten::native_group_norm_backward": ("norm", 8),
    "aten::_fused_rms_norm": ("norm", 4),
    "aten::_fused_rms_norm_backward": ("norm", 7),
    "aten::_weight_norm_interface": ("norm", 3),
    "aten::_weight_norm_interface_backward": ("norm", 6),
    "aten::_softmax": ("softmax", 5),
    "aten::_safe_softmax": ("softmax", 5),
    "aten::_log_softmax": ("softmax", 5),
    "aten::_softmax_backward_data": ("softmax", 3),
    "aten::_log_softmax_backward_data": ("softmax", 3),
    "aten::nll_loss_forward": ("reduction", 1),
    "aten::nll_loss_backward": ("elementwise", 1),
    "aten::nll_loss2d_forward": ("reduction", 1),
    "aten::nll_loss2d_backward": ("elementwise", 1),
    "aten::max_pool2d_with_indices_backward": ("pooling", 1),
    "aten::max_pool3d_with_indices_backward": ("pooling", 1),
    "aten::_adaptive_avg_pool2d": ("pooling", 1),
    "aten::_adaptive_avg_pool2d_backward": ("pooling", 1),
    "aten::_adaptive_avg_pool3d": ("pooling", 1),
    "aten::_adaptive_avg_pool3d_backward": ("pooling", 1),
    "aten::adaptive_max_pool2d": ("pooling", 1),
    "aten::adaptive_max_pool2d_backward": ("pooling", 1),
    "aten::native_dropout": ("elementwise", 2),
    "aten::native_dropout_backward": ("elementwise", 2),
    "aten::upsample_nearest2d": ("elementwise", 1),
    "aten::upsample_nearest2d_backward": ("elementwise", 1),
    "aten::upsample_bilinear2d": ("elementwise", 7),
    "aten::upsample_bilinear2d_backward": ("elementwise", 7),
    "aten::_upsample_bilinear2d_aa": ("elementwise", 7),
    "aten::_upsample_bilinear2d_aa_backward": ("elementwise", 7),
    "aten::upsample_bicubic2d": ("elementwise", 30),
    "aten::upsample_bicubic2d_backward": ("elementwise", 30),
    "aten::_upsample_bicubic2d_aa": ("elementwise", 30),
    "aten::_upsample_bicubic2d_aa_backward": ("elementwise", 30),
    "aten::grid_sampler_2d": ("elementwise", 8),
    "aten::grid_sampler_2d_backward": ("elementwise", 16),
    "aten::linalg_vector_norm": ("reduction", 2),
    # Transcendental functions are polynomials of some ten terms, in any vector mathematics library.
    "aten::exp": ("elementwise", 10),
    "aten::log": ("elementwise", 10),
    "aten::erf": ("elementwise", 15),
    "aten::tanh": ("elementwise", 12),
    "aten::sigmoid": ("elementwise", 12),
    "aten::silu": ("elementwise", 13),
    "aten::silu_backward": ("elementwise", 17),
    "aten::gelu": ("elementwise", 18),
    "aten::gelu_backward": ("elementwise", 32),
    "aten::glu": ("elementwise", 4),
    "aten::glu_backward": ("elementwise", 6),
    "aten::embedding_dense_backward": ("gather", 1),
    "aten::_embedding_bag": ("gather", 1),
    **{
        f"aten::{name}": ("reduction", 1)
        for name in (
            "sum", "mean", "amax", "amin", "max", "min", "prod", "argmax", "argmin", "any", "all", "var_mean", "var",
            "std", "std_mean", "norm", "cumsum", "cumprod", "logsumexp", "topk", "sort", "median", "count_nonzero",
        )
    },
    **{
        f"aten::{name}": ("elementwise", 1)
        for name in (
            "bernoulli_", "bernoulli", "uniform_", "normal_", "random_", "rand", "randn", "randint", "randperm",
            "rand_like", "randn_like", "arange", "linspace", "tril", "triu", "one_hot", "elu_backward",
            "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward",
            "leaky_relu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward", "softplus_backward",
            "mish_backward", "hardswish", "_prelu_kernel", "_prelu_kernel_backward", "log_sigmoid_forward", "log_sigmoid_backward",
            "rrelu_with_noise", "rrelu_with_noise_backward", "masked_fill", "masked_fill_", "addcmul", "addcdiv", "lerp",
            "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss", "mse_loss", "mse_loss_backward",
            "binary_cross_entropy_with_logits", "binary_cross_entropy", "binary_cross_entropy_backward",
        )
    },
}  # fmt: skip

# Pooling with a kernel: operations per output element = size of the kernel, third argument on.
POOLING = (
    "aten::max_pool2d_with_indices",
    "aten::max_pool3d_with_indices",
    "aten::avg_pool2d",
    "aten::avg_pool3d",
    "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
)
# No arithmetic: traffic only.
COPIES = frozenset(
    f"aten::{name}"
    for name in (
        "clone", "copy_", "_to_copy", "cat", "stack", "constant_pad_nd", "reflection_pad2d", "reflection_pad2d_backward",
        "replication_pad2d", "replication_pad2d_backward", "roll", "flip", "repeat", "im2col", "col2im", "unfold_backward",
        "slice_backward", "select_backward", "pixel_shuffle", "pixel_unshuffle", "native_channel_shuffle",
        "channel_shuffle", "fill_", "zero_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "scalar_tensor",
        "new_zeros", "new_ones", "new_full", "slice_scatter", "select_scatter", "as_strided_scatter", "diagonal_backward",
        "index_fill_", "fill", "eye", "repeat_interleave", "contiguous", "resize_", "split_with_sizes_copy",
        "unsafe_split", "unsafe_chunk", "block_diag", "rot90", "tile", "copy", "unfold_copy", "meshgrid",
    )
)  # fmt: skip
# Read as much as they write, whatever the size of the table read from.
GATHERS = frozenset(
    f"aten::{name}"
    for name in (
        "embedding", "index", "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "index_put",
        "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put", "index_add", "index_add_",
        "index_select_backward", "take", "take_along_dim", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate",
    )
)  # fmt: skip
# Neither arithmetic nor traffic: views and allocations that write nothing.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "view", "_unsafe_view", "_reshape_alias", "reshape", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze",
        "slice", "select", "split", "split_with_sizes", "unbind", "detach", "detach_", "alias", "as_strided", "unfold",
        "diagonal", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "chunk",
        "view_as_real", "view_as_complex", "real", "imag", "narrow", "flatten", "movedim", "swapaxes", "expand_as",
        "_conj", "positive", "unsafe_split_with_sizes", "lift", "squeeze_", "unsqueeze_", "transpose_", "t_", "set_",
        "as_strided_", "_local_scalar_dense", "item", "sym_size", "is_same_size", "_assert_async", "result_type",
    )
)  # fmt: skip
WRITE_ONLY = frozenset(("aten::fill_", "aten::zero_", "aten::bernoulli_", "aten::uniform_", "aten::normal_"))


def fft_flops(elements: int, length: int) -> int:
    """5 N log2 N per complex transform of length N, the convention of FFTW's authors."""
    return round(5 * elements * math.log2(max(length, 2)))
