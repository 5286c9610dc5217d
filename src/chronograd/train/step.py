"""One training step of one rank, in its parts: input, transfer, forward, backward, update.

The loop runs it and `chronograd.measure.steps` times it, so that measured and trained steps are the same.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from chronograd.data import augment
from chronograd.data.datasets import Dataset
from chronograd.errors import FileFormatError
from chronograd.job import Job, Training, steps_per_epoch
from chronograd.models import registry
from chronograd.models.layout import lay_out
from chronograd.models.weights import head_of, without_head
from chronograd.predict.checkpointing import blocks_to_checkpoint
from chronograd.train.graphs import GraphedNetwork
from chronograd.train.heads import load_start
from chronograd.train.inputs import InputSplit, RowInput, in_chunks, input_of
from chronograd.train.optimizer import make_optimizer, set_rate
from chronograd.train.order import CHUNK, SampleOrder, random_seed, rank_slice
from chronograd.train.rank_context import RankContext
from chronograd.train.watchdog import WATCHDOG

# Weight of each auxiliary classifier's loss: C. Szegedy et al., Going deeper with convolutions, 2014, section 5.
AUXILIARY_WEIGHT = 0.3
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Data types of parameters and buffers.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Part = tuple[str, Callable[[], None]]


class TrainingStep:
    """Network, optimizer and data of one rank, and the parts of a step.

    Initial weights come from the seed, from the job's `network.weights`, or from `initial_weights`, a safetensors file with the
    network's own names. The loss of a rank is scaled by its share of the batch. The mean over ranks is therefore the mean over
    the batch even if the shares are unequal.

    Attributes:
        network: the whole network. `trained` is the part that a step runs (the head alone if features of a frozen trunk are
            stored); `averaged` is the running mean of all weights, or None.
        setup_s: seconds that a frozen trunk took to compute its features, which belong to training.
        noise: the GradientNoise of chronograd.train.noise_scale, if the loop sets it; it measures in some steps.

    Left out: gradient clipping. Pixel dropout draws per rank, so it alone depends on the number of ranks.
    """

    def __init__(self, job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None = None) -> None:
        training = job.training
        set_matrix_arithmetic(training.precision, place.device)
        self.training, self.place, self.device = training, place, place.device
        self.network, self.loaded = initial_network(job, dataset, place, initial_weights)
        self._labels = dataset.train_labels.to(place.device)
        classes_N = classes_of(dataset.train_labels)
        self.order = SampleOrder(training.seed, len(classes_N), training.batch, classes_N.numpy(), job.data.resampling)
        # An epoch of text may be a part of all samples: see data.epoch_samples.
        in_epoch = min(dataset.card.train_size, len(classes_N))
        self.steps_per_epoch = steps_per_epoch(in_epoch, training.batch)
        self.num_steps = self.steps_per_epoch * training.epochs
        self.train_input: InputSplit = input_of(
            dataset.train,
            dataset,
            place.device,
            training.channels_last,
            training.augmentation,
            DTYPES[training.param_dtype],
        )
        self.test_input: InputSplit = input_of(
            dataset.test, dataset, place.device, training.channels_last, dtype=DTYPES[training.param_dtype]
        )
        # The scores of all tokens are large, so text is evaluated in batches that are known to fit.
        self.chunk = job.images_per_rank if job.is_text else CHUNK
        self.averaged: AveragedModel | None = None
        self.setup_s = 0.0
        self.noise: Any = None
        self.has_features, self._head = False, ""
        if training.trainable == "head":
            self._head, head = head_of(self.network)
            self.network.requires_grad_(False)
            head.requires_grad_(True)
            if training.augmentation.is_none and training.freeze_norm is not False:
                self._keep_features()
        self.optimizer = make_optimizer(self.network, training)
        if training.ema_decay:
            average = get_ema_multi_avg_fn(training.ema_decay)  # type: ignore[no-untyped-call]
            self.averaged = AveragedModel(self.network, multi_avg_fn=average, use_buffers=True)
        self.train_mode()
        if training.activation_checkpointing == "blocks":
            checkpoint_blocks(self.network)
        trained = self.part_of(self.network)
        trained = compiled(trained, training.compile)
        self.model, self.optimizer = place.exchange.parallel(trained, self.optimizer, place)
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=training.precision == "fp16")
        self.loss = torch.zeros((), device=place.device)
        self._index, self._share, self._part = 0, 1.0, 0
        self._dropping = torch.Generator(place.device)
        self._mine = np.empty(0, np.int64)
        self._draws: torch.Tensor | None = None
        self._raw = self._seen = self._targets = torch.empty(0)

    # -- the parts, in order ---------------------------------------------------------------------------

    def parts(self, index: int, is_updated: bool = True) -> Iterator[Part]:
        """Yield name and call of each part of step `index`, counted from 0; a name may repeat.

        If the input is left out, the last batch is used again.
        """
        for name, call in self._parts(index, is_updated):
            WATCHDOG.at(name, index + 1)
            yield name, call

    def _parts(self, index: int, is_updated: bool) -> Iterator[Part]:
        self._index, self._part = index, 0
        yield "input", lambda: self.gather(index)
        yield "transfer", self.transfer
        yield "input", self.prepare
        noise = self.noise if self.noise is not None and self.noise.is_due(index) else None
        if noise is not None:
            yield "noise_scale", noise.begin
        for _ in range(self.training.accumulation):
            yield "forward", self.forward
            yield "backward", self.backward
        if noise is not None:
            yield "noise_scale", noise.end
        yield "update", self.update if is_updated else self.drop_gradients

    def gather(self, index: int) -> None:
        """Get this rank's samples of step `index`, from the device or from files that are read in the background."""
        training, part = self.training, self._choose(index)
        self._raw = self.train_input.gather(self._mine)
        if index + 1 < self.num_steps:
            self.train_input.prefetch(self.order.samples(index + 1)[part])
        if not training.augmentation.is_none:
            draws = augment.draw(training.augmentation, training.seed, index, training.batch)
            self._draws = torch.from_numpy(np.ascontiguousarray(draws[:, part]))

    def _choose(self, index: int) -> slice:
        """Set this rank's samples of a step, and its share of the batch. Return their places in the batch."""
        batch, place = self.training.batch, self.place
        part = rank_slice(batch, place.data_rank, place.data_ranks)
        self._mine = self.order.samples(index)[part]
        self._share = len(self._mine) * place.data_ranks / batch
        return part

    def transfer(self) -> None:
        """Copy to the device what is not there yet; on the CPU, nothing."""
        if self.device.type == "cuda":
            if self._raw.device.type == "cpu":
                self._raw = self._raw.pin_memory().to(self.device, non_blocking=True)
            if self._draws is not None:
                self._draws = self._draws.pin_memory().to(self.device, non_blocking=True)

    def prepare(self) -> None:
        """Augment and normalise, on the device."""
        if self.training.augmentation.pixel_dropout:
            self._dropping.manual_seed(random_seed(self.training.seed, self._index, self.place.data_rank))
        self._seen = self.train_input.prepare(self._raw, self._draws, self._dropping)
        targets = self._labels[torch.from_numpy(self._mine).to(self.device, non_blocking=True)]
        copies = self.training.augmentation.copies
        self._targets = targets.repeat(copies, *(1,) * (targets.ndim - 1)) if copies > 1 else targets

    def forward(self) -> None:
        """Run network and loss on one part of the batch. `loss` is this rank's mean over the parts so far."""
        count = self.training.accumulation
        part = rank_slice(len(self._seen), self._part, count)
        with self._exchange(), self.arithmetic():
            loss = self._loss_of(self.model(self._seen[part]), self._targets[part])
        weight = (part.stop - part.start) / len(self._seen)
        self._part_loss = loss if count == 1 else loss * weight
        self.loss = self._part_loss.detach() + (self.loss if self._part else 0.0)

    def backward(self) -> None:
        """Compute the gradients of that part; with several ranks, average them in the last part."""
        scaled = self._part_loss if self._share == 1.0 else self._part_loss * self._share
        with self._exchange():
            self.scaler.scale(scaled).backward()
        self._part += 1
        if self._part == self.training.accumulation:
            self.place.exchange.wait_for_gradients(self.optimizer)

    def update(self) -> None:
        """Take one step of the optimizer at the schedule's rate, and update the running mean."""
        set_rate(self.optimizer, self.training, self._index, self.num_steps)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.drop_gradients()
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)

    # -- for others ------------------------------------------------------------------------------------

    def run(self, index: int) -> dict[str, Any]:
        """Run all parts of step `index`. Return the host's seconds by part; on CUDA only those of input, because the
        host runs ahead.

        With several ranks, `exchange_wait_s` is the part of `backward_s` in which this rank waited for the others. A
        step that measures the gradient noise scale adds the results of chronograd.train.noise_scale.
        """
        seconds: dict[str, float] = {}
        last_s = time.perf_counter()
        for name, call in self.parts(index):
            call()
            now_s = time.perf_counter()
            seconds[f"{name}_s"] = seconds.get(f"{name}_s", 0.0) + now_s - last_s
            last_s = now_s
        found = {} if self.noise is None or "noise_scale_s" not in seconds else self.noise.found
        if self.device.type == "cuda":
            return {"input_s": seconds["input_s"], **found}
        if found:
            seconds["backward_s"] -= found["noise_scale_s"] - seconds["noise_scale_s"]
        return {**seconds, **found} | ({} if self.waited_s is None else {"exchange_wait_s": self.waited_s})

    def again(self, times: int = 1) -> None:
        """Repeat forward and backward of the last batch without an update."""
        seen, targets = self._seen, self._targets
        self._seen, self._targets = (t.repeat(times, *(1,) * (t.ndim - 1)) for t in (seen, targets))
        self._part = 0
        try:
            for _ in range(self.training.accumulation):
                self.forward()
                self.backward()
        finally:
            self.drop_gradients()
            self._seen, self._targets = seen, targets

    def loss_on(self, samples: slice) -> torch.Tensor:
        """Return the mean loss on some of this rank's samples, with all copies, by the plain network: no averaging."""
        copies = self.training.augmentation.copies
        seen, targets = (
            t.view(copies, -1, *t.shape[1:])[:, samples].flatten(0, 1) if copies > 1 else t[samples]
            for t in (self._seen, self._targets)
        )
        with self.arithmetic():
            return self._loss_of(self.part_of(self.network)(seen), targets)

    def drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def no_sync(self) -> AbstractContextManager[None] | None:
        """Return a context in which ranks do not average gradients; None if there is one rank."""
        return self.place.exchange.no_sync(self.model, self.optimizer)

    @property
    def waited_s(self) -> float | None:
        return self.place.exchange.waited_s

    @property
    def rank_samples(self) -> int:
        """Return the samples of the last step that count for this rank, without copies."""
        return len(self._mine) if self.place.is_counted else 0

    def part_of(self, network: nn.Module) -> nn.Module:
        """Return the part of such a network that runs on the inputs: all of it, or the head if features are stored."""
        return network.get_submodule(self._head) if self.has_features else network

    @property
    def evaluated(self) -> nn.Module:
        """Return the network to evaluate: its running mean if there is one."""
        return self.part_of(self.network if self.averaged is None else self.averaged.module)

    def train_mode(self) -> None:
        """Set training mode. A frozen trunk stays in evaluation mode unless its norms follow the batch, and so do frozen norms."""
        self.network.train()
        if self._head and self.training.freeze_norm is not False:
            self.network.eval()
            self.network.get_submodule(self._head).train()
        if self.training.freeze_norm:
            for norm in batch_norms(self.network):
                norm.eval()

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return a context of autocast if the precision requires it."""
        return autocast(self.training, self.device)

    def _exchange(self) -> AbstractContextManager[None]:
        """Return a context in which only the last part of a batch averages gradients."""
        is_last = self._part == self.training.accumulation - 1
        no_sync = None if is_last else self.no_sync()
        return no_sync or contextlib.nullcontext()

    def _keep_features(self) -> None:
        """Run the frozen trunk over all images once; steps then train the head on its features."""
        start = time.perf_counter()
        trunk, _ = without_head(self.network)
        trunk.eval()
        self.train_input, self.test_input = (self._features(trunk, own) for own in (self.train_input, self.test_input))
        self.has_features = True
        self.setup_s = time.perf_counter() - start

    @torch.no_grad()
    def _features(self, trunk: nn.Module, images: InputSplit) -> RowInput:
        """Return the features of every image, on the device in the data type of the head's parameters: F numbers per image."""
        rows = []
        for _, seen in in_chunks(images, np.arange(len(images)), self.device):
            with self.arithmetic():
                rows.append(trunk(seen).to(DTYPES[self.training.param_dtype]))
        return RowInput(torch.cat(rows))

    def _loss_of(self, outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy. Networks with auxiliary classifiers return these in addition to their main output."""
        main, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = self._cross_entropy(main, targets)
        for logits_NK in auxiliary:
            loss = loss + AUXILIARY_WEIGHT * self._cross_entropy(logits_NK, targets)
        return loss

    def _cross_entropy(self, logits_NK: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy for class numbers or probabilities; each position of text is a sample."""
        smoothing = self.training.label_smoothing
        if logits_NK.ndim == 3:
            logits_NK, targets = logits_NK.flatten(0, 1), targets.flatten()
        return functional.cross_entropy(logits_NK.float(), targets, label_smoothing=smoothing)


def compiled(network: nn.Module, how: bool | str) -> nn.Module:
    """Return the network compiled, or recorded as CUDA graphs, as the job's `training.compile` asks."""
    if not how:
        return network
    return GraphedNetwork(network) if how == "cuda-graphs" else cast(nn.Module, torch.compile(network))


def set_matrix_arithmetic(precision: str, device: torch.device) -> None:
    """Allow or forbid a GPU to round fp32 products to TF32."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"


def autocast(training: Training, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context of autocast if the precision requires it and the network does not use it already."""
    dtype = None if training.is_pure else AUTOCAST.get(training.precision)
    return torch.autocast(device.type, dtype=dtype) if dtype is not None else contextlib.nullcontext()


def classes_of(labels: torch.Tensor) -> torch.Tensor:
    """Return the class of each sample, the likeliest if labels are probabilities. Text counts as one class."""
    if labels.ndim == 1:
        return labels
    return labels.argmax(1) if labels.is_floating_point() else torch.zeros(len(labels), dtype=torch.int64)


def initial_network(
    job: Job, dataset: Dataset, place: RankContext, initial_weights: Path | None
) -> tuple[nn.Module, str]:
    """Return the network with its initial weights, on the device, and a description of the loaded weights."""
    torch.manual_seed(job.training.seed)
    network = registry.build(
        job.network.name,
        job.network.options,
        input_shape=dataset.card.shape,
        num_classes=dataset.card.num_classes,
    )
    said = ""
    if job.network.weights is not None:
        said = load_start(network, job, dataset)
    if initial_weights is not None:
        load_weights(network, initial_weights)
    network.to(place.device)
    if job.training.is_pure:
        network.to(DTYPES[job.training.param_dtype])
    if job.training.channels_last:
        lay_out(network)
    return network, said


def batch_norms(network: nn.Module) -> list[nn.Module]:
    """Return the layers that store statistics of batches."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


def checkpoint_blocks(network: nn.Module) -> None:
    """Make every block store only its input, and run again before its backward pass. Raises InputError if there is no block."""
    modules = dict(network.named_modules())
    paths = blocks_to_checkpoint({path: type(module).__name__ for path, module in modules.items()})
    for path in set(paths.values()):
        module = modules[path]
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


def load_weights(network: nn.Module, path: Path) -> None:
    """Load parameters and buffers from a safetensors file. Raises FileFormatError if they are not this network's."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise FileFormatError(f"{path} is not a readable safetensors file: {error}") from None
    except RuntimeError as error:
        first = " ".join(str(error).split())[:300]
        raise FileFormatError(f"the weights in {path} do not belong to this network: {first}") from None
