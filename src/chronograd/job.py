"""The job file: the network, the data, the training and the hardware. Counting, predicting, measuring and training read the
same file.

`load` reads YAML, applies overrides such as `a.b=c`, and returns a validated, frozen `Job`. Nothing starts and no file is
written before the job is valid.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from chronograd import files, inputs, trust
from chronograd.errors import InputError, JobError, did_you_mean, problems, shown
from chronograd.recipes import ALGORITHMS, RECIPES, REPLAYS, recipe
from chronograd.words import how_many, listed

BACKENDS = (
    *("single", "ddp", "fsdp", "tensor_parallel", "data_parallel"),
    *("parameter_server", "horovod", "tf_mirrored", "tf_multiworker"),
)
# Backends whose ranks store parts of parameters.
SHARDED = ("fsdp", "tensor_parallel")
# Backends whose ranks all have the whole batch.
WHOLE_BATCH = ("parameter_server", "tensor_parallel")


def _known_backend(name: str) -> str:
    if name in BACKENDS or name in (others := trust.plugins("backends")):
        return name
    raise ValueError(f"{shown(name)} is not one of its values{did_you_mean(name, (*BACKENDS, *others))}")


BackendName = Annotated[str, AfterValidator(_known_backend), WithJsonSchema({"enum": list(BACKENDS), "type": "string"})]
# A job file has a few hundred bytes.
MAX_JOB_BYTES = 32_000
# Of a Python file whose networks an error message lists.
MAX_CODE_BYTES = 1_000_000
MAX_NAMES = 8
# Each class has a name in memory; the largest published image data sets have tens of thousands.
MAX_CLASSES = 1_000_000
# Data set of synthetic text.
TOKENS = "tokens"
# Real text: a novel in this package, and files of the user.
NOVEL, TEXT_PREFIX = "pride-and-prejudice", "text:"
# Random values for any inputs of the network.
INPUTS = "inputs"
Given = TypeVar("Given")


def is_real_text(name: str) -> bool:
    """Return whether a data set is real text, with bytes to count.

    >>> is_real_text("text:novels/emma.txt"), is_real_text("tokens")
    (True, False)
    """
    return name == NOVEL or name.startswith(TEXT_PREFIX)


def _checked(check: Callable[[Given], None], given: Given) -> Given:
    """Return a value, or raise its InputError as the ValueError of a field."""
    try:
        check(given)
    except InputError as error:
        raise ValueError(f"{error.message}: {error.hint}") from None
    return given


WSD_STAYS = 0.8  # share of the run after which the rate of wsd falls, if the job does not state it


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Section(_Model):
    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, given: Any, info: ValidationInfo) -> Any:
        is_truth = any(isinstance(one, bool) for one in (given if isinstance(given, list | tuple) else [given]))
        annotation = cls.model_fields[info.field_name].annotation if info.field_name else bool
        if is_truth and annotation is not bool and bool not in get_args(annotation):
            values = listed(_words_of(annotation), "or")
            raise ValueError(
                f"this field {f'takes {values}' if values else 'cannot be true or false'}, got {shown(given)}"
            )
        return given


def _words_of(annotation: Any) -> list[str]:
    """Return the words that a field allows, such as `none, optimizer, all`; nothing for another kind of field.

    >>> _words_of(Literal["none", "all"] | None), _words_of(int)
    (['none', 'all'], [])
    """
    own = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [value for value in own if isinstance(value, str)]
    return [word for part in own for word in _words_of(part)]


class Network(_Section):
    """The network."""

    name: str = Field(min_length=1)
    """A built-in network, torchvision:NAME, timm:NAME, package.module:function, or the path of a saved trace."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the network's function. The number of classes and the input shape come from the data."""
    weights: str | None = None
    """Initial weights: a run directory, a safetensors or PyTorch file, or `torchvision` or `timm` for their published weights.
    """
    # Fields that are not set are left out, so that jobs from older versions stay the same.
    inputs: tuple[str, ...] = Field((), exclude_if=lambda given: not given)
    """Inputs of the network if it does not take one tensor per sample: NAME:SHAPE:DTYPE for each, or one
    FILE.py:example_inputs.
    """
    head: Literal["new", "kept"] | None = Field(None, exclude_if=lambda given: given is None)
    """The last layer of these weights: `new` gives it random values, `kept` trains it further. By default it is new if the
    weights were trained on other classes.
    """

    @field_validator("inputs")
    @classmethod
    def _readable(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return _checked(inputs.check, given)

    @field_validator("weights")
    @classmethod
    def _weights_named(cls, given: str | None) -> str | None:
        if given is not None and given.lower() in ("", "none", "random", "scratch"):
            raise ValueError(f"{given!r} names no weights: write null to train from random values")
        return given

    @model_validator(mode="after")
    def _head_of_weights(self) -> Self:
        if self.head is not None and self.weights is None:
            raise ValueError(f"head is {self.head} without weights: name them in network.weights, or leave head out")
        return self


class Data(_Section):
    """The training data."""

    name: str = Field(min_length=1)
    """A data set: digits, fashion-mnist, cifar10, cifar100, synthetic, folder:PATH, imagenet:PATH, decathlon:SET, voc:PATH,
    coco:PATH, open-images:PATH, pride-and-prejudice, text:PATH, tokens, or inputs (random values of network.inputs). For an
    agent, an environment: gymnasium:NAME or atari:GAME.
    """
    shape: tuple[int, ...] | None = None
    """Shape of one synthetic sample; for text the number of tokens, such as [1024]."""
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] | None = None
    """Number of classes of synthetic data; for text the vocabulary size."""
    tokenizer: Literal["bytes", "pairs"] = Field("bytes", exclude_if=lambda given: given == "bytes")
    """Tokens of real text: bytes, or pairs of bytes and tokens that are frequent in the training text (byte-pair encoding)."""
    class_names: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """For images with boxes: use only objects of these classes, in this order; all classes by default."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Number of training samples to use, the first of a fixed shuffle; all by default."""
    epoch_samples: Annotated[int, Field(ge=1)] | None = Field(None, exclude_if=lambda given: given is None)
    """Rows of real text in an epoch, so that a test may follow a part of the text. The next epoch goes on where the last one
    ended; by default an epoch has all training samples.
    """
    skip: int = Field(0, ge=0)
    """Number of samples of that shuffle to skip first, so that two jobs can use the same data set without a common sample."""
    test_samples: Annotated[int, Field(ge=1)] | None = None
    """Number of test samples to use, the first of a fixed shuffle; all by default."""
    image_size: Annotated[int, Field(ge=1)] | None = None
    """Side of square images: resize the shorter side to it, then crop the center. Default: 224 for folders, 72 for decathlon
    sets.
    """
    normalisation: Literal["own", "imagenet", "signed", "unit", "raw"] = "own"
    """Normalisation of pixels: `own` and `imagenet` subtract a mean and divide by a deviation. `signed` is −1…1, which networks
    trained by TensorFlow often expect; `unit` is 0…1, `raw` 0…255.
    """
    label_noise: float = Field(0.0, ge=0, le=1)
    """Fraction of training labels replaced by random labels, drawn from the distribution of all training labels."""
    long_tail: float = Field(0.0, ge=0)
    """Exponent s of Zipf's law: the number of images falls with the rank r of a class as `r ** -s`. Needs `samples`."""
    resampling: Literal["natural", "square_root", "uniform"] = "natural"
    """Sampling of classes in an epoch: in proportion to their images, to the square root of that, or all equally often."""
    labels: str | None = None
    """A file of training samples and labels, such as `chronograd label` writes, to use instead of the data set's labels."""
    loading: Literal["auto", "resident", "streaming"] = "auto"
    """`resident` stores all images on the training device, `streaming` decodes them during training; `auto` decides by their
    size.
    """

    @field_validator("shape")
    @classmethod
    def _positive(cls, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if shape is not None and (not shape or min(shape) < 1):
            raise ValueError("a shape has one or more dimensions, each at least 1")
        return shape


class Augmentation(_Section):
    """Random changes to each training image, new in each epoch, in this order. They run on the training device."""

    crop: int = Field(0, ge=0)
    """Pad every side by this number of black pixels, then crop to the image's size at a random place."""
    resized_crop: Annotated[float, Field(gt=0, le=1)] | None = None
    """Crop a random rectangle with at least this fraction of the area and an aspect ratio of 3/4 to 4/3, and resize it."""
    flip: bool = False
    """Flip left to right with probability 1/2."""
    cutout: int = Field(0, ge=0)
    """Side of a square of zeros at a random place, which may extend beyond the image; applied after normalisation."""
    pixel_dropout: float = Field(0.0, ge=0, lt=1)
    """Fraction of single pixels set to zero in all channels; applied after normalisation."""
    expand: float = Field(4.0, ge=1, le=16)
    """For images with boxes: largest side of the canvas on which an image is placed, as a multiple of the image's side; 1 for
    none.
    """
    copies: int = Field(1, ge=1)
    """Copies of each sample in a batch, each with different random changes (batch augmentation, M)."""

    @property
    def is_none(self) -> bool:
        """Return whether images stay the same in all epochs."""
        return self == Augmentation()


# Fields of `training` that had another name: the new one, and the new value of each old value.
_OLD_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "frozen_norm": ("freeze_norm", {"stored": None, "batch": False}),
}


def with_new_names(training: dict[str, Any]) -> dict[str, Any]:
    """Return fields of `training` as they are called now; leave out those that have their default.

    >>> with_new_names({"batch": 64, "frozen_norm": "batch"}), with_new_names({"frozen_norm": "stored"})
    ({'batch': 64, 'freeze_norm': False}, {})
    """
    renamed = dict(training)
    for old, (new, values) in _OLD_NAMES.items():
        if isinstance(renamed.get(old), str) and renamed[old] in values:
            value = values[renamed.pop(old)]
            if value is not None:
                renamed.setdefault(new, value)
    return renamed


class ParameterGroup(_Section):
    """Parameters with a different learning rate or weight decay."""

    match: str = Field(min_length=1)
    """A pattern of parameter names, such as `layer4.*` or `*.bias`."""
    learning_rate_factor: float = Field(1.0, ge=0)
    """Factor on the learning rate; 0 freezes the parameters."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """Weight decay of these parameters instead of the common one."""


class Training(_Section):
    """The training settings. Fields that you leave out come from the recipe."""

    recipe: str = "sgd-momentum"
    """A named set of defaults for the fields below."""
    epochs: int = Field(10, ge=1)
    """Maximum number of passes over the training samples."""
    batch: int = Field(64, ge=1)
    """Global batch: samples per step over all ranks; for parameter_server the minibatch of one learner."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop when the test accuracy reaches this, as a fraction."""
    target_bits_per_byte: Annotated[float, Field(gt=0)] | None = Field(None, exclude_if=lambda given: given is None)
    """For real text: stop when the loss on the test split is at most this number of bits per byte."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seeds the initial weights and the order of samples."""
    optimizer: Literal["sgd", "adamw", "adadelta", "rmsprop"] = "sgd"
    """Update rule."""
    learning_rate: float = Field(0.1, gt=0)
    """Peak learning rate."""
    scale_by_ranks: tuple[Literal["learning_rate", "epochs"], ...] = ()
    """Settings that depend on `cluster.count`: the learning rate is multiplied by it, the epochs are divided by it and rounded
    up.
    """
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of SGD, beta1 of AdamW, rho of Adadelta, decay of both running means of RMSProp."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty of SGD, decoupled decay of AdamW."""
    schedule: Literal["constant", "multi_step", "cosine", "one_cycle", "wsd"] = "constant"
    """Shape of the learning rate over the run."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Fraction of the run over which the rate rises linearly to its peak."""
    milestones: tuple[float, ...] = ()
    """Fractions of the run at which multi_step multiplies the rate by gamma; the first is where the rate of wsd starts to fall."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Factor of multi_step."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy."""
    augmentation: Augmentation = Field(default_factory=lambda: Augmentation())
    """Random changes to training images."""
    trainable: Literal["all", "head"] = "all"
    """`head` freezes all but the last linear layer; without augmentation the frozen part then runs only once per image."""
    freeze_norm: bool | None = Field(None, exclude_if=lambda given: given is None)
    """true: batch norm uses the statistics stored with the weights in all layers. Its scale and shift are still trained.
    false: it uses those of each batch, also in frozen layers. null: stored ones in frozen layers only.
    """
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """Exceptions to learning rate and weight decay; the first match applies."""
    layer_decay: float = Field(1.0, gt=0, le=1, exclude_if=lambda given: given == 1)
    """Factor on the learning rate from each block of layers to the one before it; the last layer has the whole rate."""
    accumulation: int = Field(1, ge=1)
    """Number of parts of a rank's batch; gradients of the parts are added up before the update."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of a running mean of the weights; evaluation then uses the mean. 0 for none."""
    loss: str = Field("cross_entropy", exclude_if=lambda given: given == "cross_entropy")
    """Loss of a network on network.inputs: cross_entropy, mse (against an input of the output's shape, else a target), sum, or
    FILE.py:NAME, a function (outputs, inputs) that returns one number.
    """
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Precision of matrix operations; below fp32 and tf32, training uses autocast."""
    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of parameters and buffers. bf16 with precision bf16 is pure bf16: everything is bf16, without autocast."""
    channels_last: bool = False
    """Store images (NHWC), volumes (NDHWC) and the weights of convolutions as channels last."""
    compile: bool | Literal["cuda-graphs"] = False
    """true: run the network through torch.compile. cuda-graphs: record each pass once and launch it as one graph, without a
    compiler (NVIDIA GPUs).
    """
    activation_checkpointing: Literal["none", "blocks"] = "none"
    """Store only the inputs of repeated blocks, and run each block again before its backward pass."""
    zero_stage: int = Field(0, ge=0, le=3)
    """ZeRO: shard the optimizer state over the ranks (1), also the gradients (2), also the parameters (3). Backend fsdp trains with 2
    and 3, which is its default. Others predict it only.
    """
    checkpoint_every: int = Field(1, ge=1)
    """Epochs between checkpoints."""
    evaluate_every: int = Field(1, ge=1)
    """Epochs between evaluations on the test split; the last epoch is always evaluated."""
    noise_scale_every: int = Field(0, ge=0)
    """Steps between measurements of the gradient noise scale, with single and ddp; 0 for none. Training stays the same."""

    @model_validator(mode="before")
    @classmethod
    def _from_recipe(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        given = with_new_names(given)
        name = given.get("recipe", "sgd-momentum")
        if not isinstance(name, str) or name not in RECIPES:
            return given
        merged = {**recipe(name), **given}
        own, stated = recipe(name).get("augmentation"), given.get("augmentation")
        if own and isinstance(stated, dict):
            merged["augmentation"] = {**own, **stated}
        return merged

    @field_validator("recipe")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in RECIPES:
            raise ValueError(f"unknown recipe {name!r}{did_you_mean(name, RECIPES)}")
        return name

    @field_validator("loss")
    @classmethod
    def _known_loss(cls, given: str) -> str:
        return _checked(inputs.check_loss, given)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        if self.schedule == "multi_step" and not self.milestones:
            raise ValueError("schedule multi_step needs milestones, such as [0.5, 0.75]")
        if list(self.milestones) != sorted(self.milestones) or any(not 0 < m < 1 for m in self.milestones):
            raise ValueError("milestones are rising shares of the run between 0 and 1")
        if self.compile == "cuda-graphs" and self.accumulation > 1:
            raise ValueError("compile is cuda-graphs, whose gradients last until the next pass: write accumulation=1")
        if self.param_dtype == "bf16" != self.precision:
            raise ValueError(f"param_dtype is bf16 and precision {self.precision}: also write training.precision=bf16")
        return self

    @property
    def is_pure(self) -> bool:
        """Return whether everything is stored and computed in the type of the parameters, without autocast."""
        return self.param_dtype != "fp32"

    @property
    def precision_name(self) -> str:
        return precision_name(self.precision, self.param_dtype)

    @property
    def images_per_step(self) -> int:
        """Return the images per step over all ranks: the batch times the copies of each sample."""
        return self.batch * self.augmentation.copies

    @property
    def optimizer_kind(self) -> str:
        """Return the kind of optimizer state: a key of `predict.memory.OPTIMIZER_STATES`."""
        return "sgd-momentum" if self.optimizer == "sgd" and self.momentum > 0 else self.optimizer


class Cluster(_Section):
    """The hardware."""

    device: str = Field("local", min_length=1)
    """A device of the catalogue (`chronograd devices`), `local`, or a device file."""
    count: int = Field(1, ge=1, le=100_000)
    """Number of devices; one rank each."""
    per_node: Annotated[int, Field(ge=1)] | None = None
    """Devices per node; the device's usual number by default."""
    link: str | None = None
    """Link between nodes (`chronograd devices --links`); by default the usual one of the device."""
    intra_link: str | None = None
    """Link between the devices of a node; by default the usual one of the device."""
    host: str | Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Host that issues operators to a GPU, such as `epyc-7742`, or its microseconds per operator; by default the usual one of the
    device. Predicted only.
    """
    input_samples_per_s: Annotated[float, Field(gt=0)] | None = None
    """Samples per second that the input pipeline of a node delivers while training runs; unlimited by default. Predicted only.
    """
    step_sigma_log: Annotated[float, Field(ge=0, le=1)] | None = None
    """Variation of step times between ranks, which makes ranks wait: standard deviation of log(time). Default: the calibrated
    value, or 0.05 for GPUs. Predicted only.
    """
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads per rank; by default this machine's cores divided by its ranks."""
    price_usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one device per hour; from the price table by default."""
    layout: Layout | None = Field(None, exclude_if=lambda given: given is None)
    """Degrees by which the ranks of a large model share its work."""
    max_restarts: int = Field(0, ge=0, le=1000)
    """How often to restart all ranks from the newest checkpoint after one has failed, was killed or hung."""
    timeout_s: float = Field(1800.0, ge=1, le=1e6)
    """Seconds that ranks wait for each other in a collective. After that the run ends and names the missing ranks."""

    def threads_per_rank(self, cores: int, ranks_on_node: int) -> int:
        """Return the CPU threads per rank: the job's value, else the cores divided by the ranks on the node, at least 1."""
        return self.threads or max(1, cores // ranks_on_node)


class Layout(_Section):
    """The degrees by which the ranks of a large model share its work. Predicted only.

    The other ranks are data-parallel: their number is `cluster.count` / (tensor · pipeline · context). Experts are spread over
    ranks that are data- or context-parallel in the other layers.
    """

    tensor: int = Field(1, ge=1)
    """Ranks that share each matrix."""
    sequence: bool = True
    """Split norms and residuals along the sequence, if tensor is above 1 (sequence parallelism)."""
    pipeline: int = Field(1, ge=1)
    """Pipeline stages."""
    schedule: Literal["1f1b", "interleaved", "zero-bubble"] = "1f1b"
    """Order of the micro-batches in the stages. interleaved needs chunks above 1."""
    chunks: int = Field(1, ge=1)
    """Groups of layers of a stage, each followed by the next stage (virtual stages)."""
    stage_layers: tuple[Annotated[int, Field(ge=0)], ...] = ()
    """Number of layers of each stage; equal by default."""
    context: int = Field(1, ge=1)
    """Ranks that share each sequence."""
    expert: int = Field(1, ge=1)
    """Ranks that share the experts of a layer."""
    expert_tensor: Annotated[int, Field(ge=1)] | None = None
    """Ranks that share the matrices of an expert; by default as many as `tensor`."""
    shard_ranks: Annotated[int, Field(ge=1)] | None = None
    """Data-parallel ranks over which training.zero_stage shards, each such group with a copy (hybrid sharding); all by default."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.schedule == "interleaved") != (self.chunks > 1):
            raise ValueError(
                f"schedule is {self.schedule} and chunks is {self.chunks}: interleaved stages have 2 or more chunks, others 1"
            )
        if self.pipeline == 1 and self.chunks > 1:
            raise ValueError(f"chunks is {self.chunks} and pipeline is 1: write pipeline above 1, or leave chunks out")
        if self.stage_layers and len(self.stage_layers) != self.pipeline:
            raise ValueError(
                f"stage_layers has {how_many(len(self.stage_layers), 'numbers')} and pipeline is {self.pipeline}: write one per stage"
            )
        if self.stage_layers and self.chunks > 1:
            raise ValueError("stage_layers and chunks are both given: stages of several chunks are equal")
        return self


class LargeModel(_Section):
    """Storage and computation of a large model, named by its `config.json`. Predicted only."""

    attention: Literal["fused", "plain"] = "fused"
    """fused: one kernel that stores no scores, such as FlashAttention; plain: scores are stored for the backward pass."""
    loss: Literal["plain", "fused", "chunked"] = "plain"
    """plain: logits and their fp32 copy are stored; fused: logits are stored once; chunked: only a part of them at a time."""
    kernels: Literal["fused", "eager"] = "fused"
    """fused: norms and loss are one kernel each, as in Megatron; eager: several operators with fp32 copies, as in Transformers."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of attention and residuals; its masks are stored."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations that backward computes again: none, those between the matrices of attention, or those of whole layers."""
    gradient_dtype: Literal["fp32", "bf16"] | None = None
    """Type of stored gradients; by default fp32 with tensor or pipeline parallelism (Megatron), else that of the parameters."""
    optimizer_bits: Literal[8, 16, 32] | None = None
    """Bits of each number of the optimizer state; by default 32 with tensor or pipeline parallelism, else those of the parameters."""
    master: bool = True
    """Keep an fp32 copy of parameters that are trained in half precision."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """Keep the optimizer state, or also the parameters, in the memory of the host."""
    fp8: bool = False
    """Multiply the matrices of layers in fp8."""
    adapter_rank: int = Field(0, ge=0)
    """Rank of LoRA matrices, which are trained instead of the network; 0 for none."""
    adapter_on: Literal["query-value", "attention", "feed-forward", "all"] = "all"
    """Matrices with LoRA: query and value; query, key, value and output; those of the feed-forward network; or all of a layer."""
    base_bits: Literal[4, 8, 16] = 16
    """Bits of each parameter of the frozen network; 4 is QLoRA."""

    @property
    def dropout_bytes(self) -> int:
        """Return the bytes of a mask of dropout per number."""
        return 1 if self.dropout else 0

    @model_validator(mode="after")
    def _frozen(self) -> Self:
        if self.base_bits < 16 and not self.adapter_rank:
            raise ValueError(
                f"base_bits is {self.base_bits} without adapters: quantised parameters are frozen, so write adapter_rank"
            )
        return self


class GradientExchange(_Section):
    """The gradient exchange between ranks."""

    all_reduce: Literal["auto", "ring", "nccl", "hierarchical_copy", "reduction_to_one_device"] = "auto"
    """For the TensorFlow backends: hierarchical_copy, reduction_to_one_device or nccl on one machine, ring or nccl between
    machines.
    """
    bucket_bytes: Annotated[int, Field(ge=1)] | None = None
    """Bytes of gradients sent together: DDP's buckets (25 MiB by default), Horovod's fusion buffer (64 MiB by default)."""
    compression: Literal["none", "fp16"] = "none"
    """Send gradients in half precision; ddp and horovod only."""
    servers: int = Field(1, ge=1)
    """Parameter servers, each with a share of the parameters."""
    staleness_aware: bool = False
    """Divide the learning rate of an asynchronous update by its staleness."""


class Reinforcement(_Section):
    """An agent that learns in an environment. Fields that you leave out come from the algorithm.

    A step is one action; an epoch is `steps_per_epoch` steps, then evaluation and a checkpoint. `training` has the minibatch,
    the optimizer, the learning rate and the number of epochs.
    """

    algorithm: Literal["q-learning", "dqn-2013", "dqn-2015", "gorila", "apex"] = "dqn-2015"
    """Q-learning with a table, or deep Q-learning as in one of its papers; other fields change any part of it. Gorila and Ape-X
    run several processes, on Ray.
    """
    steps_per_epoch: int = Field(10_000, ge=1)
    """Actions between two evaluations. Each epoch starts a new episode."""
    discount: float = Field(0.99, ge=0, le=1)
    """γ: the discount of a reward per step."""
    exploration: Literal["annealed", "fixed", "ladder"] = "annealed"
    """ε falls from epsilon_start to epsilon_end (annealed) or is always epsilon_end (fixed). With `ladder`, episodes take turns
    with the values of Ape-X.
    """
    epsilon_start: float = Field(1.0, ge=0, le=1)
    """Fraction of random actions at the start."""
    epsilon_end: float = Field(0.1, ge=0, le=1)
    """Fraction of random actions from `epsilon_steps` on."""
    epsilon_steps: int = Field(1_000_000, ge=1)
    """Number of steps over which ε falls linearly."""
    ladder: int = Field(8, ge=1)
    """Number of values of ε on the ladder, 0.4 ** (1 + 7 i / (N - 1)): one per actor."""
    replay_size: int = Field(1_000_000, ge=0)
    """Transitions in the replay memory; 0 to learn from the newest ones only."""
    replay_start: int = Field(50_000, ge=1)
    """Transitions in the replay memory before the first update."""
    replay: Literal["uniform", "proportional", "rank"] = "uniform"
    """Sampling of transitions: uniform, in proportion to their last error, or by its rank (Schaul et al. 2016)."""
    priority_exponent: float = Field(0.6, ge=0)
    """α: strength of the priorities; 0 samples uniformly. 0.7 by default if `replay` is rank."""
    importance_exponent: float = Field(0.4, ge=0, le=1)
    """β: initial strength of the weights that correct for non-uniform sampling; it rises to 1. 0.5 by default if `replay` is
    rank.
    """
    importance_updates: Annotated[int, Field(ge=1)] | None = None
    """Number of updates over which β rises to 1; constant by default."""
    update_every: int = Field(4, ge=1)
    """Steps between updates."""
    target_every: int = Field(10_000, ge=0)
    """Updates between copies of the target network; 0 to compute targets with the network itself."""
    loss: Literal["huber", "squared"] = "huber"
    """Loss of the error of Q: squared; or Huber, which is linear for errors above 1, so that gradients are at most 1."""
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = None
    """Clip gradients to this norm."""
    clip_rewards: bool = True
    """Learn from rewards clipped to -1 … 1. Reported returns are not clipped."""
    double: bool = False
    """Double Q-learning: the network chooses the next action, the target network evaluates it (van Hasselt et al. 2016)."""
    dueling: bool = False
    """The network adds the value of a state and the advantage of each action (Wang et al. 2016)."""
    n_step: int = Field(1, ge=1)
    """Number of rewards in a target before it uses the network's estimate."""
    life_ends_episode: bool = True
    """Atari: in training, a lost life ends the episode; never in evaluation."""
    frame_stack: int = Field(4, ge=1, le=16)
    """Atari: number of last images that the network sees together, at most those of one second; 1 for the newest only."""
    noop_starts: int = Field(30, ge=0)
    """Atari: maximum number of frames without action at the start of an episode."""
    evaluation_episodes: int = Field(20, ge=1)
    """Episodes of an evaluation. Their seeds are the same in every evaluation."""
    evaluation_epsilon: float = Field(0.05, ge=0, le=1)
    """Fraction of random actions in evaluation."""
    target_return: float | None = None
    """Stop when the mean return of an evaluation reaches this."""
    actors: int = Field(4, ge=1, le=10_000)
    """Gorila and Ape-X: processes that act."""
    learners: int = Field(1, ge=1, le=10_000)
    """Gorila: processes that learn; `communication.servers` processes hold the parameters."""
    bundled: bool = False
    """Gorila: each learner also acts and has a separate replay memory; there are no other actors."""
    replay_shards: int = Field(1, ge=1, le=10_000)
    """Gorila and Ape-X: processes that share the replay memory."""
    environments_per_actor: int = Field(1, ge=1)
    """Gorila and Ape-X: environments of an actor, for which its network chooses actions in one batch."""
    send_every: int = Field(50, ge=1)
    """Gorila and Ape-X: transitions that an actor sends together."""
    refresh_every: int = Field(100, ge=1)
    """Gorila and Ape-X: steps after which an actor fetches the newest parameters."""
    paced: bool = True
    """Gorila and Ape-X: actors and learners wait for each other, so that there is one update every `update_every` steps."""

    @model_validator(mode="before")
    @classmethod
    def _from_algorithm(cls, given: Any) -> Any:
        """Set fields that the user did not give to the values of the algorithm and its kind of replay."""
        name = given.get("algorithm", "dqn-2015") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in ALGORITHMS:
            return given
        fields = {**ALGORITHMS[name], **given}
        replay = fields.get("replay")
        return {**REPLAYS.get(replay, {}), **fields} if isinstance(replay, str) else fields


class Job(_Model):
    """A job: the network, the data, the training and the hardware."""

    task: Literal["classification", "detection", "reinforcement", "language"] = "classification"
    """Task: classification or detection of images, reinforcement learning in an environment, or a language model on tokens."""
    mode: Literal["training", "inference"] = "training"
    """Train the network, or run it forward only, without gradients."""
    network: Network
    data: Data
    training: Training = Field(default_factory=lambda: Training())
    cluster: Cluster = Field(default_factory=lambda: Cluster())
    communication: GradientExchange = Field(default_factory=lambda: GradientExchange())
    backend: BackendName = "single"
    """Library and method by which ranks work together."""
    reinforcement: Reinforcement | None = Field(None, exclude_if=lambda agent: agent is None)
    """Settings of an agent; only for task reinforcement, which always has them."""
    large: LargeModel | None = Field(None, exclude_if=lambda given: given is None)
    """Settings of a large model; only for a network named by its `config.json`, which always has them."""

    @property
    def replicas(self) -> int:
        """Return the number of data-parallel ranks. Ranks that share a model by its layout together are one."""
        layout = self.cluster.layout or Layout()
        return max(self.cluster.count // (layout.tensor * layout.pipeline * layout.context), 1)

    @property
    def images_per_rank(self) -> int:
        """Return the images per step on the rank with the most: ranks share samples, each with all its copies.

        torch.nn.DataParallel splits the images themselves. Ranks of a backend in WHOLE_BATCH have the whole batch.
        """
        count = 1 if self.backend in WHOLE_BATCH else self.cluster.count
        if self.backend == "data_parallel":
            return -(-self.training.images_per_step // count)
        return -(-self.training.batch // count) * self.training.augmentation.copies

    @property
    def is_text(self) -> bool:
        """Return whether its samples are tokens."""
        return self.task == "language"

    @model_validator(mode="before")
    @classmethod
    def _task_of_tokens(cls, given: Any) -> Any:
        """Set the task to language for samples of one dimension: they are rows of tokens."""
        if not isinstance(given, dict) or "task" in given or not isinstance(data := given.get("data"), dict):
            return given
        shape = data.get("shape")
        name = data.get("name")
        is_text = name == TOKENS or (isinstance(shape, list | tuple) and len(shape) == 1)
        is_text = is_text or (isinstance(name, str) and is_real_text(name))
        return {"task": "language", **given} if is_text else given

    @model_validator(mode="before")
    @classmethod
    def _stage_of_backend(cls, given: Any) -> Any:
        """Set ZeRO to stage 3 for backend fsdp, unless the job states a stage."""
        if not isinstance(given, dict) or given.get("backend") != "fsdp":
            return given
        training = given.get("training") or {}
        return {**given, "training": {"zero_stage": 3, **training}} if isinstance(training, dict) else given

    @model_validator(mode="before")
    @classmethod
    def _agent_of_task(cls, given: Any) -> Any:
        """Add the section `reinforcement` to a job of that task, and refuse it for other tasks."""
        if not isinstance(given, dict):
            return given
        if given.get("task") == "reinforcement":
            return {**given, "reinforcement": given.get("reinforcement") or {}}
        if given.get("reinforcement") is not None:
            raise ValueError(
                "only task reinforcement has the section reinforcement: write task: reinforcement, or leave the section out"
            )
        return given

    @model_validator(mode="after")
    def _only_forward(self) -> Self:
        """Refuse settings in inference that only training has."""
        training = self.training
        for name, usual in (("accumulation", 1), ("zero_stage", 0), ("noise_scale_every", 0)):
            if self.mode == "inference" and (value := getattr(training, name)) != usual:
                raise ValueError(
                    f"training.{name} is {value}, and mode is inference, which has no gradients: write {usual}"
                )
        if self.mode == "inference" and training.augmentation.copies > 1:
            raise ValueError(
                f"training.augmentation.copies is {training.augmentation.copies}, and mode is inference, which runs each "
                "sample once: write 1"
            )
        return self

    @model_validator(mode="after")
    def _loss_of_inputs(self) -> Self:
        """Refuse a loss for samples of a data set: there, training has the loss of its task."""
        if self.training.loss != "cross_entropy" and self.data.name != INPUTS:
            raise ValueError(
                f"training.loss is {self.training.loss}, and a {self.task} job on {self.data.name} has its own loss: leave "
                "training.loss out, or state network.inputs and data.name=inputs to predict and measure without a data set"
            )
        return self

    @model_validator(mode="after")
    def _target_of_data(self) -> Self:
        """Refuse a target of another metric: real text has bits per byte, all other data an accuracy."""
        wrong, right = "target_bits_per_byte", "target_accuracy"
        if is_real_text(self.data.name):
            wrong, right = right, wrong
        if (given := getattr(self.training, wrong)) is not None:
            raise ValueError(
                f"training.{wrong} is {given:g}, and {self.data.name} has another metric: write training.{right}, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _pure(self) -> Self:
        """Refuse parameters in half precision for jobs that do not support them."""
        of = {
            "task": (self.task, ("classification", "language")),
            "backend": (self.backend, ("single", "ddp", "data_parallel")),
        }
        for name, (value, taken) in of.items():
            if self.training.is_pure and value not in taken:
                raise ValueError(f"training.param_dtype is bf16, which {name}={value} has not: {', '.join(taken)} have")
        return self

    @model_validator(mode="after")
    def _ranks(self) -> Self:
        if self.backend not in WHOLE_BATCH and self.training.batch < self.replicas:
            ranks = (
                f"cluster.count = {self.cluster.count}"
                if self.cluster.layout is None
                else f"the {self.replicas} data-parallel ranks"
            )
            raise ValueError(
                f"training.batch is {self.training.batch}, fewer than {ranks}: each rank needs at least one sample per step"
            )
        of_rank = self.training.batch // (1 if self.backend in WHOLE_BATCH else self.replicas)
        images = of_rank * self.training.augmentation.copies
        if self.training.accumulation > images:
            raise ValueError(
                f"training.accumulation is {self.training.accumulation}, and a rank may have only {how_many(images, 'images')} per "
                "step: each part needs at least one"
            )
        if self.training.noise_scale_every and self.training.batch < 2:
            raise ValueError(
                "training.noise_scale_every compares parts of a batch, and training.batch is 1: write 2 or more"
            )
        return self


def check_backend(job: Job) -> None:
    """Raise JobError for several devices under a backend of one rank, which can neither run nor be predicted."""
    if job.backend == "single" and job.cluster.count != 1:
        raise JobError(
            f"cluster.count is {job.cluster.count} and backend is single, which has one rank",
            "write backend=ddp, or cluster.count=1",
        )


def from_dict(data: Any, where: str = "job") -> Job:
    """Return a validated job. Raises JobError that lists each wrong field with its value and similar names."""
    if not isinstance(data, dict):
        raise JobError(f"{where} must be a mapping of keys to values, got {shown(data)}", _EXAMPLE)
    try:
        files.check_plain(data)
    except ValueError as error:
        raise JobError(f"{where} is not valid: {error}", _EXAMPLE) from None
    try:
        return Job.model_validate(data)
    except ValidationError as error:
        wrong = problems(error, Job)
        raise JobError(f"{where} is not valid\n  " + "\n  ".join(wrong), _EXAMPLE) from None


def is_job_file(what: str | os.PathLike[str]) -> bool:
    """Return whether this is a job file rather than the name of a network, a reference of code, JSON, or a table.

    A path counts as one even if it is a folder or does not exist: then the error of `plain` explains it.

    >>> is_job_file("jobs/digits"), is_job_file("resnet50"), is_job_file("net.py:Net"), is_job_file("traces/net.json")
    (True, False, False, False)
    """
    text = os.fspath(what)
    if text.endswith((".yaml", ".yml")):
        return True
    is_other = ":" in text or text.endswith((".json", ".json.gz", ".csv"))
    return not is_other and ("/" in text or os.path.isfile(text))


def load(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file that the user names, with overrides such as `training.batch=128`; its network's code may run.

    Raises JobError for anything from a missing file to a wrong type.
    """
    job = read(path, overrides)
    for reference in (job.network.name, *job.network.inputs, job.training.loss):
        trust.name(reference)
    trust.name(job.data.name.removeprefix("gymnasium:"))
    return job


def read(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file as `load` does, without running the code of its network: the file may come from anyone."""
    return from_dict(override(plain(path), overrides), str(path))


def plain(path: str | Path) -> dict[str, Any]:
    """Return the fields that a job file states, not validated. Raises JobError for a file that is not one."""
    path = Path(path)
    if os.path.isdir(path):
        is_run = (path / "job.yaml").is_file()
        hint = (
            f"name {path / 'job.yaml'}; `chronograd explain {path}` shows where its time went" if is_run else _EXAMPLE
        )
        raise JobError(f"{path} is a {'run directory' if is_run else 'folder'}, not a job file", hint)
    if path.suffix == ".py" and os.path.isfile(path):
        raise JobError(f"{path} is Python code, not a job file", _network_hint(path))
    try:
        data = files.parse_yaml(files.read_bytes(path, MAX_JOB_BYTES).decode())
    except FileNotFoundError:
        if path.suffix not in (".yaml", ".yml") and re.fullmatch(r"[\w.-]+/[\w.-]+", str(path)):
            raise JobError(
                f"{path} is no known model, and no job file is there",
                f"write hf:{path} for a model in the local cache of Hugging Face; `chronograd count --list` lists the known ones",
            ) from None
        raise JobError(f"no job file at {path}", _EXAMPLE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobError(f"cannot read {path}: {reason}", _EXAMPLE) from None
    except ValueError as error:
        raise JobError(f"{path} is not valid YAML: {error}", _EXAMPLE) from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise JobError(f"{path} must be a mapping of keys to values, got {shown(data)}", _EXAMPLE)
    return data


def _network_hint(path: Path) -> str:
    """Return a hint on naming a network of a Python file, with its public classes and functions; none of its code runs."""
    name = f"name the class or function: {path}:NAME"
    try:
        body = ast.parse(files.read_bytes(path, MAX_CODE_BYTES)).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return name
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = [node.name for node in body if isinstance(node, kinds) and not node.name.startswith("_")]
    more = ", …" if len(defined) > MAX_NAMES else ""
    return f"{name} (it defines {', '.join(defined[:MAX_NAMES])}{more})" if defined else name


def changed(job: Job, overrides: Sequence[str]) -> Job:
    """Return a copy of a job with overrides applied, validated again.

    Only fields that the job states keep their value; the others follow the recipe again.
    """
    return from_dict(override(stated(job), overrides), "job")


def with_ranks(job: Job) -> Job:
    """Return the job with backend `ddp` if it has several devices and a backend of one rank."""
    return changed(job, ["backend=ddp"]) if job.cluster.count > 1 and job.backend == "single" else job


def stated(job: Job) -> dict[str, Any]:
    """Return the fields of a job that differ from the defaults and its recipe: the shortest job file with the same meaning."""
    data = job.model_dump(mode="json", exclude_unset=True)
    defaults = Training(recipe=job.training.recipe)
    training = data.get("training", {})
    always = (
        ("recipe",) if job.large is None else ("recipe", "batch")
    )  # the usual batch of a large model has no fixed number
    data["training"] = {
        k: v for k, v in training.items() if k in always or getattr(job.training, k) != getattr(defaults, k)
    }
    if (agent := job.reinforcement) is not None:
        own = Reinforcement(algorithm=agent.algorithm, replay=agent.replay)  # exponents depend on the kind of replay
        usual = {**own.model_dump(), "replay": Reinforcement(algorithm=agent.algorithm).replay}
        data["reinforcement"] = {
            k: v for k, v in data["reinforcement"].items() if k == "algorithm" or getattr(agent, k) != usual[k]
        }
    return data


def steps_per_epoch(num_samples: int, batch: int) -> int:
    """Return the whole global batches in an epoch, without an incomplete last one. Raises InputError if there is none."""
    if not num_samples:
        raise InputError("the number of training samples is unknown", "write data.samples=N, the samples of an epoch")
    if batch > num_samples:
        raise InputError(
            f"training.batch is {batch:,}, more than the {how_many(num_samples, 'training samples')}, so no batch is full",
            "use a smaller batch or more samples",
        )
    return num_samples // batch


def scaled(job: Job) -> Job:
    """Return the job with its learning rate and epochs scaled by its ranks, as `training.scale_by_ranks` states.

    >>> one = from_dict({"network": {"name": "alexnet"}, "data": {"name": "digits"}, "cluster": {"count": 3},
    ...     "training": {"epochs": 4, "learning_rate": 0.5, "scale_by_ranks": ["learning_rate", "epochs"]}})
    >>> scaled(one).training.learning_rate, scaled(one).training.epochs
    (1.5, 2)
    """
    training, count = job.training, job.cluster.count
    if not training.scale_by_ranks:
        return job
    changes: list[str] = ["training.scale_by_ranks=[]"]
    if "learning_rate" in training.scale_by_ranks:
        changes.append(f"training.learning_rate={training.learning_rate * count}")
    if "epochs" in training.scale_by_ranks:
        changes.append(f"training.epochs={-(-training.epochs // count)}")
    return changed(job, changes)


def resolved(job: Job) -> dict[str, Any]:
    """Return every field of a job as plain data, as saved with every result."""
    return job.model_dump(mode="json")


def to_yaml(job: Job, is_whole: bool = True) -> str:
    """Return a job file with every field, or only with those that differ from the defaults and the recipe."""
    return files.dump_yaml(resolved(job) if is_whole else stated(job))


def precision_name(precision: str, param_dtype: str) -> str:
    """Return a precision in words: bf16 means autocast; pure bf16 has no fp32 parameters.

    >>> precision_name("bf16", "fp32"), precision_name("bf16", "bf16")
    ('bf16', 'pure bf16')
    """
    return precision if param_dtype == "fp32" else f"pure {precision}"


def parse_on(text: str) -> tuple[int | None, str]:
    """Return the count, if there is one, and the device of `8xV100`, `v100x8`, `v100` or `8x path/to/device.toml`. Raises InputError.

    >>> parse_on("8xV100"), parse_on("local"), parse_on("rtx4090x2"), parse_on("rtx4090")
    ((8, 'v100'), (None, 'local'), (2, 'rtx4090'), (None, 'rtx4090'))
    """
    words = text.strip()
    if before := re.fullmatch(r"(\d{1,9})(?:\s*+[x×*]\s*+|\s++)(\S+)", words):
        count, name = int(before[1]), before[2]
    elif (after := re.fullmatch(r"(\S+)[x×*:](\d{1,9})", words)) and re.search(r"\d", after[1]):  # not rtx8000
        count, name = int(after[2]), after[1]
    else:
        count, name = None, words
    if not re.fullmatch(r"\S+", name) or count == 0:
        raise InputError(f"cannot read device {text!r}", "write COUNTxDEVICE, such as 8xV100 or local")
    return count, name if name.endswith(".toml") else name.lower()


def fields_of_place(place: str, overrides: Sequence[str] = ()) -> list[str]:
    """Return the fields that a place such as `8xv100` states. Raises InputError if one of `overrides` contradicts it.

    >>> fields_of_place("8xV100"), fields_of_place("v100", ["cluster.count=4"]), fields_of_place("4090")
    (['cluster.device=v100', 'cluster.count=8'], ['cluster.device=v100'], ['cluster.device="4090"'])
    """
    count, device = parse_on(place)
    device = f'"{device}"' if device.isdigit() else device  # text, not a number
    fields = {"cluster.device": device} if count is None else {"cluster.device": device, "cluster.count": str(count)}
    for text in overrides:
        key, _, value = (part.strip() for part in text.partition("="))
        if value.lower() != fields.get(key, value).lower():
            raise InputError(f"--on {place} contradicts {text}", "give one of them")
    return [f"{key}={value}" for key, value in fields.items()]


def placed(job: Job, place: str, overrides: Sequence[str] = ()) -> Job:
    """Return the job on a place such as `8xv100`; a place without a number keeps the count of the job.

    A job of one rank becomes a `ddp` job on several devices. Raises InputError if one of `overrides` contradicts the place.
    """
    return with_ranks(changed(job, fields_of_place(place, overrides)))


_EXAMPLE = "`chronograd run --print-config` prints a whole job file, and `chronograd run --schema` every field"


def override(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a job as plain data with overrides such as `a.b=c` applied. Raises JobError if one cannot be read."""
    data = {k: (dict(v) if isinstance(v, dict) else v) for k, v in data.items()}
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise JobError(f"cannot read override {text!r}", "write field=value, such as training.batch=128")
        try:
            parsed = files.parse_yaml(value) if value.strip() else None
        except ValueError as error:
            hint = "write numbers such as 100, and put other text in quotes"
            raise JobError(f"override {text!r}: the value is not valid YAML: {error}", hint) from None
        *parents, last = key.strip().split(".")
        node: dict[str, Any] = data
        for parent in parents:
            child = node.get(parent)
            if child is not None and not isinstance(child, dict):
                raise JobError(f"override {text!r}: {parent} has no fields", _EXAMPLE)
            node[parent] = dict(child or {})
            node = node[parent]
        node[last] = parsed
    return data
