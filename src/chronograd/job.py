"""The job file: what to train, on what, how. The same file is counted, predicted, measured and trained.

`load` reads YAML, applies overrides written `a.b=c`, and returns a validated, frozen `Job`. Nothing is
started or written before a job is valid.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from chronograd import files, inputs, trust
from chronograd.errors import InputError, JobError, did_you_mean, problems, shown
from chronograd.recipes import ALGORITHMS, RECIPES, REPLAYS, recipe
from chronograd.words import how_many

BACKENDS = ("single", "ddp", "data_parallel", "parameter_server", "horovod", "tf_mirrored", "tf_multiworker")


def _known_backend(name: str) -> str:
    if name in BACKENDS or name in (others := trust.plugins("backends")):
        return name
    raise ValueError(f"{shown(name)} is not one of its values{did_you_mean(name, (*BACKENDS, *others))}")


BackendName = Annotated[str, AfterValidator(_known_backend), WithJsonSchema({"enum": list(BACKENDS), "type": "string"})]
# A job file has a few hundred.
MAX_JOB_BYTES = 32_000
MAX_CODE_BYTES, MAX_NAMES = 1_000_000, 8  # of a Python file whose networks an error lists
# Each has a name in memory; the largest published sets of images have some tens of thousands.
MAX_CLASSES = 1_000_000
# The data set of synthetic text.
TOKENS = "tokens"
# Random values of whatever the network takes.
INPUTS = "inputs"


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class _Section(_Model):
    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, given: Any, info: ValidationInfo) -> Any:
        is_truth = any(isinstance(one, bool) for one in (given if isinstance(given, list | tuple) else [given]))
        annotation = cls.model_fields[info.field_name].annotation if info.field_name else bool
        if is_truth and annotation is not bool and bool not in get_args(annotation):
            raise ValueError(f"true and false are no value of this field, got {shown(given)}")
        return given


class Network(_Section):
    """Which network."""

    name: str = Field(min_length=1)
    """A name of ours, torchvision:NAME, timm:NAME, package.module:function, or the path of a saved trace."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the network's function. Number of classes and input shape come from the data."""
    weights: str | None = None
    """Weights to start from: a run directory, a safetensors or PyTorch file, or `torchvision` or `timm` for theirs."""
    inputs: tuple[str, ...] = ()
    """Tensors that it takes if it does not take one per sample of the data: NAME:SHAPE:DTYPE each, or one FILE.py:example_inputs."""
    head: Literal["new", "kept"] | None = None
    """The last layer of these weights: `new` gives it random values, `kept` trains it further. By default it is new where
    the weights were trained on other classes."""

    @field_validator("inputs")
    @classmethod
    def _readable(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        try:
            inputs.check(given)
        except InputError as error:
            raise ValueError(f"{error.message}: {error.hint}") from None
        return given

    @model_validator(mode="after")
    def _head_of_weights(self) -> Self:
        if self.head is not None and self.weights is None:
            raise ValueError(f"head is {self.head} without weights: name them in network.weights, or leave head out")
        return self

    @model_serializer(mode="wrap")
    def _without_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out fields that are not set, so that earlier jobs look as they did."""
        data: dict[str, Any] = dump(self)
        return {key: value for key, value in data.items() if key not in ("inputs", "head") or value}


class Data(_Section):
    """What it is trained on."""

    name: str = Field(min_length=1)
    """A data set: digits, fashion-mnist, cifar10, cifar100, synthetic, folder:PATH, imagenet:PATH, decathlon:SET, voc:PATH, coco:PATH,
    open-images:PATH, tokens, inputs (random values of network.inputs); or an environment to act in: gymnasium:NAME, atari:GAME."""
    shape: tuple[int, ...] | None = None
    """Shape of one sample, for synthetic data; of text the number of tokens, such as [1024]."""
    classes: Annotated[int, Field(ge=2, le=MAX_CLASSES)] | None = None
    """Number of classes, for synthetic data; of text the size of the vocabulary."""
    class_names: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Of pictures with boxes: only objects of these classes are read, in this order; by default of all that it has."""
    samples: Annotated[int, Field(ge=1)] | None = None
    """Use only so many training samples, the first of a fixed shuffle; all by default."""
    skip: int = Field(0, ge=0)
    """Leave out so many of that shuffle first, so that two jobs can share a set without a common sample."""
    test_samples: Annotated[int, Field(ge=1)] | None = None
    """Use only so many test samples, the first of a fixed shuffle; all by default."""
    image_size: Annotated[int, Field(ge=1)] | None = None
    """Side of square images: the shorter side is resized to it and the middle kept. Folders have 224, decathlon sets 72."""
    normalisation: Literal["own", "imagenet", "unit", "raw"] = "own"
    """What a network sees: `own` and `imagenet` subtract a mean and divide by a deviation, `unit` is 0…1, `raw` 0…255."""
    label_noise: float = Field(0.0, ge=0, le=1)
    """Share of the training labels that are replaced by a draw from the distribution of all training labels."""
    long_tail: float = Field(0.0, ge=0)
    """Exponent s of Zipf's law: the class of rank r has `r ** -s` times the images of the first. Needs `samples`."""
    resampling: Literal["natural", "square_root", "uniform"] = "natural"
    """How often a class is met in an epoch: as often as it has images, as the root of that, or as any other."""
    labels: str | None = None
    """A file of training samples and labels, such as a teacher writes, that replaces the set's own."""
    loading: Literal["auto", "resident", "streaming"] = "auto"
    """Images all on the training device, or decoded while it trains; by default whether they fit decides."""

    @field_validator("shape")
    @classmethod
    def _positive(cls, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if shape is not None and (not shape or min(shape) < 1):
            raise ValueError("a shape has one or more dimensions, each at least 1")
        return shape


class Augmentation(_Section):
    """What happens to each training image, drawn anew each time, in this order. Runs on the training device."""

    crop: int = Field(0, ge=0)
    """Pad by so many black pixels on every side, then cut out the image's size at random."""
    resized_crop: Annotated[float, Field(gt=0, le=1)] | None = None
    """Cut out a random rectangle of this share of the area or more, of aspect 3/4 to 4/3, and resize it."""
    flip: bool = False
    """Mirror left to right, every second time."""
    cutout: int = Field(0, ge=0)
    """Side of a square of zeros at a random place, which may reach beyond the image; after normalisation."""
    pixel_dropout: float = Field(0.0, ge=0, lt=1)
    """Share of pixels that become zero, one by one, with all their channels; after normalisation."""
    expand: float = Field(4.0, ge=1, le=16)
    """Of pictures with boxes: side of the largest canvas that one is put on, in sides of its own; 1 for none."""
    copies: int = Field(1, ge=1)
    """Times that each sample of a batch is in it, each with draws of its own (batch augmentation, M)."""

    @property
    def is_none(self) -> bool:
        """Whether an image is the same every time."""
        return self == Augmentation()


class ParameterGroup(_Section):
    """Parameters that are trained otherwise than the rest."""

    match: str = Field(min_length=1)
    """A pattern of parameter names, such as `layer4.*` or `*.bias`."""
    learning_rate_factor: float = Field(1.0, ge=0)
    """Times the learning rate; 0 freezes them."""
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    """In place of the weight decay of the rest."""


class Training(_Section):
    """How it is trained. Fields not given are those of the recipe."""

    recipe: str = "sgd-momentum"
    """A named set of defaults for the fields below."""
    epochs: int = Field(10, ge=1)
    """Passes over the training samples, at most."""
    batch: int = Field(64, ge=1)
    """Global batch: samples per step over all ranks; with parameter_server the minibatch of one learner."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stop when the test accuracy reaches this, as a fraction."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seeds the initial weights and the order of samples."""
    optimizer: Literal["sgd", "adamw", "adadelta", "rmsprop"] = "sgd"
    """Update rule."""
    learning_rate: float = Field(0.1, gt=0)
    """Peak learning rate."""
    scale_by_ranks: tuple[Literal["learning_rate", "epochs"], ...] = ()
    """What grows or shrinks with `cluster.count`: the rate is multiplied by it, the epochs are divided by it, rounded up."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of SGD, beta1 of AdamW, rho of Adadelta, decay of both running means of RMSProp."""
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty of SGD, decoupled decay of AdamW."""
    schedule: Literal["constant", "multi_step", "cosine", "one_cycle"] = "constant"
    """Shape of the learning rate over the run."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of the run over which the rate rises linearly to its peak."""
    milestones: tuple[float, ...] = ()
    """Shares of the run at which multi_step multiplies the rate by gamma."""
    gamma: float = Field(0.1, gt=0, lt=1)
    """Factor of multi_step."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the cross-entropy."""
    augmentation: Augmentation = Field(default_factory=lambda: Augmentation())
    """What happens to training images."""
    trainable: Literal["all", "head"] = "all"
    """`head` freezes all but the last linear layer; without augmentation the rest is then run once per image."""
    frozen_norm: Literal["stored", "batch"] = "stored"
    """Statistics by which batch norm of a frozen trunk normalises: those of its weights, or those of each batch."""
    parameter_groups: tuple[ParameterGroup, ...] = ()
    """Exceptions to learning rate and weight decay; the first that matches holds."""
    accumulation: int = Field(1, ge=1)
    """Parts into which a rank's batch is cut; their gradients are added up before the update."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of a running mean of the weights, which is then what is evaluated; 0 for none."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Arithmetic of matrix work; anything below fp32 uses autocast."""
    param_dtype: Literal["fp32", "bf16"] = "fp32"
    """Type of parameters and buffers. With bf16, and that precision, all else is in it, too, without autocast: pure bf16."""
    channels_last: bool = False
    """Memory layout of images."""
    compile: bool | Literal["cuda-graphs"] = False
    """Run the network through torch.compile; with cuda-graphs each pass is launched as one graph (NVIDIA GPUs)."""
    activation_checkpointing: Literal["none", "blocks"] = "none"
    """Keep only the inputs of repeated blocks, and run each block again before its backward pass."""
    zero_stage: int = Field(0, ge=0, le=3)
    """ZeRO: shared out over the ranks are optimizer state (1), gradients too (2), parameters too (3). Predicted only."""
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        if self.schedule == "multi_step" and not self.milestones:
            raise ValueError("schedule multi_step needs milestones, such as [0.5, 0.75]")
        if list(self.milestones) != sorted(self.milestones) or any(not 0 < m < 1 for m in self.milestones):
            raise ValueError("milestones are rising shares of the run between 0 and 1")
        if self.param_dtype == "bf16" != self.precision:
            raise ValueError(f"param_dtype is bf16 and precision {self.precision}: write training.precision=bf16, too")
        return self

    @property
    def is_pure(self) -> bool:
        """Whether all is held and computed in the type of the parameters, without autocast."""
        return self.param_dtype != "fp32"

    @property
    def precision_name(self) -> str:
        return precision_name(self.precision, self.param_dtype)

    @property
    def images_per_step(self) -> int:
        """Images that a step computes on, over all ranks: the batch, each sample as often as it is copied."""
        return self.batch * self.augmentation.copies

    @property
    def optimizer_kind(self) -> str:
        """Which state the optimizer keeps: the key of `predict.memory.OPTIMIZER_STATES`."""
        return "sgd-momentum" if self.optimizer == "sgd" and self.momentum > 0 else self.optimizer


class Cluster(_Section):
    """What it runs on."""

    device: str = Field("local", min_length=1)
    """A device of the catalogue (`chronograd devices`), `local`, or a device file."""
    count: int = Field(1, ge=1, le=100_000)
    """Number of devices; one rank each."""
    per_node: Annotated[int, Field(ge=1)] | None = None
    """Devices per node; the device's usual number by default."""
    link: str | None = None
    """Link between nodes (`chronograd devices --links`); the device's usual one by default."""
    intra_link: str | None = None
    """Link between devices of a node; the device's usual one by default."""
    input_samples_per_s: Annotated[float, Field(gt=0)] | None = None
    """What the input pipeline of a node delivers, loading in the background; never short by default. Predicted only."""
    step_sigma_log: Annotated[float, Field(ge=0, le=1)] | None = None
    """Spread of a rank's steps, as the standard deviation of their log, for which ranks wait; as calibrated by default, else 0.05 of GPUs. Predicted only."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads of one rank; cores divided by ranks on this machine by default."""
    price_usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    """Price of one device for an hour; the price table's by default."""
    max_restarts: int = Field(0, ge=0, le=1000)
    """Times that all ranks are started again after one has failed, was killed or hung, from the newest checkpoint."""
    timeout_s: float = Field(1800.0, ge=1, le=1e6)
    """Seconds that ranks wait for one another in a collective; then the run is ended, and whoever is missing is named."""

    def threads_per_rank(self, cores: int, ranks_on_node: int) -> int:
        """CPU threads of each of so many ranks on one machine: what the job says, else cores shared out, at least 1."""
        return self.threads or max(1, cores // ranks_on_node)


class GradientExchange(_Section):
    """How ranks exchange gradients."""

    all_reduce: Literal["auto", "ring", "nccl", "hierarchical_copy", "reduction_to_one_device"] = "auto"
    """Of the TensorFlow backends: hierarchical_copy, reduction_to_one_device or nccl on one machine, ring or nccl between."""
    bucket_bytes: Annotated[int, Field(ge=1)] | None = None
    """Gradients sent together: DDP's buckets (25 MiB by default), Horovod's fusion buffer (64 MiB by default)."""
    compression: Literal["none", "fp16"] = "none"
    """Gradients are sent in half precision; ddp and horovod."""
    servers: int = Field(1, ge=1)
    """Parameter servers, each with a share of the parameters."""
    staleness_aware: bool = False
    """Divide the learning rate of an asynchronous update by its staleness."""


class Reinforcement(_Section):
    """How an agent learns in an environment. Fields not given are those of the algorithm.

    A step is one action; an epoch is so many of them, then evaluation and a checkpoint. `training` has the minibatch, the
    optimizer, its rate and the number of epochs.
    """

    algorithm: Literal["q-learning", "dqn-2013", "dqn-2015", "gorila", "apex"] = "dqn-2015"
    """Q-learning with a table, or deep Q-learning in the form of one of its papers; any part can then be changed. Gorila and
    Ape-X are several processes, on Ray."""
    steps_per_epoch: int = Field(10_000, ge=1)
    """Actions between two evaluations. An epoch begins with a new episode."""
    discount: float = Field(0.99, ge=0, le=1)
    """γ: what a reward is worth one step later."""
    exploration: Literal["annealed", "fixed", "ladder"] = "annealed"
    """ε falls from epsilon_start to epsilon_end, or is epsilon_end; or episodes take turns on the ladder of Ape-X."""
    epsilon_start: float = Field(1.0, ge=0, le=1)
    """Share of random actions at first."""
    epsilon_end: float = Field(0.1, ge=0, le=1)
    """Share of random actions from `epsilon_steps` on."""
    epsilon_steps: int = Field(1_000_000, ge=1)
    """Steps over which ε falls, linearly."""
    ladder: int = Field(8, ge=1)
    """How many ε there are on the ladder, 0.4 ** (1 + 7 i / (N - 1)): one per actor."""
    replay_size: int = Field(1_000_000, ge=0)
    """Transitions that are remembered; 0 to learn from the newest ones alone."""
    replay_start: int = Field(50_000, ge=1)
    """Transitions remembered before the first update."""
    replay: Literal["uniform", "proportional", "rank"] = "uniform"
    """Whether transitions are drawn alike, or by their last error or the rank of it (Schaul et al. 2016)."""
    priority_exponent: float = Field(0.6, ge=0)
    """α: how much priorities matter; 0 draws alike. 0.7 by default where `replay` is rank."""
    importance_exponent: float = Field(0.4, ge=0, le=1)
    """β: how far weights make up for drawing some more often, at first; it rises to 1. 0.5 by default where `replay` is rank."""
    importance_updates: Annotated[int, Field(ge=1)] | None = None
    """Updates over which β rises to 1; constant by default."""
    update_every: int = Field(4, ge=1)
    """Steps between updates."""
    target_every: int = Field(10_000, ge=0)
    """Updates between copies of the network that targets are computed with; 0 for the network itself."""
    loss: Literal["huber", "squared"] = "huber"
    """Of the error of Q: squared, or beyond 1 absolute, so that a gradient is at most 1."""
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = None
    """Longer gradients are cut to this length."""
    clip_rewards: bool = True
    """Learn from rewards cut to -1 … 1. Returns are reported as the environment gives them."""
    double: bool = False
    """The network chooses the next action, its older copy says what it is worth (van Hasselt et al. 2016)."""
    dueling: bool = False
    """The network adds the value of a state and the advantage of each action (Wang et al. 2016)."""
    n_step: int = Field(1, ge=1)
    """Rewards that a target sums before it trusts the network."""
    life_ends_episode: bool = True
    """Atari: to the agent a lost life is the end of an episode; in evaluation it never is."""
    frame_stack: int = Field(4, ge=1, le=16)
    """Atari: how many of the last images the network sees together, up to those of a second; 1 for the newest alone."""
    noop_starts: int = Field(30, ge=0)
    """Atari: an episode begins with up to so many frames in which nothing is pressed."""
    evaluation_episodes: int = Field(20, ge=1)
    """Episodes of an evaluation, each with a seed that is the same every time."""
    evaluation_epsilon: float = Field(0.05, ge=0, le=1)
    """Share of random actions in evaluation."""
    target_return: float | None = None
    """Stop when an evaluation's mean return reaches this."""
    actors: int = Field(4, ge=1, le=10_000)
    """Gorila and Ape-X: processes that act."""
    learners: int = Field(1, ge=1, le=10_000)
    """Gorila: processes that learn, of parameters that `communication.servers` hold."""
    bundled: bool = False
    """Gorila: each learner acts, too, and has a replay of its own; there are no other actors."""
    replay_shards: int = Field(1, ge=1, le=10_000)
    """Gorila and Ape-X: processes that the replay is shared out over."""
    environments_per_actor: int = Field(1, ge=1)
    """Gorila and Ape-X: an actor asks its network for the actions of all of them at once."""
    send_every: int = Field(50, ge=1)
    """Gorila and Ape-X: transitions that an actor sends at a time."""
    refresh_every: int = Field(100, ge=1)
    """Gorila and Ape-X: steps of an actor after which it takes the newest parameters."""
    paced: bool = True
    """Gorila and Ape-X: actors and learners wait for each other to keep to an update every `update_every` steps."""

    @model_validator(mode="before")
    @classmethod
    def _from_algorithm(cls, given: Any) -> Any:
        """Fields that are not given, where the algorithm or its kind of replay has its own."""
        name = given.get("algorithm", "dqn-2015") if isinstance(given, dict) else None
        if not isinstance(name, str) or name not in ALGORITHMS:
            return given
        fields = {**ALGORITHMS[name], **given}
        replay = fields.get("replay")
        return {**REPLAYS.get(replay, {}), **fields} if isinstance(replay, str) else fields


class Job(_Model):
    """What to train, on what, and how."""

    task: Literal["classification", "detection", "reinforcement", "language"] = "classification"
    """What is learned: images to classes, or to boxes, environments to returns, tokens to tokens."""
    mode: Literal["training", "inference"] = "training"
    """What is done with the network: it is trained, or run forward for its answers, without gradients."""
    network: Network
    data: Data
    training: Training = Field(default_factory=lambda: Training())
    cluster: Cluster = Field(default_factory=lambda: Cluster())
    communication: GradientExchange = Field(default_factory=lambda: GradientExchange())
    backend: BackendName = "single"
    """How ranks work together."""
    reinforcement: Reinforcement | None = None
    """How an agent learns; only of jobs of that task, which always have it."""

    @property
    def images_per_rank(self) -> int:
        """Images of a step on the rank that has most: ranks share samples, each with all its copies.

        torch.nn.DataParallel splits the images themselves, and a parameter server's worker has the whole batch.
        """
        count = 1 if self.backend == "parameter_server" else self.cluster.count
        if self.backend == "data_parallel":
            return -(-self.training.images_per_step // count)
        return -(-self.training.batch // count) * self.training.augmentation.copies

    @property
    def is_text(self) -> bool:
        """Whether its samples are tokens."""
        return self.task == "language"

    @model_validator(mode="before")
    @classmethod
    def _task_of_tokens(cls, given: Any) -> Any:
        """A sample of one dimension is a row of tokens, which needs no word of its own."""
        if not isinstance(given, dict) or "task" in given or not isinstance(data := given.get("data"), dict):
            return given
        shape = data.get("shape")
        is_text = data.get("name") == TOKENS or (isinstance(shape, list | tuple) and len(shape) == 1)
        return {"task": "language", **given} if is_text else given

    @model_validator(mode="before")
    @classmethod
    def _agent_of_task(cls, given: Any) -> Any:
        """A job of reinforcement has that section, and no other job has."""
        if not isinstance(given, dict):
            return given
        if given.get("task") == "reinforcement":
            return {**given, "reinforcement": given.get("reinforcement") or {}}
        if given.get("reinforcement") is not None:
            raise ValueError("reinforcement is of agents: write task: reinforcement, or leave it out")
        return given

    @model_serializer(mode="wrap")
    def _without_agent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = dump(self)
        return {key: value for key, value in data.items() if key != "reinforcement" or value is not None}

    @model_validator(mode="after")
    def _only_forward(self) -> Self:
        """What training alone has is not asked of inference."""
        training = self.training
        for name, usual in (("accumulation", 1), ("zero_stage", 0), ("noise_scale_every", 0)):
            if self.mode == "inference" and (value := getattr(training, name)) != usual:
                raise ValueError(
                    f"training.{name} is {value}, and mode is inference, which has no gradients: write {usual}"
                )
        if self.mode == "inference" and training.augmentation.copies > 1:
            raise ValueError(
                f"training.augmentation.copies is {training.augmentation.copies}, and mode is inference, where each "
                "sample is asked about once: write 1"
            )
        return self

    @model_validator(mode="after")
    def _pure(self) -> Self:
        """Which jobs hold their parameters in half precision."""
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
        if self.backend != "parameter_server" and self.training.batch < self.cluster.count:
            raise ValueError(
                f"training.batch is {self.training.batch}, fewer than cluster.count = {self.cluster.count}: "
                "each rank needs at least one sample per step"
            )
        of_rank = self.training.batch // (1 if self.backend == "parameter_server" else self.cluster.count)
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
    """Raise JobError for several devices under a backend of one rank, which neither runs nor can be predicted."""
    if job.backend == "single" and job.cluster.count != 1:
        raise JobError(
            f"cluster.count is {job.cluster.count} and backend is single, which has one rank",
            "write backend=ddp, or cluster.count=1",
        )


def from_dict(data: Any, where: str = "job") -> Job:
    """A validated job. Raises JobError that lists each field that is wrong, the value seen and near names."""
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


def load(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file that the user names, with overrides such as `training.batch=128`; its network's code may run.

    Raises JobError for anything from a missing file to a wrong type.
    """
    job = read(path, overrides)
    for reference in (job.network.name, *job.network.inputs):
        trust.name(reference)
    trust.name(job.data.name.removeprefix("gymnasium:"))
    return job


def read(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file as `load` does, as that of a run, which may be anyone's: its network's code does not run for that."""
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
        raise JobError(f"no job file at {path}", _EXAMPLE) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise JobError(f"cannot read {path}: {reason}", _EXAMPLE) from None
    except ValueError as error:
        raise JobError(f"{path} is not valid YAML: {error}", _EXAMPLE) from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise JobError(f"{path} must be a mapping of keys to values, got {shown(data)}", _EXAMPLE)
    return from_dict(override(data, overrides), str(path))


def _network_hint(path: Path) -> str:
    """How to name a network of a Python file, with the public classes and functions that it defines; nothing of it runs."""
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
    """A copy of a job with overrides applied, validated again.

    Only fields that the job states keep their value; the others follow the recipe again.
    """
    return from_dict(override(stated(job), overrides), "job")


def with_ranks(job: Job) -> Job:
    """The job as one of `ddp` where it has several devices and a backend of one rank."""
    return changed(job, ["backend=ddp"]) if job.cluster.count > 1 and job.backend == "single" else job


def stated(job: Job) -> dict[str, Any]:
    """What a job says beyond defaults and its recipe, as plain data: the shortest job file that means the same."""
    data = job.model_dump(mode="json", exclude_unset=True)
    defaults = Training(recipe=job.training.recipe)
    training = data.get("training", {})
    data["training"] = {
        k: v for k, v in training.items() if k == "recipe" or getattr(job.training, k) != getattr(defaults, k)
    }
    if (agent := job.reinforcement) is not None:
        own = Reinforcement(algorithm=agent.algorithm, replay=agent.replay)  # exponents follow the kind of replay
        usual = {**own.model_dump(), "replay": Reinforcement(algorithm=agent.algorithm).replay}
        data["reinforcement"] = {
            k: v for k, v in data["reinforcement"].items() if k == "algorithm" or getattr(agent, k) != usual[k]
        }
    return data


def steps_per_epoch(num_samples: int, batch: int) -> int:
    """Whole global batches in an epoch; the last incomplete one is dropped. Raises InputError if there is none."""
    if not num_samples:
        raise InputError("the number of training samples is not known", "write data.samples=N, those of an epoch")
    if batch > num_samples:
        raise InputError(
            f"training.batch is {batch:,}, more than the {how_many(num_samples, 'training samples')}: there is no whole batch",
            "use a smaller batch or more samples",
        )
    return num_samples // batch


def scaled(job: Job) -> Job:
    """The job with its rate and epochs scaled by its ranks, where `training.scale_by_ranks` asks for that.

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
    """Every field of a job as plain data, as saved with every result."""
    return job.model_dump(mode="json")


def to_yaml(job: Job, is_whole: bool = True) -> str:
    """A job file: every field, or only what the job says beyond defaults and its recipe."""
    return files.dump_yaml(resolved(job) if is_whole else stated(job))


def json_schema() -> dict[str, Any]:
    """JSON Schema of the job file."""
    return Job.model_json_schema()


def precision_name(precision: str, param_dtype: str) -> str:
    """A precision in words: bf16 is that of autocast, pure bf16 has no fp32 beside it.

    >>> precision_name("bf16", "fp32"), precision_name("bf16", "bf16")
    ('bf16', 'pure bf16')
    """
    return precision if param_dtype == "fp32" else f"pure {precision}"


def parse_on(text: str) -> tuple[int, str]:
    """Count and device of `8xV100`, `v100` or `8x path/to/device.toml`. Raises InputError.

    >>> parse_on("8xV100"), parse_on("local")
    ((8, 'v100'), (1, 'local'))
    """
    match = re.fullmatch(r"\s*(?:(\d{1,9})\s*[x×]\s*)?(\S+)\s*", text)
    if match is None or (match[1] is not None and int(match[1]) < 1):
        raise InputError(f"cannot read device {text!r}", "write COUNTxDEVICE, such as 8xV100 or local")
    name = match[2]
    return int(match[1] or 1), name if name.endswith(".toml") else name.lower()


_EXAMPLE = "`chronograd run --print-config` prints a whole job file, and `chronograd run --schema` every field"


def override(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A job as plain data, with overrides written `a.b=c` applied. Raises JobError for one that cannot be read."""
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
