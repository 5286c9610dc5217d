"""Reasons for the remaining errors, by source: text for docs/accuracy.md, next to the rules that it explains."""

from __future__ import annotations

# The start of a source's title → a paragraph. The longest start that matches applies.
REASONS: dict[str, str] = {
    "timm, inference, rtx3090": (
        "If the same model is fitted and scored on all rows, 8 % (channels last) and 6 % remain. So the structure of the "
        "model causes most of the error; using only 25 rows adds two percentage points. The model does not know which "
        "kernels the library chooses. EfficientFormerV2 runs five times slower than its operators explain, in both "
        "layouts, for an unknown reason. ConvMixer's 9 × 9 depthwise convolutions run three times slower with channels "
        "last. RegNets' grouped convolutions are a third slower there at some group widths. EvoNorms and CaiT's talking "
        "heads are a third faster than their separate passes. [Calibration](decisions/calibration.md) lists structures "
        "that did not help."
    ),
    "timm, training, rtx3090, nhwc": (
        "With channels last, cuDNN's gradients of grouped convolutions (version of 2022) run on vector units below 32 "
        "groups. The model counts them as depthwise convolutions, but at some widths they are twice as slow. TResNet's "
        "in-place norms prevent fast kernels completely (3.9 times the time of the other layout, measured). Channel "
        "counts that are not multiples of eight do not explain errors; see [calibration](decisions/calibration.md)."
    ),
    "timm, training, rtx3090, nchw": (
        "Without the rates of the other layout, 25 rows are too few for grouped convolutions and group norms, which stay "
        "at round numbers."
    ),
    "timm, inference, i7-12700h": (
        "Gathers and small convolutions of Swin and mixnet run as compiler-generated code, which is a third slower than "
        "one pass."
    ),
    "NVIDIA": (
        "At batch 1 to 8, the GPU waits for the host to launch operators: 49 to 62 µs each on these machines of 2020 to "
        "2022. V100 and T4 each get the host time that the other's rows show. The interval allows for other hosts (a "
        "standard deviation of 0.4 in the logarithm), so it contains every row of this one publisher. The rates for TF32 training on an A100 come from half precision on another card, and "
        "those for fp32 training on a V100 from cuDNN 5.1. Eight GPUs lose 13 to 16 % in half precision and 3 % in single "
        "precision. The causes are the exchange, the input and mutual waiting; the model uses one spread of steps for "
        "both."
    ),
    "CNNs": (
        "ResNet-18 is predicted a sixth too fast, and VGG-19 a seventh too slow. Here, Winograd's gain is one number for "
        "all sizes, and its loss on small images depends only on the number of rows. The GTX 1080 is not in the "
        "catalogue, so its rows are left out."
    ),
    "NeuSight": (
        "Predictions for the P4 are off by a quarter: its kernels were timed separately, but its networks ran at the "
        "clock that 75 W allow. Compiled networks run faster than one pass between products explains. The prediction of a "
        "left-out device depends on how board power limits the matrix rate. Tensor-parallel rows are not predicted."
    ),
    "DeepBench": (
        "The median is below 10 %. Large errors come from the choice of algorithm (Winograd, FFT, implicit GEMM), which "
        "the shapes alone do not determine. For example, strided data gradients in emulated half precision on a P100 take "
        "up to twenty times longer. A Gaussian process over the residuals of the calibration reduced the error of "
        "convolutions from 25 to 17 %. The residuals of the same shape on other cards indicate the algorithm, especially "
        "on cards with the same chip. All-reduces on a KNL cluster fall to half their rate above 100 MB, and Baidu's ring "
        "starts with 30 ms. Rows of other sizes do not show this, so all-reduces have no interval."
    ),
    "TensorFlow": ("Curves of the distributed runs have no two-GPU row; their second row is the eight-GPU one."),
    "PALEO": (
        "Chronograd reproduces PALEO's figures. PALEO's paper compares them with measurements of others, so PALEO's own "
        "error remains."
    ),
    "CIFAR ResNets": (
        "Epoch times of one run vary by a factor of two to three, so the noise is as large as the error. The source does "
        "not state which network its ResNet-18 is. As torchvision's with a CIFAR stem, it is predicted at half the time."
    ),
    "an EPYC's two cores": (
        "Ranks and calibration now keep freed memory ([why](decisions/memory.md)). Before, the same 24 networks were 16.4 "
        "% off in inference with one process and 11.3 % with two. In training they were 8.8 % and 12.1 % off. All four "
        "figures are at the speed of the calibration. With two threads in one process, times jump between two levels that "
        "last about ten seconds each: 54 and 98 ms for GhostNet. We saw no page faults, context switches or other work. "
        "Two processes of one thread, which share no data, do not show this. Perhaps the host moved a core away from the "
        "other's cache. MobileNet-V3, GhostNet, FBNet and MNASNet are predicted up to a fifth too fast: depthwise "
        "convolutions are one class here, for all image sizes."
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, eager", "an EPYC's two cores, training, eager"),
        "Half of the cases are within 7 %. Three networks at batch 1 run in two thirds of the predicted time, because "
        "PyTorch has a special kernel for a convolution of one small image. MobileNet-V3's depthwise gradients are "
        "predicted up to 42 % too fast, and LeNet at batch 1 a third: the model ignores work between operators. We chose "
        "the 19 pieces for small images after we had seen which of these networks were off.",
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, compiled", "an EPYC's two cores, training, compiled"),
        "The machine's own calibration used channels last, the layout that the compiler gives to convolutions. We set two "
        "numbers by hand on these networks, and did not fit them again: operators start in half the time, and gradients "
        "of max poolings are slow code. At that time, freed memory was still returned in every step, and the errors were "
        "12.0 and 15.7 %. ResNets at batch 64 gain more than predicted.",
    ),
}


def reason(title: str) -> str:
    """Return the paragraph for a source's title; "" if there is none."""
    fitting = [start for start in REASONS if title.startswith(start)]
    return REASONS[max(fitting, key=len)] if fitting else ""
