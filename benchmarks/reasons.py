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
    "this machine's CPU": (
        "Two shared cores: the spread of the clock is part of every error here, and none below it is claimed. Three calibrations within "
        "an hour gave mean errors of 14, 14, 12 and 11 %, of 14, 23, 16 and 9 %, and, while something else ran unseen, of 80 % with two "
        "processes: since then a calibration says what share of the cores others used. Large parameters (AlexNet) are updated twice as "
        "slowly as predicted: their memory is given back to the system in every step."
    ),
    **dict.fromkeys(
        ("this machine's CPU, inference, eager", "this machine's CPU, training, eager"),
        "Steps of 1 to 300 ms; images of 28 × 28 to 64 × 64. At batch 1 ResNets of 8 and 20 layers and MobileNet-V3 are 1.6 to 1.9 times "
        "faster in inference than predicted, for two reasons. Without groups and up to 3 × 3 PyTorch takes a convolution of one small image "
        "(20,480 numbers and less) by a kernel of its own, else by oneDNN's. And what begins a pass was counted with operators: a batch norm "
        "with 0.36 ms, a product with 0.20. Calibrations made since fit it apart. By one thread's processor time the spread of blocks left out falls "
        "from 14.6 to 13.2 % in training, from 14.8 to 12.3 % in inference. MobileNet-V3 trains slower since gradients of "
        "depthwise weights run at 0.2 to 2.4 GFLOP/s on a core for 5 × 5 kernels, and for 3 × 3 on 2 × 2 images, where else 3 × 3 runs at 3.5 to 17. "
        "With its other gradients such convolutions are over half of the convolutions' backward at batch 16, and here one class with 3 × 3. Of "
        "SqueezeNet no cause was found.",
    ),
    **dict.fromkeys(
        ("this machine's CPU, inference, compiled", "this machine's CPU, training, compiled"),
        "What a compiled pass costs beside its operators in training, 80 of an optimizer's, was fitted to these networks. With one left out in "
        "turn (78 to 99 of them) training is 28.6 % off (bias −10 %); without it 36.3 %. Nothing was fitted in inference: the input is now "
        "predicted with what the machine's own calibration measured, compiled or not, as the update is. In training the compiler gains little "
        "on this CPU: compiled steps take 0.8 to 1.9 times the eager ones. In inference it gains 1.4 to 3.6 times at batch 64, mostly more than "
        "predicted, and 1.0 to 1.7 at batch 1. Rounds of a case are 1.3 times apart in the median, and "
        "of eight among 72 cases more than 3.7 times.",
    ),
    "an EPYC's two cores": (
        "A virtual machine, whose pace changed by a quarter between rounds with nothing else on it: rows at the pace of the calibration "
        "take every time to one pace. The spread of three rounds is then up to a third for networks of many small operators. At batch 8 "
        "MobileNets, MobileViT and EfficientNet are up to 42 % too fast in inference, with one process, where LCNet and MNASNet are a "
        "third too slow: depthwise convolutions are one class here, whatever their image."
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, eager", "an EPYC's two cores, training, eager"),
        "MobileNet-V3's depthwise gradients are a quarter too fast, and LeNet at batch 1 a third: what a step does between its operators. "
        "The 19 pieces for small images were chosen after it was seen which of these networks were off.",
    ),
    **dict.fromkeys(
        ("an EPYC's two cores, inference, compiled", "an EPYC's two cores, training, compiled"),
        "By the machine's own calibration with channels last, as the compiler lays convolutions out: by the one with channels first, and what "
        "other devices lend, inference was 28 % off and training 21. Two numbers were set by hand on these networks: operators begin in half the "
        "time, and gradients of max poolings are slow code. ResNets at batch 64 gain more than predicted.",
    ),
}


def reason(title: str) -> str:
    fitting = [start for start in REASONS if title.startswith(start)]
    return REASONS[max(fitting, key=len)] if fitting else ""
