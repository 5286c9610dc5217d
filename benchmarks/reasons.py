"""What stands in the way of a better figure, by source: text for docs/accuracy.md, kept beside the rules it explains."""

from __future__ import annotations

# The start of a source's title → a paragraph; the longest start that fits is taken.
REASONS: dict[str, str] = {
    "timm, inference, rtx3090": (
        "Fitted and scored on all rows the same model leaves 8 % (channels last) and 6 %: structure is most of the error, 25 "
        "rows cost two more. What it lacks is the choice of kernel. EfficientFormerV2 runs five times slower than its "
        "operators explain in both layouts (cause not found); ConvMixer's 9 × 9 depthwise convolutions run three times "
        "slower with channels last; RegNets' grouped convolutions lose a third there at some group widths; EvoNorms and "
        "CaiT's talking heads are a third faster than their separate passes. Structures that were tried and did not "
        "help are listed in [calibration](decisions/calibration.md)."
    ),
    "timm, training, rtx3090, nhwc": (
        "cuDNN's gradients of grouped convolutions with channels last (2022's version) run on vector units below 32 groups, and "
        "are counted with depthwise ones; at some widths they are twice as slow still. TResNet's in-place norms make it fall back "
        "altogether (measured 3.9 times the other layout). Channel counts that are no multiple of eight were tried and tell "
        "nothing; see [calibration](decisions/calibration.md)."
    ),
    "timm, training, rtx3090, nchw": (
        "Without the other layout's rates 25 rows leave grouped convolutions and group norms to round numbers."
    ),
    "timm, inference, i7-12700h": (
        "Swin's and mixnet's gathers and small convolutions are code that the compiler generates, a third slower than one pass."
    ),
    "NVIDIA": (
        "At batch 1 to 8 the host issues operators and the GPU waits: 50 to 59 µs each on these machines of 2020 to 2022. Other "
        "hosts are as different as the interval says there (a standard deviation of 0.4 in the logarithm), so that it holds "
        "every row of this one publisher. TF32 training on an A100 is learnt from half precision on another card; fp32 "
        "training on a V100 from cuDNN 5.1. Eight GPUs lose 13 to 16 % in half precision and 3 % in single to the exchange, the "
        "input and each other: one spread of steps serves both here."
    ),
    "CNNs": (
        "ResNet-18 is predicted a sixth too fast, VGG-19 a seventh too slow: Winograd's gain and what small "
        "images cost it are one number here for all sizes but rows. The GTX 1080 is not in the catalogue, so its rows are left out."
    ),
    "NeuSight": (
        "The P4 is a quarter off: its kernels were timed one at a time, its networks at the clock that 75 W allow. "
        "Compiled networks run faster than one pass between products explains. Leaving a device out rests on how board power "
        "limits the matrix rate. Tensor parallel rows are not predicted."
    ),
    "DeepBench": (
        "The median is below 10 %; the tail is the choice of algorithm (Winograd, FFT, implicit GEMM), which shapes alone do not "
        "tell: strided data gradients in emulated half precision on a P100 take up to twenty times longer. A Gaussian process over "
        "what the calibration leaves took convolutions from 25 to 17 %; what other cards' tables leave of the same shape tells the "
        "algorithm, most of all those of the same chip. All-reduces on a KNL cluster fall to half their rate above 100 MB, and "
        "Baidu's ring begins with 30 ms: a row of another size cannot tell. No interval is stated for them."
    ),
    "TensorFlow": "Curves of the distributed runs have no two-GPU row; their second row is the eight-GPU one.",
    "PALEO": (
        "Its figures are reproduced; what it was compared with is measured on other people's machines, and its own error stays."
    ),
    "CIFAR ResNets": (
        "Epoch times of one run jump two to three times, so the noise is of the size of the error. The source does not say which "
        "network its ResNet-18 is: taken as torchvision's with a CIFAR stem it comes out at half the time."
    ),
    "an EPYC's two cores": (
        "Since ranks and calibration keep the memory that they free (docs/decisions/memory.md): before, the same 24 networks were 16.4 and "
        "11.3 % off in inference with one and two processes, 8.8 and 12.1 % in training, at the pace of the calibration. With two threads in "
        "one process times jump between two levels for some ten seconds each, 54 and 98 ms for GhostNet, without page faults, switches or other "
        "work; two processes of one thread, which share no data, show none of it: it looks as if the host moved a core away from the other's "
        "cache. MobileNet-V3, GhostNet, FBNet and MNASNet are up to a fifth too fast: depthwise convolutions are one class here, whatever their image."
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, eager", "an EPYC's two cores, training, eager"),
        "Half of the cases are within 7 %. Three networks at batch 1 run in two thirds of the time predicted: PyTorch takes a convolution of one "
        "small image by a kernel of its own. MobileNet-V3's depthwise gradients are up to 42 % too fast, and LeNet at batch 1 a third: what a step "
        "does between its operators. The 19 pieces for small images were chosen after it was seen which of these networks were off.",
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, compiled", "an EPYC's two cores, training, compiled"),
        "By the machine's own calibration with channels last, as the compiler lays convolutions out. Two numbers were set by hand on these "
        "networks, when memory was still given back in every step, and 12.0 and 15.7 % were left: operators begin in half the time, and gradients "
        "of max poolings are slow code. They were not fitted again. ResNets at batch 64 gain more than predicted.",
    ),
}


def reason(title: str) -> str:
    fitting = [start for start in REASONS if title.startswith(start)]
    return REASONS[max(fitting, key=len)] if fitting else ""
